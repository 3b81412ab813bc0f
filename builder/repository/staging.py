"""A private directory beside the repository, where a publication is put together.

It is outside the root, since a server takes every directory in the root for a model, and on the same file
system, since only a rename there is atomic. Its owner holds a lock in it for as long as it lives, so that
the next publisher can tell what a killed process left behind (a process id would say nothing on a volume
that several containers share).
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from builder.errors import RepositoryError

__all__ = ["check_writable", "make_directory", "os_errors", "resolved_root", "staging_directory"]

_LOCK_NAME = "lock"
_ATTEMPTS = 100

_FAULTS = {
    errno.ENOSPC: ("the disk is full", "free some space, then build again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space, then build again"),
    errno.EACCES: ("there is no permission to write here", "give this user write access, or use another repository"),
    errno.EPERM: ("writing here is not permitted", "give this user write access, or use another repository"),
    errno.EROFS: ("the file system is read-only", "use a repository on a writable file system"),
    errno.ENOTDIR: ("a file stands where a directory is needed", "move the file away, or use another repository"),
    errno.EEXIST: ("a file stands where a directory is needed", "move the file away, or use another repository"),
    errno.ENAMETOOLONG: ("a name is too long for the file system", "use a shorter model or input name"),
    errno.EXDEV: (
        "the repository is a mount point of its own, so nothing beside it can be renamed into it",
        "use a directory below the mount point as the repository",
    ),
}


def check_writable(root: Path) -> None:
    """Check that a model can be published, before the long build; leaves nothing behind.

    Args:
        root: the model repository, which need not exist yet.
    Raises:
        RepositoryError: when a directory cannot be made, written or renamed there.
    """
    root = resolved_root(root)
    with os_errors(root), staging_directory(root) as staging:
        probe, target = staging / "probe", root / f".triton-repo-{staging.name}"
        probe.touch()
        try:
            # A plain file: a server ignores one in the root, but not a directory.
            probe.rename(target)
        finally:
            target.unlink(missing_ok=True)


def resolved_root(root: Path) -> Path:
    """The root without symbolic links, since what is beside a link may be another file system.

    Raises:
        RepositoryError: when nothing can be beside it.
    """
    try:
        resolved = Path(root).resolve()
    except (OSError, RuntimeError) as error:
        raise RepositoryError(f"the repository path cannot be followed: {error}", where=str(root)) from error
    if resolved == resolved.parent:
        raise RepositoryError(
            "the root of the file system cannot be a model repository", where=str(root), fix="use a directory in it"
        )
    return resolved


@contextmanager
def os_errors(root: Path) -> Iterator[None]:
    """Turn an `OSError` of the body into a `RepositoryError` of one sentence."""
    try:
        yield
    except OSError as error:
        reason, fix = _FAULTS.get(error.errno or 0, (error.strerror or str(error), None))
        raise RepositoryError(
            f"the repository cannot be changed: {reason}", where=_place(error, root), fix=fix
        ) from error


def _place(error: OSError, root: Path) -> str:
    """The path that a person can look at: what is in the staging directory is gone by then."""
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else root
    staging = _staging_parent(root)
    if path == staging:
        return f"{root.parent}, where a model is put together before it is renamed into {root.name}"
    return str(root if path.is_relative_to(staging) else path)


def _staging_parent(root: Path) -> Path:
    return root.parent / f".{root.name}.staging"


@contextmanager
def staging_directory(root: Path) -> Iterator[Path]:
    """An empty directory beside the root, removed afterwards with all that is still in it.

    The root is made if it is missing, and removed again if it is still empty at the end.
    """
    parent = _staging_parent(root)
    with ExitStack() as cleanup:
        for missing in reversed([path for path in (root, *root.parents) if not path.exists()]):
            cleanup.callback(_remove_if_empty, missing)
        make_directory(root)
        _remove_stale(parent)
        cleanup.callback(_remove_if_empty, parent)
        yield _claim(parent, cleanup)


def make_directory(directory: Path) -> None:
    """Make a directory and its parents, although other publishers may be removing what they left empty."""
    for _ in range(_ATTEMPTS):
        # pathlib asks for the kind of what is there only after mkdir failed, when it may be gone.
        with suppress(FileExistsError, FileNotFoundError):
            directory.mkdir(parents=True, exist_ok=True)
            return
    directory.mkdir(parents=True, exist_ok=True)


def _claim(parent: Path, cleanup: ExitStack) -> Path:
    """Make a directory and lock it; another publisher that is cleaning up may take it away in between."""
    for _ in range(_ATTEMPTS):
        directory = parent / uuid.uuid4().hex
        lock = FileLock(directory / _LOCK_NAME)
        with ExitStack() as claimed:
            claimed.callback(lock.release)
            claimed.callback(shutil.rmtree, directory, ignore_errors=True)
            make_directory(parent)
            try:
                directory.mkdir()
                lock.acquire(timeout=0)
            except (FileNotFoundError, FileExistsError, Timeout):
                continue
            if directory.exists():
                cleanup.push(claimed.pop_all())
                return directory
    raise RepositoryError("other publishers keep removing the staging directory", where=str(parent), fix="try again")


def _remove_stale(parent: Path) -> None:
    try:
        directories = list(parent.iterdir())
    except OSError:
        return
    for directory in directories:
        lock = FileLock(directory / _LOCK_NAME)
        with suppress(OSError), lock.acquire(timeout=0):  # Timeout is an OSError: its owner is alive
            shutil.rmtree(directory, ignore_errors=True)


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()
