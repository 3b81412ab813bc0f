"""Find publications on disk."""

from __future__ import annotations

from pathlib import Path

from builder.errors import RepositoryError
from builder.runtime.manifest import MANIFEST_NAME, Manifest

__all__ = ["find_models", "find_publications", "newest_version"]


def find_publications(path: Path) -> list[tuple[Path, Manifest]]:
    """The publications at a path: that of a version directory, or the newest of each model below it.

    Raises:
        RepositoryError: when there is none, or a manifest cannot be read.
    """
    if (path / MANIFEST_NAME).is_file():
        return [(path, Manifest.read(path))]
    return [(v, Manifest.read(v)) for v in map(newest_version, find_models(path))]


def find_models(path: Path) -> list[Path]:
    """The model directories at a path: itself, or those below it, with a version that this tool wrote.

    Raises:
        RepositoryError: when there is none.
    """
    if not path.exists():
        raise RepositoryError("there is no such directory", where=str(path), fix="name a repository, model or version")
    if _versions(path):
        return [path]
    models = sorted(p for p in path.iterdir() if _versions(p) and not _is_member(p)) if path.is_dir() else []
    if not models:
        raise RepositoryError(
            "there is no model built by triton-repo here", where=str(path), fix="build one: triton-repo build MODEL"
        )
    return models


def newest_version(model: Path) -> Path:
    """The version directory with the highest number that has a manifest.

    Raises:
        RepositoryError: when there is none.
    """
    found = _versions(model)
    if not found:
        raise RepositoryError(
            "there is no model built by triton-repo here",
            where=str(model),
            fix=f"build it first: triton-repo build {model.name}",
        )
    return max(found, key=lambda p: int(p.name))


def _versions(model: Path) -> list[Path]:
    if not model.is_dir():
        return []
    return [p for p in model.iterdir() if p.name.isdigit() and (p / MANIFEST_NAME).is_file()]


def _is_member(model: Path) -> bool:
    """Whether it is a part of an ensemble, whose own manifest says what there is to say of it."""
    try:
        return Manifest.read(newest_version(model)).layout == "member"
    except RepositoryError:
        return False
