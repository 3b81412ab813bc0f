"""The manifest of a publication: what the runtime needs to run it, and what a person wants to know.

Written as JSON into each version directory. The runtime and `inspect` read it; nothing else does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import RepositoryError
from builder.types import Derived, OutputSpec, Range, TensorSpec

__all__ = ["MANIFEST_NAME", "SCHEMA", "FileDigest", "Manifest", "PreprocessSpec", "SegmentSpec"]

MANIFEST_NAME = "manifest.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """One step of the model: which runner runs which artifact on which values.

    Args:
        name: the segment's name in the plan ("segment_0").
        kind: "engine" or "fallback".
        compiler: "onnxruntime", "tensorrt_rtx", ... or "torch" for a fallback segment.
        artifact: path of the engine or `.pt2`, relative to the version directory.
        inputs, outputs: tensors in the artifact's order, under the names of the plan's values.
        key: the engine key; empty for a fallback segment.
        profiles: for each profile of the model, which of the artifact's own it is; empty where the artifact
            knows none.
        tensor_names: what the artifact calls its inputs and its outputs; None for `input_0`, ... and `output_0`, ...
    """

    name: str
    kind: str
    compiler: str
    artifact: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    key: str = ""
    profiles: tuple[int, ...] = ()
    tensor_names: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    @property
    def input_names(self) -> tuple[str, ...]:
        """What the artifact calls its inputs, in order."""
        return self.tensor_names[0] if self.tensor_names else tuple(f"input_{i}" for i in range(len(self.inputs)))

    @property
    def output_names(self) -> tuple[str, ...]:
        """What the artifact calls its outputs, in order."""
        return self.tensor_names[1] if self.tensor_names else tuple(f"output_{i}" for i in range(len(self.outputs)))


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size in bytes and sha256 (hex) of one file of the publication."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PreprocessSpec:
    """A function that makes inputs of the model out of what clients send.

    Args:
        file, function: where it is, relative to the version directory.
        inputs: what clients send: name, dtype ("bytes" for BYTES) and dims, -1 for a size that varies.
        gives: the inputs of the model that it makes.
    """

    file: str
    function: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that one publication says of itself.

    Args:
        name: the model's name in the repository.
        inputs: in the order of `forward`.
        outputs: in the order that `forward` returns them.
        segments: in an order in which they can run.
        files: digest per path relative to the version directory, the manifest itself excluded.
        versions: of the packages that built it ("torch": "2.13.0+cpu").
        target: what the engines are valid for, per compiler.
        verification: the report of the verify stage, as `VerificationReport.as_json` gives it;
            {"verified": False, "reason": ...} where it could not run here.
        settings: the settings of the build.
        source: the model as the user named it.
        weights: digest of the module's weights, to tell whether a module is the one that was built.
        command: the command line that built it.
        built_at: UTC, ISO 8601.
        profiles: the inputs in each optimization profile; empty where there is one, with the declared ranges.
        layout: how the model sits in the repository: "plan", "ensemble" or "python".
        members: of an ensemble: the Triton models that it calls, each with the digests of its files.
        release: the Triton release that it was built for ("26.09"); empty for any.
        max_batch_size: how many rows a server may join to one batch; 0 where it takes requests as they are.
        optional: inputs that a request may leave out, and the value that fills them then.
        padding: inputs whose smaller requests are filled up to the largest of a batch, and the value that fills them.
        states: of a model of sequences that our runtime keeps: the output that the next request gets as an input, by
            that input. Neither is a client's.
        sequences: whether the server takes requests as parts of sequences.
        preprocess: what a request goes through first; None where clients send the model's inputs.
        wire_names: what clients call inputs and outputs, where that is not the model's own name.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[OutputSpec, ...]
    segments: tuple[SegmentSpec, ...]
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    verification: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    weights: str = ""
    command: str = ""
    built_at: str = ""
    profiles: tuple[tuple[TensorSpec, ...], ...] = ()
    layout: str = "python"
    members: Mapping[str, Mapping[str, FileDigest]] = field(default_factory=dict)
    release: str = ""
    max_batch_size: int = 0
    optional: Mapping[str, float] = field(default_factory=dict)
    padding: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    sequences: bool = False
    preprocess: PreprocessSpec | None = None
    wire_names: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def batched(self) -> bool:
        """Whether a server may join requests; then every input and output begins with the batch."""
        return self.max_batch_size > 0

    def to_json(self) -> str:
        """The manifest as indented JSON, with a trailing newline."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, version_dir: Path) -> Manifest:
        """Read the manifest of a version directory.

        Raises:
            RepositoryError: when it is missing, unreadable or of another schema.
        """
        path = version_dir / MANIFEST_NAME
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise RepositoryError(
                "this directory holds no manifest, so it was not written by triton-repo",
                where=str(version_dir),
                fix="name a version directory such as model_repo/NAME/1",
            ) from None
        except OSError as error:
            raise RepositoryError(f"the manifest cannot be read: {error}", where=str(path), fix="build again") from None
        return cls.from_json(data, str(path))

    @classmethod
    def from_json(cls, content: bytes, where: str) -> Manifest:
        """The manifest that a file holds.

        Args:
            content: of the file.
            where: it is, for messages.
        Raises:
            RepositoryError: when it is no JSON, incomplete or of another schema.
        """
        try:
            data = json.loads(content)
        except ValueError as error:
            raise RepositoryError(f"the manifest cannot be read: {error}", where=where, fix="build again") from None
        if data.get("schema") != SCHEMA:
            raise RepositoryError(
                f"the manifest has schema {data.get('schema')!r}, this version reads {SCHEMA}",
                where=where,
                fix="use the triton-repo-builder that built it, or build again",
            )
        try:
            return cls._from_data(data)
        except (KeyError, TypeError) as error:
            raise RepositoryError(f"the manifest is incomplete: {error}", where=where, fix="build again") from None

    @classmethod
    def _from_data(cls, data: dict[str, Any]) -> Manifest:
        known = {f.name for f in dataclasses.fields(cls)}
        plain = {k: v for k, v in data.items() if k in known}
        plain["inputs"] = _tensors(data["inputs"])
        plain["outputs"] = tuple(OutputSpec(_tensor(o["tensor"]), o["value"]) for o in data["outputs"])
        plain["segments"] = tuple(
            SegmentSpec(
                **{
                    **s,
                    "inputs": _tensors(s["inputs"]),
                    "outputs": _tensors(s["outputs"]),
                    "profiles": tuple(s.get("profiles", ())),
                    "tensor_names": _names(s.get("tensor_names")),
                }
            )
            for s in data["segments"]
        )
        plain["profiles"] = tuple(map(_tensors, data.get("profiles", ())))
        plain["files"] = _digests(data["files"])
        plain["preprocess"] = _preprocess(data.get("preprocess"))
        plain["members"] = {name: _digests(files) for name, files in data.get("members", {}).items()}
        return cls(**plain)


def _preprocess(data: dict[str, Any] | None) -> PreprocessSpec | None:
    if data is None:
        return None
    inputs = tuple((name, dtype, tuple(dims)) for name, dtype, dims in data["inputs"])
    return PreprocessSpec(data["file"], data["function"], inputs, tuple(data["gives"]))


def _names(data: list[list[str]] | None) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    return (tuple(data[0]), tuple(data[1])) if data else None


def _digests(data: dict[str, Any]) -> dict[str, FileDigest]:
    return {path: FileDigest(**digest) for path, digest in data.items()}


def _tensor(data: dict[str, Any]) -> TensorSpec:
    values = data.get("values")
    dims = tuple(_range(d) for d in data["dims"])
    return TensorSpec(data["name"], data["dtype"], dims, (values[0], values[1]) if values else None)


def _range(data: dict[str, Any]) -> Range:
    derived = data.get("derived")
    return Range(**{**data, "derived": Derived(**derived) if derived else None})


def _tensors(data: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(_tensor(t) for t in data)
