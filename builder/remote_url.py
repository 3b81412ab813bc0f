"""Places behind a URL: any that fsspec knows, and the forms in which Triton names them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from builder.errors import BuilderError

__all__ = ["OBJECT_STORES", "RemotePlace", "is_remote", "open_place"]

# Where an object appears under its name only when all of it is there.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"})

# Its own many attempts, under ours, would keep a build waiting for a server that is not there.
_S3: dict[str, Any] = {"config_kwargs": {"connect_timeout": 5, "retries": {"total_max_attempts": 1}}}

_EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "azure"),
}

_ENDPOINT = re.compile(r"s3://(?P<endpoint>(?:https?://)?[^/:]+:\d+)/(?P<path>.*)", re.DOTALL)
_AZURE = re.compile(r"as://(?P<account>[^/.]+)(?:\.[^/]*)?/(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """A directory in a file system of fsspec.

    Args:
        fs: the file system; it caches no listing.
        root: the directory's path in it, without a slash at the end.
        protocol: "s3", "file", ...
    """

    fs: Any
    root: str
    protocol: str


def is_remote(text: str) -> bool:
    """Whether it is a URL, not a path on this machine."""
    return "://" in text


def open_place(url: str, error: type[BuilderError], where: str) -> RemotePlace:
    """The place that a URL names.

    Args:
        url: as fsspec takes it, or as Triton does: "s3://https://host:port/bucket/path", "as://account/container/path".
        error: what is raised.
        where: the option that named the URL.
    Raises:
        BuilderError: `error`, when fsspec knows no such URL, or its package is not installed.
    Source: Triton's documentation of model repository locations.
    """
    import fsspec

    plain, options = _resolved(url)
    protocol = plain.partition("://")[0] if "://" in plain else "file"
    try:
        fs, root = fsspec.core.url_to_fs(plain, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as missing:
        extra = _EXTRAS.get(protocol)
        raise error(
            f"{url} needs a package that is not installed: {missing}",
            where=where,
            fix=f"pip install 'triton-repo-builder[{extra}]'" if extra else "install fsspec's package for it",
        ) from None
    except Exception as refused:
        raise error(f"{url} cannot be used: {refused}", where=where, fix="give a URL that fsspec knows") from None
    return RemotePlace(fs, str(root).rstrip("/"), protocol)


def _resolved(url: str) -> tuple[str, dict[str, Any]]:
    """The URL as fsspec takes it, and the options of its file system."""
    if match := _ENDPOINT.fullmatch(url):
        endpoint = match["endpoint"] if "://" in match["endpoint"] else f"http://{match['endpoint']}"
        return f"s3://{match['path']}", {**_S3, "client_kwargs": {"endpoint_url": endpoint}}
    if match := _AZURE.fullmatch(url):
        # Triton and adlfs read the key from variables of different names.
        key = os.environ.get("AZURE_STORAGE_KEY")
        return f"abfs://{match['path']}", {"account_name": match["account"], **({"account_key": key} if key else {})}
    return url, dict(_S3) if url.startswith(("s3://", "s3a://")) else {}
