"""The engine cache against what happens to machines: kills at every step, dead lock holders, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.cache.engine_cache import EngineCache
from builder.cache.options import CacheOptions
from builder.cache.store import LocalStore
from tests.unit.engines import Build, request, stored

# Kills its own process at the step that it is told, counting everything that a program can do to files in the cache.
KILLED = """
import os, signal, sys
from pathlib import Path

root, step, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
from builder.cache.engine_cache import EngineCache
from builder.cache.options import CacheOptions
from builder.cache.store import LocalStore
from tests.unit.engines import Build, request

count = 0

def tick():
    global count
    count += 1
    if count == step:
        os.kill(os.getpid(), signal.SIGKILL)

def on_event(event, arguments):
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.utime", "os.truncate"):
        if any(str(a).startswith(root) for a in arguments if isinstance(a, (str, bytes, os.PathLike))):
            tick()

fsync = os.fsync
def counted(descriptor):
    tick()
    fsync(descriptor)
os.fsync = counted

sys.addaudithook(on_event)
work = Path(sys.argv[4])
if what == "write":
    EngineCache(CacheOptions(Path(root)), work).get_or_build(request(), Build())
elif what == "read":
    assert EngineCache(CacheOptions(Path(root)), work).get_or_build(request(), Build()).hit
else:
    LocalStore(Path(root)).shrink(0)
print(count)
"""


def run(root: Path, work: Path, step: int, what: str) -> int | None:
    """The number of steps if it came to its end; None if it was killed."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(root), str(step), what, str(work)], capture_output=True, text=True
    )
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("what", ["write", "read", "evict"])
def test_killed_at_any_step_it_is_the_old_state_or_the_new(tmp_path: Path, what: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    steps = None
    step = 0
    while steps is None:
        step += 1
        root = tmp_path / f"cache-{step}"
        store = LocalStore(root)
        if what != "write":
            EngineCache(CacheOptions(root), work).get_or_build(request(), Build())
        steps = run(root, work, step, what)
        there = store.has(request().key)
        warnings: list[str] = []
        entry = EngineCache(CacheOptions(root), work, warnings.append).get_or_build(request(), Build(b"another"))
        # Whole and unharmed if it is there at all, and nothing of a dead process is left.
        assert entry.hit == there
        assert (entry.files / "engine.bin").read_bytes() == (b"engine" if there else b"another")
        assert (entry.files / "parts" / "more.bin").stat().st_size == (12 if there else 14)
        assert warnings == []
        assert list((root / "staging").iterdir()) == [] and store.quarantined() == 0
    assert step > 5
    assert steps < step


def test_a_builder_that_dies_releases_the_others(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from builder.cache.engine_cache import EngineCache
from builder.cache.options import CacheOptions
from tests.unit.engines import request

def build(directory):
    print("compiling", flush=True)
    time.sleep(600)

EngineCache(CacheOptions(Path(sys.argv[1])), Path(sys.argv[2])).get_or_build(request(), build)
"""
    work = tmp_path / "work"
    work.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "cache"), str(work)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "compiling\n"
    waiter = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "cache"), "0", "write", str(work)])
    time.sleep(1.0)
    assert waiter.poll() is None
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert waiter.wait(timeout=30) == 0
    assert EngineCache(CacheOptions(tmp_path / "cache"), work).get_or_build(request(), Build()).hit


def test_eight_processes_compile_once(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from builder.cache.engine_cache import EngineCache
from builder.cache.options import CacheOptions
from tests.unit.engines import Build, request

class Slow(Build):
    def __call__(self, directory):
        time.sleep(1)
        return super().__call__(directory)

build = Slow()
entry = EngineCache(CacheOptions(Path(sys.argv[1])), Path(sys.argv[2])).get_or_build(request(), build)
assert (entry.files / "engine.bin").read_bytes() == b"engine"
print(build.count)
"""
    work = tmp_path / "work"
    work.mkdir()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "cache"), str(work)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    assert sorted(process.communicate(timeout=60)[0] for process in started) == ["0\n"] * 7 + ["1\n"]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 1 MiB, where the machine lets us mount one."""
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
        if mounted.returncode != 0:
            pytest.skip("mounting a file system is not allowed here")
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


def test_a_full_disk_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    warnings: list[str] = []
    root = small_disk / "cache"
    cache = EngineCache(CacheOptions(root), tmp_path, warnings.append)
    first = cache.get_or_build(request("a"), Build(b"x" * 100_000))
    second = cache.get_or_build(request("b"), Build(b"y" * 500_000))
    third = cache.get_or_build(request("c"), Build())
    cache.close()
    assert [e.hit for e in (first, second, third)] == [False] * 3
    assert (second.files / "engine.bin").stat().st_size == 500_000
    assert len(warnings) == 1 and "is full" in warnings[0]
    store = LocalStore(root)
    assert store.stored_keys() == [first.key] and list((root / "staging").iterdir()) == []
    again = EngineCache(CacheOptions(root), tmp_path, warnings.append)
    assert again.get_or_build(request("a"), Build()).hit
    assert not again.get_or_build(request("c"), Build()).hit
    assert len(warnings) == 1 and set(store.stored_keys()) == {first.key, third.key}


def test_every_truncation_and_flip_is_seen(tmp_path: Path) -> None:
    """Of every file of an entry, at its beginning, middle and end."""
    store = LocalStore(tmp_path / "cache")
    store.prepare()
    record = stored(tmp_path / "content", data=os.urandom(1000))
    names = [*record.files, "entry.json"]
    tried = 0
    for name in names:
        size = (tmp_path / "content" / name).stat().st_size if name != "entry.json" else len(record.to_bytes(None)) - 2
        for place in (0, size // 2, size - 1):
            for damage in ("flip", "truncate"):
                store.put(record, tmp_path / "content")
                path = store.path(record.key) / name
                content = bytearray(path.read_bytes())
                if damage == "flip":
                    content[place] ^= 0x01
                else:
                    del content[place:]
                path.write_bytes(content)
                warnings: list[str] = []
                entry = EngineCache(CacheOptions(store.directory), tmp_path, warnings.append).get_or_build(
                    request(), Build(b"new")
                )
                harmless = entry.hit and name == "entry.json"
                assert harmless or (not entry.hit and len(warnings) == 1), (name, place, damage)
                assert (entry.files / "engine.bin").read_bytes() == (
                    (tmp_path / "content" / "files" / "engine.bin").read_bytes() if entry.hit else b"new"
                )
                store.remove(record.key)
                tried += 1
    assert tried == 6 * len(names)
