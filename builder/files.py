"""What several stages do with files."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["file_digest"]

_CHUNK = 1 << 20


def file_digest(path: Path) -> str:
    """sha256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
