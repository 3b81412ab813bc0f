"""Publishing: what a reader of the repository sees, whatever happens to the publisher."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from builder.errors import RepositoryError
from builder.repository import publish as publishing
from builder.repository import staging as staging_module
from builder.repository.plan import Publication, RepositoryPlan, WarmupSample, WarmupTensor
from builder.repository.publish import check_writable, publish
from builder.runtime.manifest import Manifest
from builder.triton_options import TritonOptions
from builder.types import OutputSpec, Range, TensorSpec

BATCH = Range(1, 8, 32, "B")


def make_plan(
    tmp_path: Path,
    weights: bytes = b"weights",
    *,
    name: str = "encoder",
    width: int = 4,
    warmup_rows: int = 8,
    built_at: str = "",
    **triton: object,
) -> RepositoryPlan:
    source = tmp_path / f"source-{hashlib.sha256(weights).hexdigest()[:8]}"
    source.write_bytes(weights)
    inputs = (TensorSpec("x", "float32", (BATCH, Range(width, width, width))),)
    outputs = (OutputSpec(TensorSpec("y", "float32", (BATCH, Range(2, 2, 2))), "y"),)
    tensor = WarmupTensor("float32", (warmup_rows, width), bytes(4 * warmup_rows * width))
    return RepositoryPlan(
        Manifest(name, inputs, outputs, (), built_at=built_at, command=f"build {built_at}"),
        {"segments/segment_0.onnx": source},
        {"model.py": "class TritonPythonModel: ...\n"},
        TritonOptions.model_validate(triton),
        (WarmupSample("opt", {"x": tensor}),),
    )


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below the directory with its content, and every directory with b'/'."""
    return {
        path.relative_to(directory).as_posix(): b"/" if path.is_dir() else path.read_bytes()
        for path in directory.rglob("*")
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "place" / "model_repo"


def assert_nothing_beside(root: Path) -> None:
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def test_new_model(tmp_path, root):
    published = publish(make_plan(tmp_path), root)
    assert (published.name, published.version, published.created, published.note) == ("encoder", 1, True, "")
    assert published.path == root / "encoder" / "1"
    assert sorted(tree(root)) == [
        "encoder",
        "encoder/1",
        "encoder/1/config.pbtxt",
        "encoder/1/manifest.json",
        "encoder/1/model.py",
        "encoder/1/segments",
        "encoder/1/segments/segment_0.onnx",
        "encoder/config.pbtxt",
        "encoder/warmup",
        "encoder/warmup/opt@x@8x4",
    ]
    assert (root / "encoder/warmup/opt@x@8x4").stat().st_size == 8 * 4 * 4
    assert_nothing_beside(root)


def test_manifest_has_the_digest_of_every_file(tmp_path, root):
    published = publish(make_plan(tmp_path), root)
    assert Manifest.read(published.path) == published.manifest
    assert set(published.manifest.files) == {"config.pbtxt", "model.py", "segments/segment_0.onnx"}
    for path, digest in published.manifest.files.items():
        content = (published.path / path).read_bytes()
        assert (digest.size, digest.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_artifacts_are_copies(tmp_path, root):
    plan = make_plan(tmp_path)
    published = publish(plan, root)
    plan.artifacts["segments/segment_0.onnx"].write_bytes(b"changed")
    assert (published.path / "segments/segment_0.onnx").read_bytes() == b"weights"


def test_relative_and_linked_roots(tmp_path, root, monkeypatch):
    root.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(root)
    assert publish(make_plan(tmp_path), link).path == root / "encoder" / "1"
    monkeypatch.chdir(root.parent)
    assert not publish(make_plan(tmp_path), Path("model_repo")).created
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_second_version_shares_the_config(tmp_path, root):
    publish(make_plan(tmp_path), root)
    before = tree(root)
    published = publish(make_plan(tmp_path, b"other"), root)
    assert (published.version, published.created, published.path) == (2, True, root / "encoder" / "2")
    after = tree(root)
    assert {path: after[path] for path in before} == before
    assert after["encoder/2/segments/segment_0.onnx"] == b"other"
    assert_nothing_beside(root)


def test_next_version_is_after_the_highest_number(tmp_path, root):
    publish(make_plan(tmp_path), root)
    for name in ("7", "09", "v12", "0", "notes"):
        (root / "encoder" / name).mkdir()
    (root / "encoder" / "8").write_text("a file")
    assert publish(make_plan(tmp_path, b"other"), root).version == 9
    assert not any((root / "encoder" / "7").iterdir())


def test_config_and_warmup_follow_the_newest_version(tmp_path, root):
    publish(make_plan(tmp_path), root)
    published = publish(make_plan(tmp_path, warmup_rows=2, parameters={"a": "b"}), root)
    config = (root / "encoder" / "config.pbtxt").read_text()
    assert published.version == 2
    assert 'key: "a"' in config
    assert "opt@x@2x4" in config
    # The old file stays: a server may be loading the old config right now.
    assert sorted(path.name for path in (root / "encoder" / "warmup").iterdir()) == ["opt@x@2x4", "opt@x@8x4"]


def test_same_content_publishes_nothing(tmp_path, root):
    first = publish(make_plan(tmp_path, built_at="2026-01-01"), root)
    before = tree(root)
    again = publish(make_plan(tmp_path, built_at="2026-12-31"), root)
    assert again == Publication("encoder", 1, first.path, False, first.manifest)
    assert tree(root) == before
    assert_nothing_beside(root)


def test_only_the_newest_version_counts_as_the_same(tmp_path, root):
    publish(make_plan(tmp_path), root)
    publish(make_plan(tmp_path, b"other"), root)
    assert publish(make_plan(tmp_path), root).version == 3


def test_a_damaged_version_is_not_the_same(tmp_path, root):
    published = publish(make_plan(tmp_path), root)
    (published.path / "segments/segment_0.onnx").unlink()
    assert publish(make_plan(tmp_path), root).version == 2


def test_the_same_content_finishes_what_was_cut_short(tmp_path, root):
    publish(make_plan(tmp_path), root)
    old = (root / "encoder" / "config.pbtxt").read_bytes()
    second = make_plan(tmp_path, response_cache=True)
    publish(second, root)
    (root / "encoder" / "config.pbtxt").write_bytes(old)
    published = publish(second, root)
    assert (published.created, published.note) == (False, "")
    assert b"response_cache" in (root / "encoder" / "config.pbtxt").read_bytes()


def test_other_signature_is_refused_with_the_difference(tmp_path, root):
    publish(make_plan(tmp_path), root)
    before = tree(root)
    with pytest.raises(RepositoryError) as caught:
        publish(make_plan(tmp_path, width=5), root)
    assert "- input x: TYPE_FP32 [-1, 4]\n+ input x: TYPE_FP32 [-1, 5]" in caught.value.where
    assert "another name" in caught.value.fix
    assert tree(root) == before
    assert_nothing_beside(root)


def test_a_foreign_model_is_refused(tmp_path, root):
    (root / "encoder" / "1").mkdir(parents=True)
    (root / "encoder" / "1" / "model.onnx").write_bytes(b"mine")
    before = tree(root)
    with pytest.raises(RepositoryError, match="no version that triton-repo wrote"):
        publish(make_plan(tmp_path), root)
    assert tree(root) == before


def test_an_empty_model_directory_is_filled(tmp_path, root):
    (root / "123").mkdir(parents=True)
    assert publish(make_plan(tmp_path, name="123"), root).version == 1


def test_hand_edit_is_kept(tmp_path, root):
    publish(make_plan(tmp_path), root)
    config = root / "encoder" / "config.pbtxt"
    edited = config.read_text() + "# mine\n"
    config.write_text(edited)
    published = publish(make_plan(tmp_path, b"other", response_cache=True), root)
    assert published.created
    assert "edited by hand" in published.note
    assert "2/config.pbtxt" in published.note
    assert config.read_text() == edited
    again = publish(make_plan(tmp_path, b"other", response_cache=True), root)
    assert (again.created, again.note) == (False, published.note)
    assert config.read_text() == edited


def test_a_missing_config_is_written(tmp_path, root):
    publish(make_plan(tmp_path), root)
    config = root / "encoder" / "config.pbtxt"
    text = config.read_text()
    config.unlink()
    publish(make_plan(tmp_path, b"other"), root)
    assert config.read_text() == text


def test_version_policy_must_leave_a_version(tmp_path, root):
    policy = {"specific": {"versions": [2]}}
    with pytest.raises(RepositoryError, match="at least one version must be available under the version policy"):
        publish(make_plan(tmp_path, version_policy=policy), root)
    assert not root.exists()
    publish(make_plan(tmp_path), root)
    assert publish(make_plan(tmp_path, version_policy=policy), root).note == ""
    third = publish(make_plan(tmp_path, b"other", version_policy=policy), root)
    assert third.note == "a server will not load version 3: version_policy.specific does not name it"


def fail_once(
    monkeypatch, module: object, name: str, error: BaseException, *, after: int = 0, done: bool = False
) -> None:
    """Make one call of `module.name` raise, the one after so many others; it may have done its work."""
    original, calls = getattr(module, name), itertools.count()

    def replacement(*args, **kwargs):
        if next(calls) == after:
            if done:
                original(*args, **kwargs)
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, replacement)


@pytest.mark.parametrize("existing", [False, True])
def test_interrupt_while_copying(tmp_path, root, monkeypatch, existing):
    if existing:
        publish(make_plan(tmp_path), root)

    def interrupted(source):
        yield b"half"
        raise KeyboardInterrupt

    monkeypatch.setattr(publishing, "_chunks", interrupted)
    plan = make_plan(tmp_path, response_cache=True)
    before = tree(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        publish(plan, root)
    assert tree(tmp_path) == before
    assert root.exists() == existing


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize(
    ("error", "done"),
    [(KeyboardInterrupt(), False), (KeyboardInterrupt(), True), (OSError(errno.EIO, "Input/output error"), False)],
)
def test_failure_at_every_step_leaves_the_repository_as_it_was(tmp_path, root, monkeypatch, existing, error, done):
    """Break each of the calls that change or flush the repository, one after the other."""
    if existing:
        publish(make_plan(tmp_path), root)
    plan = make_plan(tmp_path, warmup_rows=2, response_cache=True)
    before = tree(tmp_path)
    for module, name in ((publishing.os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "mkdir")):
        for calls in range(100):
            with monkeypatch.context() as patch:
                fail_once(patch, module, name, error, after=calls, done=done)
                try:
                    publish(plan, root)
                except (KeyboardInterrupt, RepositoryError):
                    pass
                else:
                    break
            assert tree(tmp_path) == before, f"{name} failed after {calls} calls"
        assert root.exists(), "the loop ended with a call that succeeded"
        undo_success(root, existing)
        assert tree(tmp_path) == before


def undo_success(root: Path, existing: bool) -> None:
    if not existing:
        shutil.rmtree(root.parent)
        return
    model = root / "encoder"
    shutil.rmtree(model / "2")
    (model / "warmup" / "opt@x@2x4").unlink()
    (model / "config.pbtxt").write_bytes((model / "1" / "config.pbtxt").read_bytes())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "there is no permission to write here"),
    ],
)
def test_failed_write_is_one_clear_sentence(tmp_path, root, monkeypatch, code, message):
    plan = make_plan(tmp_path)
    before = tree(tmp_path)
    original = Path.open

    def opened(path, mode="r", *args, **kwargs):
        stream = original(path, mode, *args, **kwargs)
        return FullDisk(stream, code) if path.name == "segment_0.onnx" else stream

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(RepositoryError) as caught:
        publish(plan, root)
    assert caught.value.what == f"the model cannot be published: {message}"
    assert caught.value.where == str(root)
    assert caught.value.fix
    monkeypatch.undo()
    assert tree(tmp_path) == before


class FullDisk:
    def __init__(self, stream, code: int) -> None:
        self._stream, self._code = stream, code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.close()

    def write(self, data: bytes) -> int:
        raise OSError(self._code, os.strerror(self._code))


@pytest.mark.parametrize("call", [check_writable, None])
@pytest.mark.parametrize("place", ["model_repo", "model_repo/below", "model_repo/far/below"])
def test_a_file_in_place_of_a_directory(tmp_path, call, place):
    (tmp_path / "model_repo").write_text("a file")
    plan = make_plan(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(RepositoryError, match="a file stands where a directory is needed"):
        (call or (lambda root: publish(plan, root)))(tmp_path / place)
    assert tree(tmp_path) == before


def test_a_file_in_place_of_the_model(tmp_path, root):
    root.mkdir(parents=True)
    (root / "encoder").write_text("a file")
    with pytest.raises(RepositoryError, match="a file stands where a directory is needed"):
        publish(make_plan(tmp_path), root)
    assert (root / "encoder").read_text() == "a file"


def test_a_missing_artifact_is_named(tmp_path, root):
    plan = make_plan(tmp_path)
    (source := plan.artifacts["segments/segment_0.onnx"]).unlink()
    with pytest.raises(RepositoryError, match="No such file") as caught:
        publish(plan, root)
    assert caught.value.where == str(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent(tmp_path, root):
    root.mkdir(parents=True)
    root.parent.chmod(0o555)
    try:
        with pytest.raises(RepositoryError, match="no permission") as caught:
            check_writable(root)
        assert str(root.parent) in caught.value.where
    finally:
        root.parent.chmod(0o755)


def test_an_unwritable_parent_is_named(tmp_path, root, monkeypatch):
    root.mkdir(parents=True)
    original = Path.mkdir

    def refused(path, *args, **kwargs):
        if path.name == ".model_repo.staging":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(RepositoryError, match="no permission") as caught:
        check_writable(root)
    assert caught.value.where.startswith(f"{root.parent}, where a model is put together")


@pytest.mark.parametrize("call", [check_writable, None])
def test_a_mount_point_is_explained(tmp_path, root, monkeypatch, call):
    plan = make_plan(tmp_path)
    root.mkdir(parents=True)
    fail_once(monkeypatch, Path, "rename", OSError(errno.EXDEV, "Invalid cross-device link"))
    with pytest.raises(RepositoryError, match="a mount point of its own"):
        (call or (lambda root: publish(plan, root)))(root)
    monkeypatch.undo()
    assert tree(root) == {}


def test_check_writable_leaves_nothing(tmp_path, root):
    check_writable(root)
    assert list(tmp_path.iterdir()) == []
    root.mkdir(parents=True)
    check_writable(root)
    assert tree(tmp_path) == {"place": b"/", "place/model_repo": b"/"}
    with pytest.raises(RepositoryError, match="root of the file system"):
        check_writable(Path("/"))


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
    original, others = publishing._add_warmup, [b"two", b"three"]

    def add_warmup(staged, model, undo):
        original(staged, model, undo)
        if others:
            publish(make_plan(tmp_path, others.pop(0)), root)

    monkeypatch.setattr(publishing, "_add_warmup", add_warmup)
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
        plan = make_plan(tmp_path, f"{process} {n}".encode(), parameters={"process": f"{process} {n}"})
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
