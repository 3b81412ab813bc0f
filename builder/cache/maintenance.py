"""What a person does with a cache: look at it, check it, shrink it, and exchange engines with a remote."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from builder.cache.engine_cache import DETAILS, GRAPH_TEXT
from builder.cache.key import EngineKey
from builder.cache.options import CacheOptions
from builder.cache.record import RecordError
from builder.cache.remote import RemoteStore
from builder.cache.store import BadEntry, LocalStore, StoredEntry
from builder.errors import CacheError

__all__ = [
    "clear",
    "collect",
    "find_key",
    "listing",
    "open_store",
    "pull",
    "push",
    "set_pin",
    "show",
    "verify",
]

_PARALLEL = 8


def open_store(options: CacheOptions, *, write: bool = False) -> LocalStore:
    """The local store.

    Args:
        write: whether it will be changed.
    Raises:
        CacheError: when it cannot be written to, and that is asked.
    """
    store = LocalStore(options.directory, options.secret)
    if write:
        with _writing(store):
            store.prepare()
    return store


@contextlib.contextmanager
def _writing(store: LocalStore) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"the engine cache cannot be written: {error.strerror or error}",
            where=str(store.directory),
            fix="choose a directory that you may write to with --cache",
        ) from None


def find_key(store: LocalStore, text: str) -> EngineKey:
    """The key that begins with a text.

    Raises:
        CacheError: when none does, or several do.
    """
    found = [key for key in store.stored_keys() if key.startswith(text.lower())] if text else []
    if len(found) == 1:
        return found[0]
    raise CacheError(
        f"{len(found) or 'no'} engines have a key that begins with {text!r}",
        where=str(store.directory),
        fix="give more of the key" if found else "list the keys with: triton-repo cache ls",
    )


def listing(store: LocalStore) -> list[dict[str, Any]]:
    """Every engine, the one used last first, as JSON values."""
    entries = sorted(store.entries(), key=lambda e: (-e.last_used, e.key))
    return [_summary(e) for e in entries]


def _summary(entry: StoredEntry) -> dict[str, Any]:
    record = entry.record
    return {
        "key": entry.key,
        "compiler": record.compiler,
        "target": dict(record.components.get("target", {})),
        "refit": record.refit,
        "size": record.size,
        "build_seconds": record.build_seconds,
        "created": record.created,
        "last_used": _iso(entry.last_used),
        "pinned": entry.pinned,
    }


def show(store: LocalStore, key: EngineKey) -> dict[str, Any]:
    """Everything that is known of an engine, as JSON values.

    Raises:
        CacheError: when its record is not what it should be.
    """
    try:
        record = store.read(key)
        used = (store.path(key) / "entry.json").stat().st_mtime
    except (RecordError, OSError) as error:
        raise CacheError(
            f"the engine {key[:12]} cannot be read: {error}", where=str(store.path(key)), fix="triton-repo cache verify"
        ) from None
    assert record is not None
    details = store.text(key, DETAILS)
    return {
        **json.loads(json.dumps(dataclasses.asdict(record))),
        "size": record.size,
        "last_used": _iso(used),
        "pinned": key in store.pins(),
        "users": store.users(key),
        "path": str(store.path(key)),
        "graph": store.text(key, GRAPH_TEXT),
        "details": json.loads(details) if details else {},
    }


def verify(store: LocalStore, on_entry: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Check every file of every engine; what is not as it should be goes to the quarantine.

    Returns: how many were checked, and {key: reason} of the bad ones.
    """
    keys = store.stored_keys()
    bad = {}
    for index, key in enumerate(keys):
        on_entry(index, len(keys))
        with tempfile.TemporaryDirectory(prefix="triton-repo-") as work:
            try:
                store.fetch(key, Path(work), touch=False)
            except BadEntry as error:
                bad[key] = str(error)
            except OSError as error:
                bad[key] = f"it cannot be read: {error.strerror or error}"
    return {"checked": len(keys), "bad": bad}


def collect(store: LocalStore, limit: int) -> dict[str, Any]:
    """Shrink a store to a limit in bytes, and clean up after builds that were killed."""
    gone = store.shrink(limit)
    store.tidy()
    left = list(store.entries())
    return {
        "removed": [e.key for e in gone],
        "freed": sum(e.record.size for e in gone),
        "entries": len(left),
        "size": sum(e.record.size for e in left),
        "limit": limit,
    }


def clear(store: LocalStore, *, pinned: bool) -> dict[str, Any]:
    """Remove every engine but those in use, and, unless told otherwise, the pinned ones."""
    kept = set() if pinned else store.pins()
    removed = [key for key in store.stored_keys() if key not in kept and store.remove(key)]
    shutil.rmtree(store.directory / "quarantine", ignore_errors=True)
    store.prepare()
    store.tidy()
    return {"removed": removed, "kept": store.stored_keys()}


def set_pin(store: LocalStore, keys: Sequence[EngineKey], pinned: bool) -> None:
    """Pin engines, or let them be evicted again.

    Raises:
        CacheError: when the cache cannot be written.
    """
    with _writing(store):
        for key in keys:
            if pinned:
                store.pin(key)
            else:
                store.unpin(key)


def push(store: LocalStore, options: CacheOptions, keys: Sequence[EngineKey]) -> dict[str, Any]:
    """Send engines to the remote.

    Returns: keys that were sent, keys that were there, and {key: reason} of those that failed.
    Raises:
        CacheError: when no remote is given, or it cannot be used.
    """
    remote = _remote(options)
    sent: list[EngineKey] = []
    there: list[EngineKey] = []
    failed: dict[EngineKey, str] = {}

    def send(key: EngineKey) -> tuple[EngineKey, bool | str]:
        try:
            with tempfile.TemporaryDirectory(prefix="triton-repo-") as work:
                record = store.fetch(key, Path(work), touch=False)
                return key, record is not None and remote.upload(record, Path(work))
        except Exception as error:
            return key, " ".join(str(error).split()) or type(error).__name__

    with ThreadPoolExecutor(_PARALLEL) as pool:
        for key, result in pool.map(send, keys or store.stored_keys()):
            if isinstance(result, str):
                failed[key] = result
            else:
                (sent if result else there).append(key)
    return {"remote": remote.url, "sent": sent, "there": there, "failed": failed}


def pull(store: LocalStore, options: CacheOptions, keys: Sequence[str]) -> dict[str, Any]:
    """Take engines from the remote: those whose keys begin with one of `keys`, or all.

    Returns: keys that were taken, keys that were here, and {key: reason} of those that failed.
    Raises:
        CacheError: when no remote is given, it cannot be used, or has no such engine.
    """
    said: list[str] = []
    remote = _remote(options, said.append)
    available = remote.stored_keys()
    wanted = [k for k in available if not keys or any(k.startswith(text.lower()) for text in keys)]
    missing = [text for text in keys if not any(k.startswith(text.lower()) for k in available)]
    if missing:
        raise CacheError(f"the remote has no engine {missing[0]!r}", where=remote.url)
    taken: list[EngineKey] = []
    here: list[EngineKey] = []
    failed: dict[EngineKey, str] = {}

    def take(key: EngineKey) -> tuple[EngineKey, bool | str]:
        if store.has(key):
            return key, False
        try:
            with tempfile.TemporaryDirectory(prefix="triton-repo-") as work:
                record = remote.fetch(key, Path(work))
                if record is None:
                    return key, next((s for s in said if key[:12] in s), said[-1] if said else "it is not there")
                store.put(record, Path(work))
                return key, True
        except OSError as error:
            return key, str(error.strerror or error)

    with ThreadPoolExecutor(_PARALLEL) as pool:
        for key, result in pool.map(take, wanted):
            if isinstance(result, str):
                failed[key] = result
            else:
                (taken if result else here).append(key)
    return {"remote": remote.url, "taken": taken, "here": here, "failed": failed}


def _remote(options: CacheOptions, on_warning: Callable[[str], None] = lambda text: None) -> RemoteStore:
    if options.remote is None:
        raise CacheError("no remote is given", fix="name one with --remote URL, or in TRITON_REPO_REMOTE")
    return RemoteStore(options.remote, secret=options.secret, on_warning=on_warning)


def _iso(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")
