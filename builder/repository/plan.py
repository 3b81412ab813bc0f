"""What is to be published (`RepositoryPlan`), and what was (`Publication`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from builder.errors import RepositoryError
from builder.runtime.manifest import MANIFEST_NAME, Manifest

__all__ = ["CONFIG_NAME", "MemberPlan", "Publication", "RepositoryPlan"]

CONFIG_NAME = "config.pbtxt"

# A leading dot hides the directory from people, not from the server. The Python backend of a server in
# the C locale cannot load a path that is not ASCII (seen on 2.51); the rest breaks URLs or paths.
_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A Triton model that only an ensemble calls: one version, written once and never changed.

    Args:
        name: its directory in the repository; it holds a digest of the content, so that equal names mean equal files.
        config: the text of its config.pbtxt.
        files: sources (or contents) per path relative to its directory ("1/model.onnx").
    Raises:
        RepositoryError: as for `RepositoryPlan`.
    """

    name: str
    config: str
    files: Mapping[str, Path | bytes]

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_paths(self.files, {CONFIG_NAME})


@dataclass(frozen=True, slots=True)
class RepositoryPlan:
    """A model, ready to be published.

    Args:
        manifest: of the new version; `files` and `members` are filled in when it is published.
        config: the text of config.pbtxt.
        artifacts: existing source file per path relative to the version directory.
        texts: text content per path relative to the version directory ("model.py").
        beside: sources or contents per path relative to the model's directory, which all versions share ("warmup/...",
            a file of labels). A name is never used for two contents.
        members: what the model, an ensemble, calls.
    Raises:
        RepositoryError: when a name cannot be a directory of a repository, or a path is taken twice,
            leaves its directory, or is one that publishing writes itself.
    """

    manifest: Manifest
    config: str
    artifacts: Mapping[str, Path] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Path | bytes] = field(default_factory=dict)
    members: tuple[MemberPlan, ...] = ()

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_paths([*self.artifacts, *self.texts], {CONFIG_NAME, MANIFEST_NAME})
        _check_paths(self.beside, {CONFIG_NAME})

    @property
    def name(self) -> str:
        """The model's name, which is its directory in the repository."""
        return self.manifest.name


@dataclass(frozen=True, slots=True)
class Publication:
    """A version in the repository.

    Args:
        name: the model's name.
        version: its number.
        path: its directory.
        created: False when the newest version already had this content and nothing was added.
        manifest: as it stands in the version directory.
        note: what the user should know (an edited config.pbtxt was kept); empty for nothing.
    """

    name: str
    version: int
    path: Path
    created: bool
    manifest: Manifest
    note: str = ""


def _check_name(name: str) -> None:
    if not _MODEL_NAME.fullmatch(name):
        raise RepositoryError(
            f"{name!r} cannot be the name of a model: it is a directory and a part of a URL",
            fix="use letters, digits, '-', '_' and '.', not beginning with '.'",
        )


def _check_paths(paths: Iterable[str], taken: set[str]) -> None:
    taken = set(taken)
    for text in paths:
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or not path.parts or path.as_posix() != text:
            raise RepositoryError(f"{text!r} is not a plain path relative to the directory that it is for")
        if text in taken:
            raise RepositoryError(f"the directory would hold {text!r} twice")
        taken.add(text)
