"""What goes into a file of the repository: a file or bytes, its digest, and a copy that lasts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from builder.files import sync_path
from builder.runtime.manifest import FileDigest

__all__ = ["Source", "chunks", "digest_of", "files_below", "link_or_store", "size_of", "store", "sync_tree"]

Source = Path | bytes

_CHUNK = 1 << 20
_IGNORED = "__pycache__"


def chunks(source: Source) -> Iterator[bytes]:
    """The content, in parts."""
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as stream:
        yield from iter(partial(stream.read, _CHUNK), b"")


def size_of(source: Source) -> int:
    """Bytes in it."""
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def digest_of(source: Source) -> FileDigest:
    """Size and sha256 of it."""
    return _digested(chunks(source), lambda chunk: None)


def store(source: Source, target: Path) -> FileDigest:
    """Write a new file through to the disk, and digest what was written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as stream:
        digest = _digested(chunks(source), stream.write)
        stream.flush()
        os.fsync(stream.fileno())
    return digest


def link_or_store(source: Path, target: Path) -> FileDigest:
    """The same as `store`, without a second copy on the disk where the file system can link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        target.hardlink_to(source)
        return digest_of(source)
    return store(source, target)


def files_below(directory: Path) -> Mapping[str, Path]:
    """Every file below a directory by its relative path, without what Python leaves when it imports."""
    found = (path for path in sorted(directory.rglob("*")) if not path.is_dir())
    named = ((path.relative_to(directory), path) for path in found)
    return {relative.as_posix(): path for relative, path in named if _IGNORED not in relative.parts}


def sync_tree(directory: Path) -> None:
    """Make the entries of all directories of a tree last."""
    for parent, _, _ in os.walk(directory):
        sync_path(Path(parent))


def _digested(parts: Iterable[bytes], use: Callable[[bytes], object]) -> FileDigest:
    digest, size = hashlib.sha256(), 0
    for part in parts:
        use(part)
        digest.update(part)
        size += len(part)
    return FileDigest(size, digest.hexdigest())
