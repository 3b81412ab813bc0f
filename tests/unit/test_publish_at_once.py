"""Publishing: many at once, and what killed processes leave."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from builder.repository import publisher as publisher_module
from builder.repository import staging as staging_module
from builder.repository.publish import publish
from tests.unit.publishing import assert_nothing_beside, make_plan


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "place" / "model_repo"


def test_leftovers_of_a_dead_process_are_removed(tmp_path, root):
    stale = root.parent / ".model_repo.staging" / "dead" / "model"
    stale.mkdir(parents=True)
    (stale / "config.pbtxt").write_text("half")
    (stale.parent / "lock").touch()
    publish(make_plan(tmp_path), root)
    assert_nothing_beside(root)


def test_the_staging_of_a_living_publisher_stays(tmp_path, root):
    alive = root.parent / ".model_repo.staging" / "alive"
    alive.mkdir(parents=True)
    (alive / "half").touch()
    with FileLock(alive / "lock"):
        publish(make_plan(tmp_path), root)
        assert (alive / "half").exists()
    publish(make_plan(tmp_path, b"other"), root)
    assert_nothing_beside(root)


def test_a_cleaner_that_is_faster_than_the_lock(tmp_path, root, monkeypatch):
    """The staging directory may vanish between its making and its locking."""
    original, removed = staging_module.FileLock.acquire, []

    def acquire(lock, *args, **kwargs):
        if not removed:
            removed.append(Path(lock.lock_file).parent)
            removed[0].rmdir()
            removed[0].parent.rmdir()
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return original(lock, *args, **kwargs)

    monkeypatch.setattr(staging_module.FileLock, "acquire", acquire)
    assert publish(make_plan(tmp_path), root).created
    assert_nothing_beside(root)


def test_a_version_taken_in_between_moves_on(tmp_path, root, monkeypatch):
    publish(make_plan(tmp_path), root)
    original, others = publisher_module.add_beside, [b"two", b"three"]

    def add_beside(*args):
        original(*args)
        if others:
            publish(make_plan(tmp_path, others.pop(0)), root)

    monkeypatch.setattr(publisher_module, "add_beside", add_beside)
    published = publish(make_plan(tmp_path, b"mine", warmup_rows=2), root)
    assert published.created
    contents = [(root / "encoder" / str(n) / "segments/segment_0.onnx").read_bytes() for n in range(1, 5)]
    assert sorted(contents) == [b"mine", b"three", b"two", b"weights"]
    assert (root / "encoder" / "warmup" / "opt@x@2x4").exists()
    newest = root / "encoder" / "4" / "config.pbtxt"
    assert (root / "encoder" / "config.pbtxt").read_bytes() == newest.read_bytes()


@pytest.mark.parametrize("same", [False, True])
def test_threads_publish_at_once(tmp_path, root, same):
    plans = [make_plan(tmp_path, b"same" if same else f"weights {n}".encode()) for n in range(6)]
    barrier = threading.Barrier(len(plans))

    def run(plan):
        barrier.wait()
        return publish(plan, root)

    with ThreadPoolExecutor(len(plans)) as pool:
        published = list(pool.map(run, plans))
    check_concurrent(root, [(p.version, p.created) for p in published], same)


def check_concurrent(root: Path, results: list[tuple[int, bool]], same: bool) -> None:
    if same:
        assert sorted(results) == [(1, False)] * (len(results) - 1) + [(1, True)]
    else:
        assert sorted(results) == [(n, True) for n in range(1, len(results) + 1)]
    model = root / "encoder"
    versions = [path for path in model.iterdir() if path.name.isdigit()]
    for version in versions:
        files = json.loads((version / "manifest.json").read_text())["files"]
        for path, digest in files.items():
            assert hashlib.sha256((version / path).read_bytes()).hexdigest() == digest["sha256"]
    contents = {(version / "segments/segment_0.onnx").read_bytes() for version in versions}
    assert len(contents) == len(versions)
    newest = max(versions, key=lambda path: int(path.name))
    assert (model / "config.pbtxt").read_bytes() == (newest / "config.pbtxt").read_bytes()
    assert_nothing_beside(root)


def publish_several(tmp_path: Path, root: Path, process: int, barrier, results) -> None:
    barrier.wait()
    for n in range(4):
        plan = make_plan(
            tmp_path,
            f"{process} {n}".encode(),
            extra=f'parameters {{ key: "process" value {{ string_value: "{process} {n}" }} }}',
        )
        published = publish(plan, root)
        results.put((published.version, published.created))


def test_processes_publish_at_once(tmp_path, root):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=publish_several, args=(tmp_path, root, n, barrier, results)) for n in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in range(8)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    check_concurrent(root, found, same=False)
