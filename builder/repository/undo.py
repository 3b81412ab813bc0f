"""Changes to the repository, each with its own way back.

What undoes a change is registered before the change, for an interrupt may come right behind it. It needs no
space on the disk, and touches only what is still what the change made it.
"""

from __future__ import annotations

import errno
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

from builder.files import sync_path
from builder.repository.content import store
from builder.repository.staging import make_directory

__all__ = ["make_parents", "move", "put_file"]

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT)


def move(source: Path, target: Path, undo: ExitStack) -> bool:
    """Rename a file or directory to a name that is free.

    Args:
        source: what is moved.
        target: where to; its parent is there.
        undo: told how to move it back.
    Returns: False when the name is taken, or the parent or the source has gone.
    Raises:
        OSError: for any other reason.
    """
    # Renaming onto an empty directory or a file would succeed, and take it from whoever made it.
    if target.exists():
        return False
    try:
        undo.callback(_take_back, target, source, source.stat().st_ino)
        source.rename(target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def put_file(fresh: Path, target: Path, undo: ExitStack) -> bytes | None:
    """Rename a file over whatever has its name.

    Args:
        fresh: the file, in the staging directory.
        target: its name in the repository.
        undo: told how to bring the old one back.
    Returns: what the old one held; None when there was none.
    """
    previous = fresh.with_name(f"{fresh.name}.{uuid.uuid4().hex}")
    content = target.read_bytes() if target.exists() else None
    if content is not None:
        store(content, previous)
    undo.callback(_bring_back, target, fresh, previous, fresh.stat().st_ino)
    fresh.replace(target)
    return content


def make_parents(directory: Path, undo: ExitStack) -> None:
    """Make a directory and those above it; undone where they are still empty."""
    for missing in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        undo.callback(_remove_if_empty, missing)
    make_directory(directory)
    sync_path(directory.parent)


def _take_back(target: Path, source: Path, inode: int) -> None:
    if _is_at(target, inode):
        source.parent.mkdir(parents=True, exist_ok=True)
        target.rename(source)


def _bring_back(target: Path, fresh: Path, previous: Path, inode: int) -> None:
    if not _is_at(target, inode):
        return
    if previous.exists():
        previous.replace(target)
    else:
        target.rename(fresh)


def _is_at(path: Path, inode: int) -> bool:
    return path.exists() and path.stat().st_ino == inode


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()
