"""Python's collector of cyclic garbage, paused while a model is traced.

Nearly all that a trace makes is kept, and it makes so much of it that the collector looks through everything that torch
has loaded again and again: 5 % of the time to a first answer.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

__all__ = ["collector_paused"]

_lock = threading.Lock()
_pauses = 0
_was_on = False


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No collection until the last of those who asked for it has ended; one that was off before stays off."""
    global _pauses, _was_on
    with _lock:
        if not _pauses:
            _was_on = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses and _was_on:
                gc.enable()
