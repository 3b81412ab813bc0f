"""Where engines are kept, and whom they are taken from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from builder.errors import CacheError

__all__ = ["DEFAULT_LIMIT", "CacheOptions", "cache_directory", "parse_size"]

DEFAULT_LIMIT = 20 << 30

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SHORTEST_SECRET = 16


def cache_directory(chosen: Path | None = None) -> Path:
    """The directory asked for, else `TRITON_REPO_CACHE`, else the platform's cache directory."""
    if chosen is not None:
        return chosen
    if configured := os.environ.get("TRITON_REPO_CACHE"):
        return Path(configured).expanduser()
    return Path(platformdirs.user_cache_dir("triton-repo-builder"))


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Options of the engine cache.

    Args:
        directory: of the local store.
        limit: bytes above which the least recently used engines are evicted.
        remote: an fsspec URL ("s3://bucket/engines", "/mnt/team/engines"), or None.
        readonly: take engines from the remote, and send none.
        secret: signs engines; those that are not signed with it are refused.
    """

    directory: Path
    limit: int = DEFAULT_LIMIT
    remote: str | None = None
    readonly: bool = False
    secret: bytes | None = None

    @classmethod
    def resolve(
        cls,
        directory: Path | None = None,
        *,
        limit: str | None = None,
        remote: str | None = None,
        readonly: bool | None = None,
    ) -> CacheOptions:
        """What was asked for, else what the environment says, else the defaults.

        The environment: `TRITON_REPO_CACHE`, `TRITON_REPO_CACHE_SIZE` ("50G"), `TRITON_REPO_REMOTE`,
        `TRITON_REPO_REMOTE_READONLY` ("1") and `TRITON_REPO_CACHE_KEY`.

        Raises:
            CacheError: when a size or the key is no good.
        """
        size = limit or os.environ.get("TRITON_REPO_CACHE_SIZE")
        key = os.environ.get("TRITON_REPO_CACHE_KEY")
        if key is not None and len(key) < _SHORTEST_SECRET:
            raise CacheError(
                f"the key that signs engines has {len(key)} characters",
                where="TRITON_REPO_CACHE_KEY",
                fix=f"use at least {_SHORTEST_SECRET}, for example the output of: openssl rand -hex 32",
            )
        if readonly is None:
            readonly = os.environ.get("TRITON_REPO_REMOTE_READONLY", "").lower() in ("1", "true", "yes", "on")
        return cls(
            directory=cache_directory(directory),
            limit=parse_size(size) if size else DEFAULT_LIMIT,
            remote=remote or os.environ.get("TRITON_REPO_REMOTE") or None,
            readonly=readonly,
            secret=key.encode() if key is not None else None,
        )


def parse_size(text: str) -> int:
    """Bytes of "20G", "512 MiB" or "1000000".

    Raises:
        CacheError: when it is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise CacheError(f"{text!r} is no size", fix="write bytes, or a number with K, M, G or T: 20G")
    return int(float(match[1]) * _UNITS[match[2].upper()])
