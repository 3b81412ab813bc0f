"""The local store: a directory of entries named by their key, each written once and never changed.

CACHE/
  engines/ab/ab12.../
    entry.json       the record: components of the key, checksums, settings; its time is that of the last use
    graph.txt        the segment's graph, for people
    details.json     settings that are in the key by digest only
    files/...        what the compiler wrote
    users/....json   the models that use it
  pins/              names of entries that are never evicted
  locks/             one file per key
  staging/           entries being written, or thrown away
  quarantine/        entries that were not what they should be, each with a reason
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import locks
from builder.cache.key import EngineKey
from builder.cache.record import ENTRY_FILE, Record, RecordError, is_key
from builder.cache.staging import (
    Permissions,
    copy_file,
    remove_left_over,
    staging_directory,
    sync_tree,
    write_file,
)
from builder.files import sync_path

__all__ = ["BadEntry", "LocalStore", "StoredEntry"]

_USERS = "users"

# Seconds. A reader or an evictor holds an entry's lock for as long as copying takes.
_READ_PATIENCE = 60.0
_QUARANTINE_AGE = 7 * 24 * 3600


class BadEntry(Exception):
    """An entry was there, and is not what it should be; the text says why. It has been put aside."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry in a listing; times in seconds since 1970, size in bytes."""

    key: EngineKey
    record: Record
    last_used: float
    pinned: bool


class LocalStore:
    """Entries in a directory that several processes, users and machines may share.

    Args:
        directory: made when it is first written to.
        secret: signs what is written, and must have signed what is read.
    """

    def __init__(self, directory: Path, secret: bytes | None = None) -> None:
        self.directory = directory
        self.secret = secret

    def prepare(self) -> None:
        """Make the directories, check that they can be written to, and clean up after builds that were killed.

        Raises:
            OSError: when they cannot.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in ("engines", "locks", "pins", "staging", "quarantine"):
            self._permissions().make_directory(self.directory / name)
        staging_directory(self.directory / "staging", "probe", self._permissions()).rmdir()
        remove_left_over(self.directory / "staging")

    def _permissions(self) -> Permissions:
        return Permissions(self.directory)

    def path(self, key: EngineKey) -> Path:
        """Where an entry is, or would be."""
        return self.directory / "engines" / key[:2] / key

    def lock(self, key: EngineKey) -> Path:
        """The file of an entry's lock."""
        return self.directory / "locks" / f"{key}.lock"

    def has(self, key: EngineKey) -> bool:
        """Whether there is an entry, good or bad."""
        return (self.path(key) / ENTRY_FILE).exists()

    def read(self, key: EngineKey) -> Record | None:
        """The record of an entry, without a look at its files.

        Raises:
            RecordError: when it is not what it should be.
        """
        try:
            return Record.parse((self.path(key) / ENTRY_FILE).read_bytes(), key, self.secret)
        except FileNotFoundError:
            return None

    def fetch(self, key: EngineKey, into: Path, *, touch: bool = True, locked: bool = False) -> Record | None:
        """Copy an entry's files into an empty directory, checking the bytes that are copied.

        What was checked is what is used: nobody can change, evict or replace it afterwards.

        Args:
            touch: whether this counts as a use.
            locked: whether the caller holds the entry's lock.
        Returns: None when there is no such entry.
        Raises:
            BadEntry: when a checksum does not hold or the record is wrong.
            OSError: when it cannot be read or copied.
        """
        if not self.has(key):
            return None
        lock = contextlib.nullcontext() if locked else locks.shared(self.lock(key), patience=_READ_PATIENCE)
        with lock:
            try:
                record = self.read(key)
                if record is None:
                    return None
                self._copy(key, record, into)
            except (RecordError, BadEntry) as error:
                reason = str(error)
            except FileNotFoundError:
                # Evicted meanwhile, where locks do nothing.
                if not self.has(key):
                    return None
                reason = "a file of it is missing"
            else:
                if touch:
                    with contextlib.suppress(OSError):
                        # Without a time of ours, a file server uses its own clock.
                        os.utime(self.path(key) / ENTRY_FILE)
                return record
        self.quarantine(key, reason)
        raise BadEntry(reason)

    def _copy(self, key: EngineKey, record: Record, into: Path) -> None:
        for name, info in record.files.items():
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            found = copy_file(self.path(key) / name, target, limit=info.size)
            if found != (info.size, info.blake3):
                raise BadEntry(f"the checksum of {name} does not hold")

    def put(self, record: Record, content: Path) -> None:
        """Store an entry; either all of it is there afterwards or nothing.

        Args:
            record: with the checksums of the files.
            content: the directory that holds the files, under the names that the record has.
        Raises:
            OSError: when it cannot be written.
        """
        permissions = self._permissions()
        staging = staging_directory(self.directory / "staging", record.key[:16], permissions)
        try:
            for name in record.files:
                permissions.make_directory((staging / name).parent)
                copy_file(content / name, staging / name)
                permissions.open_to_group(staging / name)
            write_file(staging / ENTRY_FILE, record.to_bytes(self.secret))
            permissions.open_to_group(staging / ENTRY_FILE)
            permissions.make_directory(staging / _USERS)
            sync_tree(staging)
            final = self.path(record.key)
            permissions.make_directory(final.parent)
            self._rename(staging, final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _rename(self, staging: Path, final: Path) -> None:
        try:
            staging.rename(final)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if self.has(final.name):
                # Another build came first; its entry is as good.
                return
            self.quarantine(final.name, "it has no record")
            staging.rename(final)
        sync_path(final.parent)
        sync_path(final.parent.parent)

    def quarantine(self, key: EngineKey, reason: str) -> bool:
        """Put an entry aside, so that it is never read again; gives whether it could be."""
        place = self.directory / "quarantine" / f"{key}.{secrets.token_hex(4)}"
        try:
            self.path(key).rename(place)
        except OSError:
            return not self.has(key)
        with contextlib.suppress(OSError):
            (place / "reason.txt").write_text(reason + "\n", encoding="utf-8")
        return True

    def quarantined(self) -> int:
        """How many entries were put aside."""
        with contextlib.suppress(OSError):
            return sum(1 for _ in (self.directory / "quarantine").iterdir())
        return 0

    def used_by(self, key: EngineKey, user: Mapping[str, Any]) -> None:
        """Note who uses an entry. Says nothing where that cannot be written."""
        name = hashlib.sha256(f"{user.get('model')} {user.get('source')} {user.get('user')}".encode()).hexdigest()[:16]
        directory = self.path(key) / _USERS
        part = directory / f".{name}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):
            part.write_text(json.dumps(dict(user)) + "\n", encoding="utf-8")
            self._permissions().open_to_group(part)
            part.replace(directory / f"{name}.json")

    def users(self, key: EngineKey) -> list[dict[str, Any]]:
        """The models that use an entry, the latest first."""
        found = []
        for path in (self.path(key) / _USERS).glob("[!.]*.json"):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text(encoding="utf-8")))
        return sorted(found, key=lambda u: str(u.get("last_used", "")), reverse=True)

    def text(self, key: EngineKey, name: str) -> str:
        """A readable file of an entry; empty if it has none of that name."""
        try:
            return (self.path(key) / name).read_text(encoding="utf-8")
        except OSError:
            return ""

    def stored_keys(self) -> list[EngineKey]:
        """The key of every entry, sorted."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.directory / "engines") as shards:
            for shard in shards:
                with contextlib.suppress(OSError):
                    found += [name for name in os.listdir(shard.path) if is_key(name)]  # noqa: PTH208
        return sorted(found)

    def entries(self) -> Iterator[StoredEntry]:
        """Every entry whose record is right, by key."""
        pinned = self.pins()
        # Signatures are checked where an engine is used; a listing shows all there is.
        for key in self.stored_keys():
            # Thousands of `Path`s would take longer than reading the files.
            path = f"{self.directory}/engines/{key[:2]}/{key}/{ENTRY_FILE}"
            with contextlib.suppress(OSError, RecordError):
                with open(path, "rb") as file:  # noqa: PTH123
                    record = Record.parse(file.read(), key, None, quick=True)
                    used = os.fstat(file.fileno()).st_mtime
                yield StoredEntry(key, record, used, key in pinned)

    def pins(self) -> set[EngineKey]:
        """Keys of pinned entries."""
        with contextlib.suppress(OSError):
            return {p.name for p in (self.directory / "pins").iterdir()}
        return set()

    def pin(self, key: EngineKey) -> None:
        """Keep an entry whatever the store's size."""
        path = self.directory / "pins" / key
        path.touch()
        self._permissions().open_to_group(path)

    def unpin(self, key: EngineKey) -> None:
        """Let an entry be evicted again."""
        (self.directory / "pins" / key).unlink(missing_ok=True)

    def remove(self, key: EngineKey) -> bool:
        """Remove an entry that nobody is using now; gives whether it is gone."""
        with locks.unless_in_use(self.lock(key)) as free:
            if not free:
                return False
            staging = staging_directory(self.directory / "staging", "removed", self._permissions())
            try:
                self.path(key).rename(staging / "entry")
                self.unpin(key)
                self.lock(key).unlink(missing_ok=True)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        return True

    def shrink(self, limit: int) -> list[StoredEntry]:
        """Evict what was used least recently until the store is within a limit in bytes.

        Pinned entries and entries in use stay. Returns what went.
        """
        now = time.time()
        entries = [self._aged(e, now) for e in self.entries()]
        total = sum(e.record.size for e in entries)
        gone = []
        for entry in sorted(entries, key=lambda e: e.last_used):
            if total <= limit:
                break
            if not entry.pinned and self.remove(entry.key):
                total -= entry.record.size
                gone.append(entry)
        return gone

    def _aged(self, entry: StoredEntry, now: float) -> StoredEntry:
        """An entry whose time a wrong clock has put into the future would be the last to go, for ever."""
        if entry.last_used > now + 60:
            with contextlib.suppress(OSError):
                os.utime(self.path(entry.key) / ENTRY_FILE)
        return entry

    def tidy(self) -> None:
        """Remove old quarantine, what killed builds left, and locks without an entry."""
        with contextlib.suppress(OSError):
            remove_left_over(self.directory / "staging")
        for path in _children(self.directory / "quarantine"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _QUARANTINE_AGE:
                    shutil.rmtree(path, ignore_errors=True)
        for path in _children(self.directory / "locks"):
            key = path.name.removesuffix(".lock")
            if not self.has(key):
                with locks.unless_in_use(path) as free:
                    if free and not self.has(key):
                        path.unlink(missing_ok=True)


def _children(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(directory.iterdir())
    return []
