"""The engine cache as a build sees it: an engine for a key, from wherever it comes quickest.

Engines are compiled and unpacked in the build's own work directory, so that nothing that happens to a
shared store, a remote or another build can change one that is in use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import getpass
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder import locks
from builder.cache.key import EngineKey
from builder.cache.options import CacheOptions
from builder.cache.record import FILES, FileInfo, Record
from builder.cache.remote import RemoteStore
from builder.cache.store import BadEntry, LocalStore
from builder.errors import CacheError
from builder.hashing import file_digest

__all__ = ["DETAILS", "GRAPH_TEXT", "EngineCache", "EngineRequest", "Entry"]

GRAPH_TEXT = "graph.txt"
DETAILS = "details.json"

# Seconds: longer than any engine compiles. Then the other build is taken for hung.
_PATIENCE = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What a build wants an engine for.

    Args:
        key, components: from `builder.cache.key`.
        texts: readable files to keep beside the engine, by name.
        refit, fixed: of the fingerprint.
        settings, versions: of the build.
        user: who asks: model, source and segment.
        shareable: whether another build may take the engine; if not, it is not kept.
    """

    key: EngineKey
    components: Mapping[str, Any]
    texts: Mapping[str, str] = field(default_factory=dict)
    refit: str = "none"
    fixed: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    user: Mapping[str, Any] = field(default_factory=dict)
    shareable: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine, in this build's own directory.

    Args:
        record: what is known of it.
        content: the directory with everything that was kept.
        hit: whether it was there already.
    """

    record: Record
    content: Path
    hit: bool

    @property
    def key(self) -> EngineKey:
        return self.record.key

    @property
    def files(self) -> Path:
        """The directory that the compiler wrote."""
        return self.content / FILES

    @property
    def names(self) -> tuple[str, ...]:
        """The compiler's files, relative to `files`."""
        return tuple(n.removeprefix(f"{FILES}/") for n in self.record.files if n.startswith(f"{FILES}/"))


class EngineCache:
    """Engines by content: of this build, of the local store, of the remote; else compiled.

    Where a store cannot be used, engines are compiled and not kept, with one warning.

    Args:
        options: which stores.
        work: an existing directory that stays until `close`.
        on_warning, on_note: called with one sentence.
    """

    def __init__(
        self,
        options: CacheOptions,
        work: Path,
        on_warning: Callable[[str], None] = lambda text: None,
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._options = options
        self._work = work
        self._warn = on_warning
        self._note = on_note
        self._local = LocalStore(options.directory, options.secret)
        self._keeps = self._usable()
        # The remote may speak from another thread; what it says waits for a call from ours.
        self._unsaid: list[str] = []
        self._remote = self._connect()
        self._held: dict[EngineKey, Entry] = {}
        self._rejected: set[EngineKey] = set()
        self._stored = False

    def get_or_build(self, request: EngineRequest, build: Callable[[Path], str]) -> Entry:
        """The engine of a key; compiled, and kept for others, when nobody has it.

        Args:
            request: what for.
            build: writes the engine into an empty directory, returns the name of its main file.
        """
        if not request.shareable:
            return self._build(request, build)
        if request.key in self._held:
            return dataclasses.replace(self._held[request.key], hit=True)
        entry = self._found_here(request)
        if entry is None:
            with self._alone(request):
                entry = self._found_here(request, locked=self._keeps) or self._found_there(request)
                if entry is None:
                    entry = self._build(request, build)
                    self._keep(entry)
                    if self._remote is not None:
                        self._remote.send(entry.record, entry.content)
        self._held[request.key] = entry
        if self._keeps:
            self._local.used_by(request.key, {**request.user, "user": _user(), "last_used": _now()})
        return entry

    def reject(self, entry: Entry, reason: str) -> None:
        """Never use an entry again, here or in another build: it was not what it should be."""
        self._warn(f"the cached engine {entry.key[:12]} was put aside and is built again: {reason}")
        self._held.pop(entry.key, None)
        self._rejected.add(entry.key)
        self._local.quarantine(entry.key, reason)
        if self._remote is not None:
            self._remote.reject(entry.key)

    def close(self) -> None:
        """Finish sending, and bring the local store within its limit."""
        if self._remote is not None:
            self._remote.finish()
            self._pass_on()
        if self._stored:
            gone = self._local.shrink(self._options.limit)
            self._local.tidy()
            if any(e.key in self._held for e in gone):
                self._warn(
                    f"the engines of this build do not fit into the cache's limit of {self._options.limit >> 20} MiB; "
                    "raise it with TRITON_REPO_CACHE_SIZE"
                )

    def _usable(self) -> bool:
        try:
            self._local.prepare()
        except OSError as error:
            self._warn(
                f"the engine cache {self._options.directory} cannot be written, so nothing new is kept there: "
                f"{error.strerror or error}"
            )
            return False
        return True

    def _connect(self) -> RemoteStore | None:
        if self._options.remote is None:
            return None
        try:
            return RemoteStore(
                self._options.remote,
                readonly=self._options.readonly,
                secret=self._options.secret,
                on_warning=self._unsaid.append,
            )
        except CacheError as error:
            self._warn(f"{error.what} ({error.fix})")
            return None

    def _found_here(self, request: EngineRequest, *, locked: bool = False) -> Entry | None:
        if request.key in self._rejected:
            return None
        content = self._directory()
        try:
            record = self._local.fetch(request.key, content, locked=locked)
        except BadEntry as error:
            self._warn(f"the cached engine {request.key[:12]} was put aside and is built again: {error}")
            return None
        except OSError as error:
            self._warn(f"the cached engine {request.key[:12]} cannot be read and is built again: {error}")
            return None
        return None if record is None else Entry(record, content, hit=True)

    def _found_there(self, request: EngineRequest) -> Entry | None:
        if self._remote is None or request.key in self._rejected:
            return None
        content = self._directory()
        record = self._remote.fetch(request.key, content)
        self._pass_on()
        if record is None:
            return None
        entry = Entry(record, content, hit=True)
        self._keep(entry)
        return entry

    def _build(self, request: EngineRequest, build: Callable[[Path], str]) -> Entry:
        content = self._directory()
        (content / FILES).mkdir()
        started = time.monotonic()
        artifact = build(content / FILES)
        seconds = time.monotonic() - started
        for name, text in request.texts.items():
            (content / name).write_text(text, encoding="utf-8")
        record = Record(
            key=request.key,
            components=request.components,
            artifact=artifact,
            files={
                p.relative_to(content).as_posix(): FileInfo(p.stat().st_size, file_digest(p))
                for p in sorted(content.rglob("*"))
                if p.is_file()
            },
            refit=request.refit,
            fixed=request.fixed,
            settings=request.settings,
            versions=request.versions,
            build_seconds=round(seconds, 3),
            created=_now(),
            builder=f"{_user()}@{platform.node()}",
        )
        return Entry(record, content, hit=False)

    def _keep(self, entry: Entry) -> None:
        if not self._keeps:
            return
        try:
            self._local.put(entry.record, entry.content)
            self._stored = True
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "is full" if full else f"cannot be written: {error.strerror or error}"
            self._warn(f"the engine cache {self._options.directory} {reason}, so nothing more is kept there")
            self._keeps = False

    @contextlib.contextmanager
    def _alone(self, request: EngineRequest) -> Iterator[None]:
        """While no other build compiles the same engine, so that it is compiled once."""

        def told() -> None:
            self._note(f"another build is compiling the engine {request.key[:12]}; waiting for it")

        if not self._keeps:
            yield
            return
        with locks.exclusive(self._local.lock(request.key), patience=_PATIENCE, on_wait=told):
            yield

    def _pass_on(self) -> None:
        while self._unsaid:
            self._warn(self._unsaid.pop(0))

    def _directory(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._work, prefix="engine-"))


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"
