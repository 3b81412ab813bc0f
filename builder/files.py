"""What several stages do with files: digests, and making writes last."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["file_digest", "sync_path"]

_CHUNK = 1 << 20


def file_digest(path: Path) -> str:
    """sha256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sync_path(path: Path) -> None:
    """Have the file system keep a file's content, or a directory's entries, through a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
