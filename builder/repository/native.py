"""The layout `plan`: one engine, run by a backend of the server's own; and the files that such a backend opens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RepositoryError
from builder.repository.assembly import Assembly, beside, described, model_config
from builder.repository.backends import NATIVE, NativeBackend
from builder.repository.config import ModelConfig, render_config
from builder.repository.fields import add_graphs
from builder.repository.onnx_tensors import write_with_edge
from builder.repository.plan import RepositoryPlan
from builder.runtime.manifest import SegmentSpec

__all__ = ["PlacedEngine", "assemble_plan", "native_files"]


def assemble_plan(parts: Assembly) -> RepositoryPlan:
    """The model as one engine.

    Raises:
        RepositoryError: when the engine does not take all inputs.
    """
    (segment,) = parts.manifest.segments
    native = NATIVE[parts.layout.runners[0]]
    own = {o.value: o.tensor.name for o in parts.manifest.outputs}
    inputs = {t.name: native.input_name(i, t.name) for i, t in enumerate(segment.inputs)}
    outputs = {own[t.name]: native.output_name(i, own[t.name]) for i, t in enumerate(segment.outputs)}
    names = tuple(inputs.values()), tuple(outputs.values())
    placed = native_files(parts, segment, native, names)
    missing = [t.name for t, n in zip(segment.inputs, names[0], strict=True) if n not in placed.taken]
    if missing:
        raise RepositoryError(
            f"the engine does not use the input {missing[0]!r}, so that Triton could not serve it as a plan",
            where="--layout",
            fix="use --layout python",
        )
    config = model_config(parts, native=native)
    if native.backend == "tensorrt" and parts.manifest.settings.get("cuda_graphs"):
        # The engine's order of inputs is not the model's.
        profiles = [{t.name: t for t in p} for p in parts.manifest.profiles]
        ordered = [[p[t.name] for t in segment.inputs] for p in profiles] or [list(segment.inputs)]
        add_graphs(config.fields, ordered, names[0], parts.batching.max_batch_size)
    config = _renamed(config, inputs, outputs)
    spec = dataclasses.replace(segment, artifact=placed.artifact, tensor_names=placed.names)
    manifest = described(parts, (spec,))
    if native.positional:
        manifest = dataclasses.replace(manifest, wire_names={**inputs, **outputs})
    return RepositoryPlan(
        manifest=manifest,
        config=render_config(config),
        artifacts=placed.files,
        beside=beside(parts),
    )


@dataclass(frozen=True, slots=True)
class PlacedEngine:
    """Files as a native backend wants them: sources by path in the version directory, the inputs that the engine takes."""

    artifact: str
    files: Mapping[str, Path]
    taken: tuple[str, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]] | None


def _renamed(config: ModelConfig, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> ModelConfig:
    """The configuration with the names under which a backend has the tensors."""
    return dataclasses.replace(
        config,
        inputs=tuple(dataclasses.replace(t, name=inputs[t.name]) for t in config.inputs),
        outputs=tuple(dataclasses.replace(t, name=outputs[t.name]) for t in config.outputs),
        warmup=tuple(
            dataclasses.replace(
                s, tensors=tuple((inputs[name], kind, dims, file) for name, kind, dims, file in s.tensors)
            )
            for s in config.warmup
        ),
    )


def native_files(
    parts: Assembly, segment: SegmentSpec, native: NativeBackend, names: tuple[tuple[str, ...], tuple[str, ...]]
) -> PlacedEngine:
    """The files of a segment for a backend of the server's own.

    Args:
        names: that inputs and outputs shall have; those of a TensorRT engine cannot be changed any more.
    """
    own = parts.files[segment.name]
    if native.backend != "onnxruntime":
        named = None if native.positional else segment.tensor_names
        return PlacedEngine(native.file, {native.file: own.files[own.artifact]}, names[0], named)
    # Weights beside the graph make the backend open a directory of that name.
    beside = {path: source for path, source in own.files.items() if path != own.artifact}
    artifact = f"{native.file}/{native.file}" if beside else native.file
    graph = parts.work / "named" / segment.name / native.file
    taken = write_with_edge(
        own.files[own.artifact],
        graph,
        list(zip(segment.input_names, names[0], segment.inputs, strict=True)),
        list(zip(segment.output_names, names[1], segment.outputs, strict=True)),
    )
    files = {artifact: graph, **{f"{native.file}/{path}": source for path, source in beside.items()}}
    return PlacedEngine(artifact, files, taken, names)
