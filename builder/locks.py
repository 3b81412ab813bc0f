"""Locks between processes that share a cache, by `flock`: released by the system when a holder dies.

They only save work. Where a file system does not know them they do nothing, and the store stays right
without them, since entries are renamed into place and checked when read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["exclusive", "shared", "unless_in_use"]

# Seconds.
_POLL = 0.05
_TELL_AFTER = 3.0


@contextlib.contextmanager
def exclusive(path: Path, *, patience: float, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock alone; after `patience` seconds of waiting go on without it.

    Args:
        path: of the lock's file, made if it is not there.
        patience: so long that only a holder that hangs takes longer.
        on_wait: called once when it takes more than a moment.
    """
    with _held(_acquire(path, fcntl.LOCK_EX, patience, on_wait)):
        yield


@contextlib.contextmanager
def shared(path: Path, *, patience: float) -> Iterator[None]:
    """Hold a lock together with others who do the same."""
    with _held(_acquire(path, fcntl.LOCK_SH, patience, lambda: None)):
        yield


@contextlib.contextmanager
def unless_in_use(path: Path) -> Iterator[bool]:
    """Hold a lock alone if nobody has it now; gives whether nobody had."""
    try:
        descriptor = _acquire(path, fcntl.LOCK_EX, 0.0, lambda: None, give_up=True)
    except TimeoutError:
        yield False
        return
    with _held(descriptor):
        yield True


@contextlib.contextmanager
def _held(descriptor: int | None) -> Iterator[None]:
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _acquire(
    path: Path, kind: int, patience: float, on_wait: Callable[[], None], *, give_up: bool = False
) -> int | None:
    """A descriptor that holds the lock; None where there can be none.

    Raises:
        TimeoutError: with `give_up`, when it is not free in time.
    """
    started = time.monotonic()
    told = False
    while True:
        descriptor = _open(path)
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        except OSError:
            os.close(descriptor)
            return None
        else:
            if _is_at(descriptor, path):
                return descriptor
            # Its file was removed while we waited for it: others lock the new one.
            os.close(descriptor)
            continue
        waited = time.monotonic() - started
        if waited >= patience:
            if give_up:
                raise TimeoutError
            return None
        if waited > _TELL_AFTER and not told:
            told = True
            on_wait()
        time.sleep(_POLL)


def _open(path: Path) -> int | None:
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
    return None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        here, there = os.fstat(descriptor), path.stat()
    except OSError:
        return False
    return (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)
