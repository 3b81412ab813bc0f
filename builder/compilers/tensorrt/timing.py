"""What TensorRT has measured of kernels, kept for later builds: one file for each version, CUDA and device."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builder.locks import exclusive

__all__ = ["timing_cache"]

# Seconds; merging takes milliseconds.
_PATIENCE = 30.0


@contextlib.contextmanager
def timing_cache(config: Any, path: Path | None) -> Iterator[None]:
    """Let a build use what others measured, and add what it measured itself.

    The file decides how fast a build is and which of equal kernels is taken, never whether an engine is right; so one that cannot be
    read or written is done without.

    Args:
        path: of the file; None for no cache.
    """
    if path is None:
        yield
        return
    cache = config.create_timing_cache(_read(path))
    # One from another device or version is refused, and then this build starts anew.
    if not config.set_timing_cache(cache, ignore_mismatch=False):
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, ignore_mismatch=False)
    yield
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(path.with_suffix(".lock"), patience=_PATIENCE):
            _merge(config, cache, path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _merge(config: Any, cache: Any, path: Path) -> None:
    """Write the union of what is in the file and what was measured."""
    stored = _read(path)
    if stored:
        other = config.create_timing_cache(stored)
        # A cache combined with itself never returns; this one was just made.
        cache.combine(other, ignore_mismatch=False)
    data = cache.serialize()
    if data is None:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # Others who share the cache read it too.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
