"""A remote store behind any fsspec URL. It saves work where it can, and never makes a build fail.

URL/
  entries/ab/ab12....json    the record, signed as in the local store
  objects/cd/cd34...         files by the blake3 of their content

A record is written after its objects, and objects are named by what they hold, so that builds that send
one key at the same time cannot mix their files.
"""

from __future__ import annotations

import contextlib
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from builder.cache.key import EngineKey
from builder.cache.record import FileInfo, Record, RecordError, is_key
from builder.cache.staging import Permissions
from builder.errors import CacheError
from builder.hashing import CHUNK, Digest
from builder.remote_url import OBJECT_STORES, open_place

__all__ = ["RemoteStore"]

T = TypeVar("T")

# Seconds for one request, and bytes per second that any transfer must reach on top.
_TIMEOUT = 30.0
_SLOWEST = 1 << 20
_ATTEMPTS = 3
_PARALLEL = 8
_LARGEST_RECORD = 16 << 20


class _Lie(Exception):
    """What the remote sent is not what it should be."""


class RemoteStore:
    """Engines in a place that several machines share.

    Args:
        url: of the store.
        readonly: send nothing.
        secret: signs what is sent, and must have signed what is taken.
        on_warning: called with a sentence when the remote fails, hangs or lies.
        timeout: seconds for one request.
    Raises:
        CacheError: when fsspec knows no such URL, or its package is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        readonly: bool = False,
        secret: bytes | None = None,
        on_warning: Callable[[str], None] = lambda text: None,
        timeout: float = _TIMEOUT,
    ) -> None:
        self.url = url
        self.readonly = readonly
        self._secret = secret
        self._warn = on_warning
        self._timeout = timeout
        place = open_place(url, CacheError, "--remote")
        self._fs, self._root = place.fs, place.root
        self._is_directory = place.protocol in ("file", "local")
        self._whole = place.protocol in OBJECT_STORES
        self._down = False
        self._bad: set[EngineKey] = set()
        self._queue: queue.Queue[tuple[Record, Path]] = queue.Queue()
        self._sender: threading.Thread | None = None
        self._deadline = 0.0

    def fetch(self, key: EngineKey, into: Path) -> Record | None:
        """Copy an entry's files into an empty directory; None when it is not there or no good."""
        if self._down or key in self._bad:
            return None
        try:
            record = self.record(key)
            if record is not None:
                self._download(record, into)
            return record
        except (RecordError, _Lie) as error:
            self.reject(key)
            self._warn(f"the engine {key[:12]} in the remote {self.url} is not taken: {error}")
        except Exception as error:
            self._fail(error)
        return None

    def reject(self, key: EngineKey) -> None:
        """Take this engine no more, and replace it when it is sent."""
        self._bad.add(key)

    def record(self, key: EngineKey) -> Record | None:
        """The record of an entry; None when there is none.

        Raises:
            RecordError: when it is not what it should be.
            Exception: whatever the file system raises after some attempts.
        """
        try:
            data = self._attempt(lambda: self._read(self._entry(key)), self._timeout)
        except FileNotFoundError:
            return None
        return Record.parse(data, key, self._secret)

    def stored_keys(self) -> list[EngineKey]:
        """The key of every entry, sorted.

        Raises:
            CacheError: when the remote does not answer.
        """
        try:
            found = self._attempt(lambda: self._fs.find(f"{self._root}/entries"), self._timeout * 10)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise CacheError(f"the remote {self.url} does not answer: {_said(error)}") from None
        names = (str(path).rpartition("/")[2].removesuffix(".json") for path in found)
        return sorted(name for name in names if is_key(name))

    def send(self, record: Record, content: Path) -> None:
        """Send an entry in the background.

        Args:
            record: of the entry.
            content: the directory that holds its files; must stay until `finish` has returned.
        """
        if self.readonly or self._down:
            return
        now = time.monotonic()
        self._deadline = max(self._deadline, now) + 4 * self._timeout + record.size / _SLOWEST
        self._queue.put((record, content))
        if self._sender is None:
            self._sender = _start(self._send_all)

    def finish(self) -> None:
        """Wait for what is being sent, as long as that may reasonably take."""
        while self._queue.unfinished_tasks and not self._down:
            if time.monotonic() > self._deadline:
                self._fail(TimeoutError("sending engines takes too long"))
            time.sleep(0.02)

    def upload(self, record: Record, content: Path) -> bool:
        """Send an entry now; gives whether it was not there.

        Raises:
            Exception: whatever the file system raises after some attempts.
        """
        entry = self._entry(record.key)
        replace = record.key in self._bad
        if not replace and self._size(entry) is not None:
            return False
        objects = {info.blake3: (content / name, info) for name, info in record.files.items()}
        self._parallel(lambda o: self._send_object(*o, replace=replace), objects.values(), record.size)
        data = record.to_bytes(self._secret)
        self._attempt(lambda: self._write(entry, lambda path: self._fs.pipe_file(path, data)), self._timeout)
        return True

    def _send_all(self) -> None:
        while True:
            record, content = self._queue.get()
            try:
                if not self._down:
                    self.upload(record, content)
            except Exception as error:
                self._fail(error)
            finally:
                self._queue.task_done()

    def _send_object(self, source: Path, info: FileInfo, *, replace: bool) -> None:
        path = self._object(info)
        if not replace and self._size(path) == info.size:
            return
        self._attempt(
            lambda: self._write(path, lambda target: self._fs.put_file(str(source), target)),
            self._timeout + info.size / _SLOWEST,
        )

    def _write(self, path: str, write: Callable[[str], Any]) -> None:
        if self._whole:
            write(path)
            return
        parent = path.rpartition("/")[0]
        if self._is_directory:
            Path(self._root).mkdir(parents=True, exist_ok=True)
            Permissions(Path(self._root)).make_directory(Path(parent))
        else:
            self._fs.makedirs(parent, exist_ok=True)
        part = f"{parent}/.{secrets.token_hex(8)}.part"
        try:
            write(part)
            if self._is_directory:
                Permissions(Path(self._root)).open_to_group(Path(part))
                Path(part).replace(path)
            else:
                self._fs.mv(part, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(part)
            raise

    def _download(self, record: Record, into: Path) -> None:
        def get(item: tuple[str, FileInfo]) -> None:
            name, info = item
            self._attempt(lambda: self._get_object(info, into / name), self._timeout + info.size / _SLOWEST)

        for name in record.files:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
        self._parallel(get, record.files.items(), record.size)

    def _get_object(self, info: FileInfo, target: Path) -> None:
        digest, size = Digest(), 0
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with self._fs.open(self._object(info), "rb") as source, part.open("xb") as file:
                while chunk := source.read(CHUNK):
                    size += len(chunk)
                    if size > info.size:
                        break
                    digest.update(chunk)
                    file.write(chunk)
        except FileNotFoundError:
            raise _Lie(f"its file {target.name} is missing") from None
        if (size, digest.hexdigest()) != (info.size, info.blake3):
            raise _Lie(f"the checksum of {target.name} does not hold")
        part.replace(target)

    def _read(self, path: str) -> bytes:
        with self._fs.open(path, "rb") as file:
            data: bytes = file.read(_LARGEST_RECORD + 1)
        if len(data) > _LARGEST_RECORD:
            raise RecordError("its record is too large")
        return data

    def _size(self, path: str) -> int | None:
        try:
            return int(self._attempt(lambda: self._fs.info(path), self._timeout)["size"])
        except FileNotFoundError:
            return None

    def _entry(self, key: EngineKey) -> str:
        return f"{self._root}/entries/{key[:2]}/{key}.json"

    def _object(self, info: FileInfo) -> str:
        return f"{self._root}/objects/{info.blake3[:2]}/{info.blake3}"

    def _parallel(self, work: Callable[[Any], None], items: Iterable[Any], size: int) -> None:
        """Do all, some at a time.

        Raises:
            Exception: the first that was raised.
        """
        waiting = list(items)
        failures: list[BaseException] = []

        def run() -> None:
            while not failures:
                try:
                    item = waiting.pop()
                except IndexError:
                    return
                try:
                    work(item)
                except BaseException as error:
                    failures.append(error)

        threads = [_start(run) for _ in range(min(_PARALLEL, len(waiting)))]
        for thread in threads:
            # Each request in it has its own limit.
            thread.join()
        if failures:
            raise failures[0]

    def _attempt(self, call: Callable[[], T], seconds: float) -> T:
        """Try some times; a call that hangs is left alone.

        Raises:
            FileNotFoundError, RecordError, _Lie: at once, since trying again changes nothing.
            Exception: the last, after some attempts.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return _within(seconds, call)
            except (FileNotFoundError, RecordError, _Lie, TimeoutError):
                raise
            except Exception:
                if attempt == _ATTEMPTS or self._down:
                    raise
                time.sleep(0.1 * 4 ** (attempt - 1) * random.uniform(0.5, 1.5))
        raise AssertionError("unreachable")

    def _fail(self, error: BaseException) -> None:
        if not self._down:
            self._down = True
            self._warn(f"the remote {self.url} is not used any more in this build: {_said(error)}")


def _start(run: Callable[[], None]) -> threading.Thread:
    # A daemon, since a file system that hangs must not keep the process from ending.
    thread = threading.Thread(target=run, daemon=True, name="triton-repo-remote")
    thread.start()
    return thread


def _within(seconds: float, call: Callable[[], T]) -> T:
    """The result of a call that may hang.

    Raises:
        TimeoutError: when it takes longer; it goes on in its thread.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            failure.append(error)

    thread = _start(run)
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    if failure:
        raise failure[0]
    return result[0]


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]
