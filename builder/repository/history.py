"""What a model's directory says of its versions, wherever the repository is.

Beside the config.pbtxt that this tool rendered for it, a version holds what became of the model's config.pbtxt:

    config.pbtxt          as rendered
    config.merged.pbtxt   as it stood when the version was published, if that is something else
    config.base.pbtxt     the rendered text that it takes its values from, if that is an older version's
    config.edited.pbtxt   as a person had left it before
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from builder.errors import RepositoryError
from builder.repository.plan import CONFIG_NAME
from builder.runtime.manifest import MANIFEST_NAME, Manifest

__all__ = [
    "BASE_NAME",
    "EDITED_NAME",
    "LEFT_NAME",
    "RECORD_NAMES",
    "History",
    "LocalModel",
    "ModelFiles",
    "Version",
    "identity",
    "read_history",
    "version_numbers",
]

LEFT_NAME = "config.merged.pbtxt"
BASE_NAME = "config.base.pbtxt"
EDITED_NAME = "config.edited.pbtxt"
RECORD_NAMES = frozenset({LEFT_NAME, BASE_NAME, EDITED_NAME})

# What makes two versions the same; the rest of a manifest says how and when one was built.
_IDENTITY = (
    "name", "inputs", "outputs", "profiles", "segments", "target", "files", "layout", "members", "max_batch_size", "states", "sequences", "preprocess", "optional",
    "padding", "wire_names",
)  # fmt: skip

# Settings that the runtime reads from the manifest, of all compilers and of TensorRT.
_RUNNING = ("cuda_graphs", "plugins", "version_compatible", "weight_streaming")


class ModelFiles(Protocol):
    """A model's directory."""

    @property
    def where(self) -> str:
        """The directory, for messages."""

    def names(self) -> Sequence[str]:
        """What is directly in it; nothing where there is no such directory."""

    def read(self, path: str) -> bytes | None:
        """The content of a file; None where there is none."""

    def manifest(self, version: int) -> Manifest | None:
        """The manifest of a version; None where there is none."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model's directory on this machine."""

    path: Path

    @property
    def where(self) -> str:
        """The directory, for messages."""
        return str(self.path)

    def names(self) -> Sequence[str]:
        """What is directly in it; nothing where there is no such directory."""
        try:
            return sorted(path.name for path in self.path.iterdir())
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes | None:
        """The content of a file; None where there is none."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return (self.path / path).read_bytes()
        return None

    def manifest(self, version: int) -> Manifest | None:
        """The manifest of a version; None where there is none."""
        directory = self.path / str(version)
        return Manifest.read(directory) if (directory / MANIFEST_NAME).exists() else None


@dataclass(frozen=True, slots=True)
class Version:
    """A version that this tool wrote; the texts are explained at the top of the module."""

    number: int
    manifest: Manifest
    rendered: str
    left: str
    base: str
    edited: str | None


@dataclass(frozen=True, slots=True)
class History:
    """The versions of a model.

    Args:
        name: of the model.
        where: its directory, for messages.
        taken: every version number that is in use, in order, whoever wrote it.
        versions: those that this tool wrote, in order.
        config: the model's config.pbtxt; None where there is none.
        empty: whether there is nothing there at all.
    """

    name: str
    where: str
    taken: tuple[int, ...] = ()
    versions: Mapping[int, Version] = field(default_factory=dict)
    config: str | None = None
    empty: bool = True

    @property
    def newest(self) -> Version | None:
        """The version with the highest number that this tool wrote."""
        return self.versions[max(self.versions)] if self.versions else None

    @property
    def config_where(self) -> str:
        """The model's config.pbtxt, for messages."""
        return f"{self.where}/{CONFIG_NAME}"

    def base_of_config(self) -> str | None:
        """The rendered text from which the model's config.pbtxt takes its values; None where nothing says it."""
        for version in sorted(self.versions.values(), key=lambda v: -v.number):
            for text, base in ((version.left, version.base), (version.rendered, version.rendered)):
                if text and text == self.config:
                    return base
        return (self.newest.base or None) if self.newest else None

    def is_written(self, config: str) -> bool:
        """Whether this tool wrote the text, here."""
        return any(config in (v.left, v.rendered) for v in self.versions.values())


def read_history(files: ModelFiles, name: str) -> History:
    """Read what is recorded of a model.

    Raises:
        RepositoryError: when the newest manifest cannot be read, or a config.pbtxt is no text.
    """
    # First of all: what wrote it was there before it, and so is found afterwards.
    config = _text(files, CONFIG_NAME)
    names = files.names()
    taken = version_numbers(names)
    versions: dict[int, Version] = {}
    for number in reversed(taken):
        try:
            manifest = files.manifest(number)
        except RepositoryError:
            if not versions:
                raise
            continue
        if manifest is not None:
            versions[number] = _version(files, number, manifest)
    return History(
        name,
        files.where,
        taken,
        dict(sorted(versions.items())),
        config,
        not names,
    )


def version_numbers(names: Sequence[str]) -> tuple[int, ...]:
    """The names that a server takes for versions, in order; it ignores `0`, `01` and `v1`."""
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit() and name[0] != "0"))


def identity(manifest: Manifest) -> Mapping[str, Any]:
    """What two versions have in common if they are the same."""
    # Through JSON, as the published one was: it makes lists of tuples.
    data = json.loads(manifest.to_json())
    settings = data["settings"]
    running = {**settings.get("tensorrt", {}), **settings}
    return {
        **{key: data[key] for key in _IDENTITY if key in data},
        "files": {path: digest for path, digest in data["files"].items() if path not in RECORD_NAMES},
        "running": {name: running[name] for name in _RUNNING if running.get(name)},
    }


def _version(files: ModelFiles, number: int, manifest: Manifest) -> Version:
    rendered = _text(files, f"{number}/{CONFIG_NAME}") or ""
    # Only what the manifest names is read, for each is a request where the repository is remote.
    recorded = {name: _text(files, f"{number}/{name}") for name in RECORD_NAMES & set(manifest.files)}
    return Version(
        number,
        manifest,
        rendered,
        recorded.get(LEFT_NAME) or rendered,
        recorded.get(BASE_NAME) or rendered,
        recorded.get(EDITED_NAME),
    )


def _text(files: ModelFiles, path: str) -> str | None:
    data = files.read(path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise RepositoryError(
            f"the file is not UTF-8 text: {error}",
            where=f"{files.where}/{path}",
            fix="correct it, or remove it and publish again",
        ) from None
