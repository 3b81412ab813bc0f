"""Directories that are being written or thrown away, and whose they are.

Each has in its name the process that made it. A process that was killed leaves them behind; the next
one removes those whose maker is gone for certain, and any that are older than a build can be.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from builder.files import sync_path
from builder.hashing import CHUNK, Digest

__all__ = ["Permissions", "copy_file", "remove_left_over", "staging_directory", "sync_tree", "write_file"]

# Seconds. Only what another machine or container left is judged by age.
_OLD = 48 * 3600


class Permissions:
    """Who may write what is made in a cache: everyone whom the umask lets, and the group if the cache is its.

    Args:
        root: the cache's directory. If its group may write there, it may write everything below;
            a set-group-ID bit is handed down too.
    """

    def __init__(self, root: Path) -> None:
        mode = root.stat().st_mode
        self._directory = (stat.S_IRWXG | (mode & stat.S_ISGID)) if mode & stat.S_IWGRP else 0
        self._file = (stat.S_IRGRP | stat.S_IWGRP) if mode & stat.S_IWGRP else 0

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it that are missing."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            self._add(path, self._directory)

    def open_to_group(self, path: Path) -> None:
        """Give a file that was just written the group's rights."""
        self._add(path, self._file)

    def _add(self, path: Path, bits: int) -> None:
        if bits:
            with contextlib.suppress(OSError):
                path.chmod(stat.S_IMODE(path.stat().st_mode) | bits)


def staging_directory(place: Path, label: str, permissions: Permissions) -> Path:
    """A new directory of this process."""
    path = place / f"{label}.{_here()}.{os.getpid()}.{secrets.token_hex(6)}"
    permissions.make_directory(path)
    return path


def remove_left_over(place: Path) -> None:
    """Remove what processes that are gone have left in a staging place."""
    now = _now(place)
    for path in place.iterdir():
        parts = path.name.split(".")
        if len(parts) != 4 or not parts[2].isdigit():
            continue
        with contextlib.suppress(OSError):
            gone = parts[1] == _here() and not _is_alive(int(parts[2]))
            if gone or (now is not None and now - path.stat().st_mtime > _OLD):
                shutil.rmtree(path, ignore_errors=True)


@functools.cache
def _here() -> str:
    """Where process numbers mean the same: this boot of this machine, in this container."""
    known = [platform.node()]
    with contextlib.suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with contextlib.suppress(OSError):
        known.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256(" ".join(known).encode()).hexdigest()[:12]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _now(place: Path) -> float | None:
    """The time by the clock of the file system, which may be another machine's."""
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def copy_file(source: Path, target: Path, *, limit: int | None = None) -> tuple[int, str]:
    """Copy a file and digest what was copied.

    Args:
        limit: bytes after which it stops, since the file is then not the one that was meant.
    Returns: size in bytes, and blake3 as hexadecimal digits.
    """
    digest, size = Digest(), 0
    buffer = memoryview(bytearray(min(CHUNK, max(1, source.stat().st_size))))
    with source.open("rb", buffering=0) as read, target.open("xb", buffering=0) as write:
        while count := read.readinto(buffer):
            digest.update(buffer[:count])
            part = buffer[:count]
            while part:
                part = part[write.write(part) :]
            size += count
            if limit is not None and size > limit:
                break
    return size, digest.hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write a new file."""
    with path.open("xb") as file:
        file.write(content)


def sync_tree(directory: Path) -> None:
    """Have the file system keep everything in a directory through a crash."""
    for path in [*directory.rglob("*"), directory]:
        sync_path(path)
