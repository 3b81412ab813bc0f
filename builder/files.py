"""What several stages do with files: making writes last."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["sync_path"]


def sync_path(path: Path) -> None:
    """Have the file system keep a file's content, or a directory's entries, through a crash, if it can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not know it for directories.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
