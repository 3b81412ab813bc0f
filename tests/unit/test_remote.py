"""The remote store against remotes that fail, hang and lie, and as a shared directory."""

from __future__ import annotations

import io
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from builder.cache import remote as module
from builder.cache.engine_cache import EngineCache
from builder.cache.maintenance import pull, push
from builder.cache.options import CacheOptions
from builder.cache.remote import RemoteStore
from builder.cache.store import LocalStore
from builder.errors import CacheError
from tests.unit.engines import Build, request, stored

SECRET = b"0123456789abcdef"


class Nasty(MemoryFileSystem):
    """A remote whose every operation can be made to fail, hang or lie."""

    protocol = "nasty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    failures: ClassVar[int] = 0
    calls: ClassVar[list[str]] = []
    gate: threading.Event | None = None
    refuse: str = ""

    def _trouble(self, what: str) -> None:
        type(self).calls.append(what)
        if self.gate is not None:
            self.gate.wait()
        if self.refuse == what:
            raise PermissionError("Access Denied")
        if type(self).failures > 0:
            type(self).failures -= 1
            raise ConnectionError("connection reset")

    def open(self, path: str, mode: str = "rb", **named: Any) -> Any:
        self._trouble("get" if "r" in mode else "put")
        file = super().open(path, mode, **named)
        # Readers of one file share a position there.
        return file if "w" in mode else io.BytesIO(file.getvalue())

    def info(self, path: str, **named: Any) -> Any:
        self._trouble("info")
        return super().info(path, **named)

    def find(self, path: str, **named: Any) -> Any:
        self._trouble("find")
        return super().find(path, **named)


fsspec.register_implementation("nasty", Nasty, clobber=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "OBJECT_STORES", frozenset({"nasty", "memory", "s3"}))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: threading.Event().wait(min(seconds, 0.02)))
    Nasty.store.clear()
    Nasty.failures, Nasty.calls, Nasty.gate, Nasty.refuse = 0, [], None, ""
    yield
    if Nasty.gate is not None:
        Nasty.gate.set()


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def machine(tmp_path: Path, warnings: list[str]) -> Callable[..., EngineCache]:
    """Opens the cache of a machine by its name, with the remote behind it."""

    def open_cache(name: str, url: str = "nasty://engines", **options: Any) -> EngineCache:
        work = tmp_path / f"work-{name}"
        work.mkdir(exist_ok=True)
        return EngineCache(CacheOptions(tmp_path / name, remote=url, **options), work, warnings.append)

    return open_cache


def built(cache: EngineCache, content: bytes = b"engine", name: str = "a") -> bool:
    """Whether it had to be compiled; the engine is right in any case."""
    entry = cache.get_or_build(request(name), Build(content))
    cache.close()
    assert (entry.files / "engine.bin").read_bytes() == b"engine"
    assert (entry.files / "parts" / "more.bin").read_bytes() == b"engineengine"
    return not entry.hit


def test_one_machine_compiles_for_all(machine: Callable[..., EngineCache], warnings: list[str]) -> None:
    assert built(machine("one"))
    assert not built(machine("two"))
    calls = len(Nasty.calls)
    assert not built(machine("two"))
    assert len(Nasty.calls) == calls and warnings == []


def test_readonly_sends_nothing(machine: Callable[..., EngineCache]) -> None:
    assert built(machine("one", readonly=True))
    assert not [p for p in Nasty.store if "entries" in p]
    assert built(machine("two"))
    assert not built(machine("three", readonly=True))


def test_a_few_failures_are_tried_again(machine: Callable[..., EngineCache], warnings: list[str]) -> None:
    Nasty.failures = 2
    assert built(machine("one"))
    Nasty.failures = 2
    assert not built(machine("two"))
    assert warnings == []


def test_a_remote_that_always_fails_is_given_up_with_one_warning(
    machine: Callable[..., EngineCache], warnings: list[str]
) -> None:
    Nasty.failures = 10**6
    cache = machine("one")
    for name in "abc":
        cache.get_or_build(request(name), Build())
    cache.close()
    assert len(warnings) == 1 and "not used any more in this build: connection reset" in warnings[0]
    assert len(Nasty.calls) == 3


@pytest.mark.parametrize("what", ["get", "info"])
def test_a_remote_that_refuses_is_given_up(machine: Callable[..., EngineCache], warnings: list[str], what: str) -> None:
    Nasty.refuse = what
    assert built(machine("one"))
    assert len(warnings) == 1 and "Access Denied" in warnings[0]


def test_a_remote_that_hangs_costs_its_timeout_once(
    machine: Callable[..., EngineCache], warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.3)
    monkeypatch.setattr(RemoteStore.__init__, "__kwdefaults__", {**RemoteStore.__init__.__kwdefaults__, "timeout": 0.3})
    Nasty.gate = threading.Event()
    started = time.monotonic()
    cache = machine("one", "nasty://hangs")
    for name in "abc":
        cache.get_or_build(request(name), Build())
    cache.close()
    assert time.monotonic() - started < 3
    assert len(warnings) == 1 and "no answer within" in warnings[0]


def test_a_remote_that_hangs_while_sending_does_not_hold_up_the_build(
    machine: Callable[..., EngineCache], warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = machine("one", "nasty://hangs-too")
    assert cache._remote is not None
    monkeypatch.setattr(cache._remote, "_timeout", 0.3)
    put = Nasty.pipe_file

    def hang(self: Nasty, path: str, value: bytes, **named: Any) -> None:
        Nasty.gate = Nasty.gate or threading.Event()
        Nasty.gate.wait()
        put(self, path, value, **named)

    monkeypatch.setattr(Nasty, "pipe_file", hang)
    started = time.monotonic()
    assert built(cache)
    assert time.monotonic() - started < 5
    assert len(warnings) == 1 and "not used any more" in warnings[0]
    assert not [p for p in Nasty.store if "/hangs-too/entries" in p]


@pytest.mark.parametrize("lie", ["flip", "truncate", "extend", "missing", "record", "other", "escape", "huge"])
def test_a_remote_that_lies_is_not_believed_and_repaired(
    machine: Callable[..., EngineCache], warnings: list[str], tmp_path: Path, lie: str
) -> None:
    assert built(machine("one"))
    objects = sorted((p for p in Nasty.store if "/engines/objects" in p), key=lambda p: len(Nasty.store[p].getvalue()))
    (entry,) = (p for p in Nasty.store if "/engines/entries" in p)
    filesystem = fsspec.filesystem("nasty")
    document = json.loads(filesystem.cat_file(entry))
    largest = filesystem.cat_file(objects[-1])
    if lie == "flip":
        filesystem.pipe_file(objects[-1], bytes([largest[0] ^ 1]) + largest[1:])
    elif lie == "truncate":
        filesystem.pipe_file(objects[-1], largest[:-1])
    elif lie == "extend":
        filesystem.pipe_file(objects[-1], largest * 50)
    elif lie == "missing":
        filesystem.rm_file(objects[-1])
    else:
        if lie == "record":
            document = {"record": 1}
        elif lie == "other":
            document["record"]["components"]["name"] = "b"
        elif lie == "escape":
            document["record"]["files"]["files/../../escaped"] = document["record"]["files"]["files/engine.bin"]
        else:
            document["record"]["settings"] = {"x": "y" * (17 << 20)}
        filesystem.pipe_file(entry, json.dumps(document).encode())
    assert built(machine("two"))
    assert len(warnings) == 1 and "is not taken" in warnings[0]
    assert not list(tmp_path.rglob("escaped"))
    assert not built(machine("three"))
    assert len(warnings) == 1


def test_two_builds_that_send_different_engines_under_one_key_do_not_mix(tmp_path: Path) -> None:
    """Compilers are not deterministic; whichever record is there has all its files."""
    remote = RemoteStore("nasty://engines")
    one, other = stored(tmp_path / "one", data=b"engine"), stored(tmp_path / "other", data=b"other!")
    threads = [
        threading.Thread(target=remote.upload, args=(record, tmp_path / name))
        for record, name in ((one, "one"), (other, "other"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert remote.fetch(one.key, tmp_path / "out") in (one, other)


def test_signatures(machine: Callable[..., EngineCache], warnings: list[str]) -> None:
    assert built(machine("evil"), b"engine")
    assert built(machine("ours", secret=SECRET))
    assert "not signed" in warnings[0]
    assert not built(machine("also-ours", secret=SECRET))
    assert built(machine("theirs", secret=b"another secret of theirs"))
    assert "not of the configured key" in warnings[1]
    assert len(warnings) == 2


def test_a_shared_directory(machine: Callable[..., EngineCache], tmp_path: Path, warnings: list[str]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    assert built(machine("one", str(shared)))
    assert not built(machine("two", f"file://{shared}"))
    assert warnings == [] and not list(shared.rglob("*.part"))
    for path in shared.rglob("*"):
        assert path.stat().st_mode & stat.S_IWGRP, path


def test_a_shared_directory_that_cannot_be_written(
    machine: Callable[..., EngineCache], tmp_path: Path, warnings: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert built(machine("one", str(tmp_path / "file" / "engines")))
    assert len(warnings) == 1 and "not used any more" in warnings[0]


@pytest.mark.parametrize("url", ["nosuchprotocol://bucket", "hdfs3://x"])
def test_a_url_that_nobody_knows_is_a_warning_in_a_build(
    machine: Callable[..., EngineCache], warnings: list[str], url: str
) -> None:
    assert built(machine("one", url))
    assert len(warnings) == 1 and url in warnings[0]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str, **named: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(CacheError, match="not installed") as caught:
        RemoteStore("s3://bucket")
    assert caught.value.fix == "pip install 'triton-repo-builder[s3]'"


def test_push_and_pull(tmp_path: Path) -> None:
    options = CacheOptions(tmp_path / "one", remote="nasty://engines")
    one, two = LocalStore(tmp_path / "one"), LocalStore(tmp_path / "two")
    one.prepare(), two.prepare()
    keys = []
    for name in "abc":
        record = stored(tmp_path / f"content-{name}", name)
        one.put(record, tmp_path / f"content-{name}")
        keys.append(record.key)
    assert push(one, options, keys[:1])["sent"] == keys[:1]
    result = push(one, options, [])
    assert (sorted(result["sent"]), result["there"], result["failed"]) == (sorted(keys[1:]), keys[:1], {})
    assert pull(two, options, [keys[0][:10]])["taken"] == keys[:1]
    result = pull(two, options, [])
    assert (sorted(result["taken"]), result["here"], result["failed"]) == (sorted(keys[1:]), keys[:1], {})
    assert two.stored_keys() == sorted(keys)
    with pytest.raises(CacheError, match="no engine"):
        pull(two, options, ["0123456789"])
    with pytest.raises(CacheError, match="no remote is given"):
        push(one, CacheOptions(tmp_path / "one"), [])


def test_push_and_pull_say_what_failed(tmp_path: Path) -> None:
    options = CacheOptions(tmp_path / "one", remote="nasty://engines")
    one = LocalStore(tmp_path / "one")
    one.prepare()
    record = stored(tmp_path / "content")
    one.put(record, tmp_path / "content")
    assert push(one, options, [])["sent"] == [record.key]
    for path in [p for p in Nasty.store if "objects" in p]:
        del Nasty.store[path]
    two = LocalStore(tmp_path / "two")
    two.prepare()
    result = pull(two, options, [])
    assert "is missing" in result["failed"][record.key] and two.stored_keys() == []
    Nasty.failures = 10**6
    with pytest.raises(CacheError, match="does not answer"):
        pull(two, options, [])
    assert "connection reset" in push(one, options, [])["failed"][record.key]


def test_a_process_ends_though_its_remote_hangs(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = f"""
import threading
from pathlib import Path
from tests.unit.test_remote import Nasty
from builder.cache.engine_cache import EngineCache
from builder.cache.options import CacheOptions
from tests.unit.engines import Build, request
Nasty.gate = threading.Event()
cache = EngineCache(CacheOptions(Path({str(tmp_path / "c")!r}), remote="nasty://x"), Path({str(tmp_path)!r}), print)
cache._remote._timeout = 0.2
cache.get_or_build(request(), Build())
cache.close()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "done", done.stderr
