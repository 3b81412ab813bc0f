"""`Model`: one parsed configuration, with its lines, its directory and its neighbours."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from builder.releases import Release
from builder.repository.lint.folder import Folder
from builder.repository.lint.positions import Field, Positions

__all__ = ["ANY", "Model", "Neighbours", "fits"]

ANY = -1

# Backend, platform and file by which the server knows a model. Source: `AutoCompleteBackendFields` in
# triton-inference-server/core, model_config_utils.cc, whose order this is.
_KNOWN = (
    ("tensorflow", "tensorflow_savedmodel", "model.savedmodel"),
    ("tensorflow", "tensorflow_graphdef", "model.graphdef"),
    ("tensorrt", "tensorrt_plan", "model.plan"),
    ("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    ("openvino", "", "model.xml"),
    ("pytorch", "pytorch_libtorch", "model.pt"),
    ("pytorch", "torch_aoti", "model.pt2"),
    ("python", "", "model.py"),
)
_BY_PLATFORM = {platform: (backend, platform) for backend, platform, _ in _KNOWN if platform}
_DEFAULT_PLATFORM = {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}


class Neighbours(Protocol):
    """The models that stand in one repository."""

    def __contains__(self, name: str) -> bool:
        """Whether there is a directory of that name."""

    def get(self, name: str) -> Model | None:
        """A model; None where there is none, or its configuration cannot be read."""


@dataclass(frozen=True)
class Model:
    """What rules look at.

    Args:
        path: of the configuration, as findings name it.
        name: the model's directory, which is its name.
        config: the parsed ModelConfig.
        positions: the line of each field.
        release: the server's release, if it is known.
        folder: the model's directory; None where only the text is known.
        others: the models of the repository, this one included; None where they are not known.
    """

    path: str
    name: str
    config: Any
    positions: Positions
    release: Release | None = None
    folder: Folder | None = None
    others: Neighbours | None = field(default=None, repr=False, compare=False)

    @property
    def is_ensemble(self) -> bool:
        """Whether the model only calls other models."""
        return bool(self.config.platform == "ensemble" or self.config.HasField("ensemble_scheduling"))

    @property
    def backend(self) -> str:
        """The backend that the server takes; empty for an ensemble, and where it finds none."""
        return self._kind[0]

    @property
    def platform(self) -> str:
        """The platform that the server takes; empty where it needs none."""
        return self._kind[1]

    @property
    def is_aoti(self) -> bool:
        """Whether the model is an AOTInductor package that the PyTorch backend runs."""
        return self._kind == ("pytorch", "torch_aoti")

    @property
    def artifact(self) -> str:
        """The file that a version must hold; empty where it is not known."""
        if self.config.default_model_filename:
            return str(self.config.default_model_filename)
        if self.backend == "pytorch" and self.config.runtime:
            return str(self.config.runtime)
        for backend, platform, name in _KNOWN:
            if (backend, platform) == self._kind:
                return name
        return ""

    @functools.cached_property
    def served(self) -> tuple[int, ...]:
        """The versions that the version policy loads, of those that are there."""
        versions = self.folder.versions if self.folder is not None else ()
        policy = self.config.version_policy
        choice = policy.WhichOneof("policy_choice")
        if choice == "all":
            return versions
        if choice == "specific":
            return tuple(version for version in versions if version in policy.specific.versions)
        newest = max(policy.latest.num_versions, 0) if choice == "latest" else 1
        return versions[len(versions) - newest :] if newest < len(versions) else versions

    @functools.cached_property
    def _kind(self) -> tuple[str, str]:
        config = self.config
        if config.platform == "ensemble" or (config.HasField("ensemble_scheduling") and not config.backend):
            return "", str(config.platform)
        if config.backend:
            platform = config.platform or _DEFAULT_PLATFORM.get(config.backend, "")
            return str(config.backend), platform
        if config.platform:
            backend, platform = _BY_PLATFORM.get(config.platform, ("", config.platform))
            # The server knows this name, and then refuses the pair.
            return ("pytorch", "libtorch") if config.platform == "libtorch" else (backend, platform)
        return self._guess()

    def _guess(self) -> tuple[str, str]:
        given = self.config.default_model_filename
        found: Sequence[str] = (given,) if given else self._first_entries()
        for backend, platform, name in _KNOWN:
            if name in found:
                return backend, platform
        return ("" if given else self.name.partition(".")[2]), ""

    def _first_entries(self) -> Sequence[str]:
        """What stands in the first sub-directory, the only one into which the server looks."""
        folder = self.folder
        return folder.entries(folder.directories[0]) if folder is not None and folder.directories else ()

    def tensors(self) -> list[tuple[str, Field, Any]]:
        """Kind, place and message of every input and output."""
        return [
            (kind, (kind, index), tensor)
            for kind in ("input", "output")
            for index, tensor in enumerate(getattr(self.config, kind))
        ]

    def group_label(self, index: int) -> str:
        """An instance group as the server names it."""
        name = self.config.instance_group[index].name or f"{self.name}_{index}"
        return f"instance group {name} of model {self.name}"

    def file(self, *parts: str) -> Path:
        """A path below the model's directory, which must be known."""
        assert self.folder is not None
        return self.folder.path.joinpath(*parts)


def fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether a concrete shape is one of those that `dims` allow."""
    return len(shape) == len(dims) and all(dim in (ANY, size) for size, dim in zip(shape, dims, strict=True))
