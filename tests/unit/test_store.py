"""The engine cache: whole entries or none, checked at every read, shared by users and machines."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder import locks
from builder.cache import staging
from builder.cache.engine_cache import EngineCache
from builder.cache.options import CacheOptions
from builder.cache.record import Record, RecordError, SignatureError
from builder.cache.store import BadEntry, LocalStore
from tests.unit.engines import Build, request, stored

SECRET = b"0123456789abcdef"


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def opened(tmp_path: Path, work: Path, warnings: list[str]) -> Callable[..., EngineCache]:
    """Opens the cache as another build would."""

    def open_cache(**options: object) -> EngineCache:
        return EngineCache(CacheOptions(tmp_path / "cache", **options), work, warnings.append)  # type: ignore[arg-type]

    return open_cache


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    found = LocalStore(tmp_path / "cache")
    found.prepare()
    return found


def put(store: LocalStore, tmp_path: Path, name: str = "a", data: bytes = b"engine") -> str:
    content = tmp_path / f"content-{name}"
    record = stored(content, name, data)
    store.put(record, content)
    return record.key


def files(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


def engine_files(store: LocalStore) -> list[str]:
    return [n for n in files(store.directory) if not n.startswith("locks/")]


def test_miss_then_hit(opened: Callable[..., EngineCache], store: LocalStore) -> None:
    build = Build()
    first = opened().get_or_build(request(), build)
    second = opened().get_or_build(request(), build)
    assert (first.hit, second.hit, build.count) == (False, True, 1)
    assert (second.files / second.record.artifact).read_bytes() == b"engine"
    assert second.names == ("engine.bin", "parts/more.bin")
    assert second.record == first.record
    record = json.loads((store.path(first.key) / "entry.json").read_text())["record"]
    assert record["components"] == request().components
    assert record["files"]["files/engine.bin"]["size"] == 6
    (user,) = store.users(first.key)
    assert user["model"] == "net" and user["source"] == "nets.py:net"


def test_an_engine_is_unpacked_once_in_a_build(opened: Callable[..., EngineCache], store: LocalStore) -> None:
    build = Build()
    cache = opened()
    first = cache.get_or_build(request(), build)
    assert store.remove(first.key)
    second = cache.get_or_build(request(), build)
    assert second.hit and second.content == first.content and build.count == 1


def test_what_cannot_be_told_apart_is_not_kept(opened: Callable[..., EngineCache], store: LocalStore) -> None:
    build = Build()
    cache = opened()
    for _ in range(2):
        assert not cache.get_or_build(request(shareable=False), build).hit
    assert build.count == 2 and store.stored_keys() == []


@pytest.mark.parametrize(
    "damage", ["flip", "truncate", "extend", "remove", "record", "artifact", "escape", "other key"]
)
def test_damage_is_put_aside_and_built_again(
    opened: Callable[..., EngineCache], store: LocalStore, warnings: list[str], damage: str
) -> None:
    build = Build()
    key = opened().get_or_build(request(), build).key
    engine, entry = store.path(key) / "files" / "engine.bin", store.path(key) / "entry.json"
    record = json.loads(entry.read_text())
    if damage == "flip":
        engine.write_bytes(b"enginf")
    elif damage == "truncate":
        engine.write_bytes(b"eng")
    elif damage == "extend":
        engine.write_bytes(b"engine" * 1000)
    elif damage == "remove":
        engine.unlink()
    elif damage == "record":
        entry.write_text("{")
    else:
        if damage == "artifact":
            record["record"]["artifact"] = "another.bin"
        elif damage == "escape":
            record["record"]["files"]["files/../../../../etc/hostname"] = {"size": 1, "blake3": "00"}
        else:
            record["record"]["components"]["name"] = "b"
        entry.write_text(json.dumps(record))
    again = opened().get_or_build(request(), build)
    assert (again.hit, build.count) == (False, 2)
    assert (again.files / "engine.bin").read_bytes() == b"engine"
    assert len(warnings) == 1 and "put aside and is built again" in warnings[0]
    (place,) = (store.directory / "quarantine").iterdir()
    assert (place / "reason.txt").read_text().strip() in warnings[0]
    assert opened().get_or_build(request(), build).hit


def test_an_entry_without_a_record_is_replaced(opened: Callable[..., EngineCache], store: LocalStore) -> None:
    build = Build()
    key = opened().get_or_build(request(), build).key
    (store.path(key) / "entry.json").unlink()
    assert not opened().get_or_build(request(), build).hit
    assert opened().get_or_build(request(), build).hit
    assert (store.quarantined(), build.count) == (1, 2)


def test_a_rejected_engine_is_never_used_again(
    opened: Callable[..., EngineCache], store: LocalStore, warnings: list[str]
) -> None:
    opened().get_or_build(request(), Build(b"wrong"))
    cache = opened()
    entry = cache.get_or_build(request(), Build())
    assert entry.hit
    cache.reject(entry, "its outputs differ")
    assert "its outputs differ" in warnings[0]
    again = cache.get_or_build(request(), Build())
    assert not again.hit and (again.files / "engine.bin").read_bytes() == b"engine"
    assert opened().get_or_build(request(), Build()).hit


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_a_failed_build_leaves_nothing(
    opened: Callable[..., EngineCache], store: LocalStore, error: BaseException
) -> None:
    def fail(directory: Path) -> str:
        (directory / "half").write_bytes(b"x")
        raise error

    cache = opened()
    with pytest.raises(type(error)):
        cache.get_or_build(request(), fail)
    assert engine_files(store) == []
    assert not cache.get_or_build(request(), Build()).hit


def test_an_unusable_directory_builds_without_caching(tmp_path: Path, work: Path, warnings: list[str]) -> None:
    (tmp_path / "file").write_text("")
    build = Build()
    for _ in range(2):
        cache = EngineCache(CacheOptions(tmp_path / "file" / "cache"), work, warnings.append)
        entry = cache.get_or_build(request(), build)
        assert not entry.hit and (entry.files / "engine.bin").read_bytes() == b"engine"
        assert cache.get_or_build(request(), build).hit
    assert build.count == 2
    assert len(warnings) == 2 and all("nothing new is kept" in w for w in warnings)


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """As a user who owns nothing, since root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_store_still_gives(warnings: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        root, work = Path(place) / "cache", Path(place) / "work"
        work.mkdir()
        EngineCache(CacheOptions(root), work).get_or_build(request(), Build())
        work.chmod(0o777)
        for path in [root, *root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        Path(place).chmod(0o755)
        with without_rights():
            assert EngineCache(CacheOptions(root), work, warnings.append).get_or_build(request(), Build()).hit
            assert not EngineCache(CacheOptions(root), work, warnings.append).get_or_build(request("b"), Build()).hit
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755)
    assert len(warnings) == 2 and all("cannot be written" in w for w in warnings)


@pytest.mark.parametrize(("code", "word"), [(errno.ENOSPC, "is full"), (errno.EIO, "cannot be written")])
def test_a_store_that_cannot_be_written_to_warns_once(
    opened: Callable[..., EngineCache], monkeypatch: pytest.MonkeyPatch, warnings: list[str], code: int, word: str
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("builder.cache.store.copy_file", full)
    cache = opened()
    for name in "abc":
        entry = cache.get_or_build(request(name), Build())
        assert not entry.hit and (entry.files / "engine.bin").read_bytes() == b"engine"
    cache.close()
    assert len(warnings) == 1 and word in warnings[0]
    assert list((cache._options.directory / "staging").iterdir()) == []


def test_eight_builds_compile_once(tmp_path: Path, work: Path) -> None:
    build = Build()
    results = []

    def run() -> None:
        results.append(EngineCache(CacheOptions(tmp_path / "cache"), work).get_or_build(request(), build))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.count == 1
    assert sorted(r.hit for r in results) == [False] + [True] * 7


def test_without_working_locks_all_compile_and_nothing_breaks(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    """On some network file systems every lock is granted."""
    monkeypatch.setattr(locks.fcntl, "flock", lambda *arguments: None)
    together = threading.Barrier(8)
    results = []

    class Slow(Build):
        def __call__(self, directory: Path) -> str:
            together.wait(10)
            return super().__call__(directory)

    build = Slow()

    def run() -> None:
        cache = EngineCache(CacheOptions(tmp_path / "cache"), work, warnings.append)
        results.append(cache.get_or_build(request(), build))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.count == 8 and len(results) == 8
    assert all((r.files / "engine.bin").read_bytes() == b"engine" for r in results)
    assert warnings == []
    assert EngineCache(CacheOptions(tmp_path / "cache"), work).get_or_build(request(), Build()).hit


def test_where_locks_are_not_known_builds_go_on(
    opened: Callable[..., EngineCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    assert not opened().get_or_build(request(), Build()).hit
    assert opened().get_or_build(request(), Build()).hit


def test_a_holder_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    told = []
    with locks.exclusive(tmp_path / "lock", patience=1):
        started = time.monotonic()
        with locks.exclusive(tmp_path / "lock", patience=0.3, on_wait=lambda: told.append(1)):
            assert 0.3 <= time.monotonic() - started < 5
        with locks.unless_in_use(tmp_path / "lock") as free:
            assert not free
    with locks.unless_in_use(tmp_path / "lock") as free:
        assert free


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    held: list[bool] = []

    def wait() -> None:
        with locks.exclusive(lock, patience=10), locks.unless_in_use(lock) as free:
            held.append(not free)

    with locks.exclusive(lock, patience=1):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        lock.unlink()
    thread.join()
    assert held == [True]


def test_evicts_what_was_used_least_recently(store: LocalStore, tmp_path: Path) -> None:
    keys = {name: put(store, tmp_path, name) for name in "abcd"}
    for age, name in enumerate("dcba"):
        os.utime(store.path(keys[name]) / "entry.json", (time.time() - 1000 + age,) * 2)
    assert store.fetch(keys["d"], tmp_path / "out") is not None
    store.pin(keys["c"])
    size = next(store.entries()).record.size
    assert [e.key for e in store.shrink(2 * size)] == [keys["b"], keys["a"]]
    assert {e.key for e in store.entries()} == {keys["c"], keys["d"]}
    assert store.shrink(0) and store.stored_keys() == [keys["c"]]
    store.unpin(keys["c"])
    assert store.shrink(0) and store.stored_keys() == []
    assert engine_files(store) == []


def test_an_entry_being_read_is_not_evicted(store: LocalStore, tmp_path: Path) -> None:
    key = put(store, tmp_path)
    with locks.shared(store.lock(key), patience=1):
        assert store.shrink(0) == []
        assert not store.remove(key)
    assert [e.key for e in store.shrink(0)] == [key]


def test_a_clock_that_was_ahead_keeps_nothing_for_ever(store: LocalStore, tmp_path: Path) -> None:
    future, today = put(store, tmp_path, "a"), put(store, tmp_path, "b")
    ahead = time.time() + 365 * 24 * 3600
    os.utime(store.path(future) / "entry.json", (ahead, ahead))
    size = next(store.entries()).record.size
    store.shrink(10 * size)
    time.sleep(0.01)
    os.utime(store.path(today) / "entry.json")
    assert [e.key for e in store.shrink(size)] == [future]


def test_an_entry_evicted_while_it_is_read_is_a_miss(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where locks do nothing."""
    key = put(store, tmp_path)

    def vanish(source: Path, target: Path, **named: object) -> tuple[int, str]:
        source.parents[1].rename(tmp_path / "gone")
        raise FileNotFoundError(source)

    monkeypatch.setattr("builder.cache.store.copy_file", vanish)
    assert store.fetch(key, tmp_path / "out") is None
    assert store.quarantined() == 0


def test_a_cache_smaller_than_its_build_says_so(opened: Callable[..., EngineCache], warnings: list[str]) -> None:
    cache = opened(limit=10)
    cache.get_or_build(request(), Build())
    cache.close()
    assert len(warnings) == 1 and "TRITON_REPO_CACHE_SIZE" in warnings[0]
    assert not opened().get_or_build(request(), Build()).hit


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_is_respected(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = LocalStore(tmp_path / "cache")
        store.prepare()
        key = put(store, tmp_path)
    finally:
        os.umask(before)
    for path in [store.path(key), *store.path(key).rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_a_directory_of_a_group_is_writable_for_the_group(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o2770)
    before = os.umask(0o077)
    try:
        store = LocalStore(root)
        store.prepare()
        key = put(store, tmp_path)
        store.pin(key)
        store.used_by(key, {"model": "net"})
    finally:
        os.umask(before)
    made = [p for p in root.rglob("*") if "locks" not in p.parts]
    assert len(made) > 10
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o060 == 0o060 and mode & 0o007 == 0, path
        assert not path.is_dir() or mode & stat.S_ISGID, path


def test_what_killed_builds_left_is_removed(store: LocalStore) -> None:
    place = store.directory / "staging"
    permissions = staging.Permissions(store.directory)
    mine = staging.staging_directory(place, "mine", permissions)
    parts = mine.name.split(".")
    dead = place / ".".join(["dead", parts[1], str(_dead_process()), parts[3]])
    elsewhere = place / ".".join(["elsewhere", "0123456789ab", "1", parts[3]])
    old = place / ".".join(["old", "0123456789ab", "2", parts[3]])
    for path in (dead, elsewhere, old):
        path.mkdir()
        (path / "half").write_text("x")
    os.utime(old, (time.time() - 3 * 24 * 3600,) * 2)
    staging.remove_left_over(place)
    assert {p.name for p in place.iterdir()} == {mine.name, elsewhere.name}


def _dead_process() -> int:
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return process


def test_locks_without_an_entry_are_tidied(store: LocalStore, tmp_path: Path) -> None:
    key = put(store, tmp_path)
    for name in (key, "f" * 64, "e" * 64):
        store.lock(name).touch()
    with locks.exclusive(store.lock("e" * 64), patience=1):
        store.tidy()
    assert {p.name for p in (store.directory / "locks").iterdir()} == {f"{key}.lock", f"{'e' * 64}.lock"}


class TestSignatures:
    def test_round_trip(self, tmp_path: Path) -> None:
        record = stored(tmp_path / "c", fixed=({"name": "c0", "shape": [2]},), versions={"torch": "2.13"})
        for secret in (None, SECRET):
            again = Record.parse(record.to_bytes(secret), record.key, secret)
            assert again.to_bytes(secret) == record.to_bytes(secret)
            assert again.size == 18

    def test_unsigned_is_refused(self, tmp_path: Path) -> None:
        record = stored(tmp_path / "c")
        with pytest.raises(SignatureError, match="not signed"):
            Record.parse(record.to_bytes(None), record.key, SECRET)

    def test_another_key_is_refused(self, tmp_path: Path) -> None:
        record = stored(tmp_path / "c")
        with pytest.raises(SignatureError, match="not of the configured key"):
            Record.parse(record.to_bytes(b"another key of ours"), record.key, SECRET)

    @pytest.mark.parametrize("field", ["artifact", "blake3", "size", "components", "refit"])
    def test_any_change_breaks_it(self, tmp_path: Path, field: str) -> None:
        record = stored(tmp_path / "c")
        document = json.loads(record.to_bytes(SECRET))
        inner = document["record"]
        if field in ("blake3", "size"):
            inner["files"]["files/engine.bin"][field] = {"blake3": "0" * 64, "size": 7}[field]
        else:
            inner[field] = {"artifact": "parts/more.bin", "components": {}, "refit": "other"}[field]
        with pytest.raises(SignatureError):
            Record.parse(json.dumps(document).encode(), record.key, SECRET)

    def test_signed_is_taken_without_a_key(self, tmp_path: Path) -> None:
        record = stored(tmp_path / "c")
        assert Record.parse(record.to_bytes(SECRET), record.key, None) == record

    def test_an_unsigned_engine_is_built_again_and_signed(
        self, opened: Callable[..., EngineCache], warnings: list[str]
    ) -> None:
        opened().get_or_build(request(), Build(b"evil"))
        entry = opened(secret=SECRET).get_or_build(request(), Build())
        assert not entry.hit and (entry.files / "engine.bin").read_bytes() == b"engine"
        assert "not signed" in warnings[0]
        assert opened(secret=SECRET).get_or_build(request(), Build()).hit

    def test_a_record_of_another_version_is_no_entry(self, tmp_path: Path) -> None:
        record = stored(tmp_path / "c")
        document = json.loads(record.to_bytes(None))
        document["record"]["schema"] = 1
        with pytest.raises(RecordError, match="another version"):
            Record.parse(json.dumps(document).encode(), record.key, None)


def test_a_bad_entry_that_cannot_be_put_aside_is_not_used(
    opened: Callable[..., EngineCache], store: LocalStore, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    key = opened().get_or_build(request(), Build()).key
    (store.path(key) / "files" / "engine.bin").write_bytes(b"enginf")
    monkeypatch.setattr(LocalStore, "quarantine", lambda self, key, reason: False)
    entry = opened().get_or_build(request(), Build())
    assert not entry.hit and (entry.files / "engine.bin").read_bytes() == b"engine"
    with pytest.raises(BadEntry):
        store.fetch(key, opened()._directory())


@pytest.fixture(autouse=True)
def no_umask_left() -> Iterator[None]:
    before = os.umask(0o022)
    os.umask(before)
    yield
    assert os.umask(before) == before


@pytest.mark.parametrize("name", ["/etc/x", "../x", "files/../../x", "files//x", "./x", "files/.", "", "a\\b", "a\0b"])
def test_a_name_that_leads_out_of_the_entry_is_refused(tmp_path: Path, name: str) -> None:
    record = stored(tmp_path / "c")
    document = json.loads(record.to_bytes(None))
    document["record"]["files"][name] = {"size": 1, "blake3": "00"}
    with pytest.raises(RecordError, match="leads out of the entry"):
        Record.parse(json.dumps(document).encode(), record.key, None)
