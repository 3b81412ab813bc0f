"""The local engine cache: a directory of entries named by their key, each written once and never changed.

CACHE/
  engines/ab/ab12.../
    entry.json     components of the key, checksums and sizes of the files, when and how long it took
    files/...      what the compiler wrote
  staging/         entries being written; renamed into place when complete
  quarantine/      entries whose checksums did not hold
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from builder.cache.key import EngineKey
from builder.files import file_digest, sync_path

__all__ = ["EngineCache", "Entry", "cache_directory"]

_ENTRY = "entry.json"
_FILES = "files"


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine in the cache.

    Args:
        key: of the engine.
        artifact: the file, below `files`, that the runner opens.
        files: the directory of the compiler's files.
        digests: sha256 of each file, relative to `files`.
        components: what the key was made of.
        build_seconds: what compiling it took.
        hit: whether it was there already.
    """

    key: EngineKey
    artifact: str
    files: Path
    digests: Mapping[str, str]
    components: Mapping[str, Any]
    build_seconds: float
    hit: bool

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum((self.files / name).stat().st_size for name in self.digests)


def cache_directory(chosen: Path | None = None) -> Path:
    """The directory asked for, else `TRITON_REPO_CACHE`, else the platform's cache directory."""
    if chosen is not None:
        return chosen
    if configured := os.environ.get("TRITON_REPO_CACHE"):
        return Path(configured).expanduser()
    return Path(platformdirs.user_cache_dir("triton-repo-builder"))


class EngineCache:
    """Engines by content. Where the directory cannot be used, engines are built and not kept.

    Args:
        directory: made when first written to.
        on_warning: called with one sentence when the cache cannot be used, or an entry was bad.
    """

    def __init__(self, directory: Path, on_warning: Callable[[str], None] = lambda text: None) -> None:
        self.directory = directory
        self._warn = on_warning
        self._usable: bool | None = None

    def get_or_build(
        self, key: EngineKey, components: Mapping[str, Any], build: Callable[[Path], str], work: Path
    ) -> Entry:
        """The entry of a key; compiled and stored when it is not there.

        Args:
            key, components: from `builder.cache.key`.
            build: writes the engine into an empty directory, returns the name of its main file.
            work: where to build when the cache cannot be used.
        """
        if not self._is_usable():
            return self._build(key, components, build, Path(tempfile.mkdtemp(dir=work)))
        found = self._read(key)
        if found is not None:
            return found
        # The lock only saves work: a store without one is still right, since entries are renamed into place.
        with self._locked(key):
            found = self._read(key)
            if found is not None:
                return found
            staging = Path(tempfile.mkdtemp(dir=self.directory / "staging", prefix=f"{key[:16]}."))
            try:
                return self._store(self._build(key, components, build, staging), staging, work)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._usable = False
                self._warn(f"the engine cache {self.directory} is full, so nothing more is cached")
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        return self._build(key, components, build, Path(tempfile.mkdtemp(dir=work)))

    def _build(
        self, key: EngineKey, components: Mapping[str, Any], build: Callable[[Path], str], directory: Path
    ) -> Entry:
        files = directory / _FILES
        files.mkdir()
        started = time.monotonic()
        artifact = build(files)
        seconds = time.monotonic() - started
        digests = {p.relative_to(files).as_posix(): file_digest(p) for p in sorted(files.rglob("*")) if p.is_file()}
        return Entry(key, artifact, files, digests, components, seconds, hit=False)

    def _store(self, entry: Entry, staging: Path, work: Path) -> Entry:
        try:
            record = {
                "key": entry.key,
                "artifact": entry.artifact,
                "files": {n: {"sha256": d, "size": (entry.files / n).stat().st_size} for n, d in entry.digests.items()},
                "components": entry.components,
                "build_seconds": round(entry.build_seconds, 3),
                "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            }
            (staging / _ENTRY).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            _sync_tree(staging)
            final = self._path(entry.key)
            final.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                # Another build may have come first; its entry is as good.
                staging.rename(final)
                sync_path(final.parent)
            if (final / _ENTRY).exists():
                return dataclasses.replace(entry, files=final / _FILES)
        except OSError as error:
            self._warn(f"the engine could not be kept in the cache {self.directory}: {error.strerror or error}")
        kept = Path(tempfile.mkdtemp(dir=work)) / _FILES
        shutil.copytree(entry.files, kept)
        return dataclasses.replace(entry, files=kept)

    def _path(self, key: EngineKey) -> Path:
        return self.directory / "engines" / key[:2] / key

    def _read(self, key: EngineKey) -> Entry | None:
        """The entry of a key if its checksums hold; a bad one is put aside."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            record = json.loads((path / _ENTRY).read_text(encoding="utf-8"))
            digests = {name: file["sha256"] for name, file in record["files"].items()}
            bad = [name for name, digest in digests.items() if file_digest(path / _FILES / name) != digest]
            if not bad and record["artifact"] in digests:
                return Entry(
                    key,
                    record["artifact"],
                    path / _FILES,
                    digests,
                    record["components"],
                    record["build_seconds"],
                    hit=True,
                )
            reason = f"the checksum of {', '.join(bad)} does not hold" if bad else "its engine is missing"
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"it cannot be read: {error}"
        self._quarantine(path, reason)
        return None

    def _quarantine(self, path: Path, reason: str) -> None:
        self._warn(f"the cached engine {path.name[:12]} was put aside and is built again: {reason}")
        place = self.directory / "quarantine"
        with contextlib.suppress(OSError):
            place.mkdir(exist_ok=True)
            path.rename(Path(tempfile.mkdtemp(dir=place, prefix=f"{path.name[:16]}.")) / "entry")
            return
        shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self, key: EngineKey) -> Iterator[None]:
        lock = FileLock(self.directory / "staging" / f"{key}.lock")
        try:
            lock.acquire()
        except (OSError, NotImplementedError):
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _is_usable(self) -> bool:
        if self._usable is None:
            self._usable = True
            try:
                (self.directory / "staging").mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.directory / "staging"):
                    pass
            except OSError as error:
                self._usable = False
                self._warn(
                    f"the engine cache {self.directory} cannot be used, so nothing is cached: {error.strerror or error}"
                )
        return self._usable


def _sync_tree(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        sync_path(path)
