"""`Folder`: what stands in a model's directory, read without ever failing."""

from __future__ import annotations

import functools
import os
import stat
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Folder"]


@dataclass(frozen=True)
class Folder:
    """A model's directory. What cannot be looked at (a loop of links, no permission) is not there."""

    path: Path

    @functools.cached_property
    def directories(self) -> tuple[str, ...]:
        """Names of the sub-directories, sorted as the server sorts them."""
        return tuple(name for name in _names(self.path) if _is_directory(self.path / name))

    @functools.cached_property
    def versions(self) -> tuple[int, ...]:
        """The versions that a server sees, lowest first: directories named by a number without a leading zero."""
        return tuple(sorted(int(name) for name in self.directories if _is_version(name)))

    def version_path(self, version: int) -> Path:
        """The directory of a version."""
        return self.path / str(version)

    def entries(self, *parts: str) -> tuple[str, ...]:
        """Names in a directory below the model's, sorted; none where there is no such directory."""
        return tuple(_names(self.path.joinpath(*parts)))

    def is_file(self, *parts: str) -> bool:
        """Whether there is a file at a path below the model's directory."""
        return self.size(*parts) is not None

    def exists(self, *parts: str) -> bool:
        """Whether there is a file or a directory at a path below the model's directory."""
        return _status(self.path.joinpath(*parts)) is not None

    def size(self, *parts: str) -> int | None:
        """Bytes of a file; None where there is no such file."""
        status = _status(self.path.joinpath(*parts))
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or not name.startswith("0")) and len(name) < 20


def _names(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in path.iterdir())
    except (OSError, ValueError):
        return []


def _is_directory(path: Path) -> bool:
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (OSError, ValueError):
        return None
