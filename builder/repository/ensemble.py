"""The layout `ensemble`: a Triton model for each segment, and one that calls them in turn."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

from builder.errors import RepositoryError
from builder.hashing import file_digest
from builder.repository.assembly import MODEL_FILE, Assembly, described, label_files, model_config, model_file
from builder.repository.backends import NATIVE, can_batch
from builder.repository.config import ConfigSample, EnsembleStep, ModelConfig, declared, render_config
from builder.repository.fields import member_fields
from builder.repository.native import native_files
from builder.repository.plan import MemberPlan, RepositoryPlan
from builder.repository.warmup import item_size
from builder.runtime.manifest import Manifest, SegmentSpec
from builder.types import DTYPES, OutputSpec, TensorSpec

__all__ = ["assemble_ensemble", "pool_bytes"]

# Of a member's name: enough that two contents of one model never share it.
_DIGITS = 12


def assemble_ensemble(parts: Assembly) -> RepositoryPlan:
    """The model as an ensemble.

    Raises:
        RepositoryError: when no engine takes an input.
    """
    segments, members, steps = [], [], []
    names = {o.value: o.tensor.name for o in parts.manifest.outputs}
    wanted = {t.name for s in parts.manifest.segments for t in s.inputs} | names.keys()
    batched = parts.batching.batched
    for index, (segment, runner) in enumerate(zip(parts.manifest.segments, parts.layout.runners, strict=True)):
        member, spec, taken = _member(parts, segment, runner, index == 0, batched)
        members.append(member)
        segments.append(spec)
        inner_in, inner_out = _member_names(segment, runner)
        steps.append(
            EnsembleStep(
                member.name,
                {n: names.get(t.name, t.name) for n, t in zip(inner_in, segment.inputs, strict=True) if n in taken},
                {
                    n: names.get(t.name, t.name)
                    for n, t in zip(inner_out, segment.outputs, strict=True)
                    if t.name in wanted
                },
            )
        )
    config = model_config(parts, ensemble=True)
    given = {value for step in steps for value in step.inputs.values()}
    unused = [t.name for t in parts.manifest.inputs if t.name not in given]
    if unused:
        raise RepositoryError(
            f"no engine uses the input {unused[0]!r}, so that Triton would refuse the ensemble",
            where="--layout",
            fix="use --layout python",
        )
    inflight = int(parts.options.fields.get("ensemble_scheduling", {}).get("max_inflight_requests", 0))
    config = dataclasses.replace(
        config,
        steps=tuple(steps),
        max_inflight_requests=inflight,
    )
    unique = {m.name: m for m in members}
    return RepositoryPlan(
        manifest=described(parts, tuple(segments)),
        config=render_config(config),
        beside=dict(label_files(parts).values()),
        members=tuple(unique.values()),
    )


def _member_names(segment: SegmentSpec, runner: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a member calls its inputs and outputs: neutral, so that equal segments are equal members."""
    if runner in NATIVE and NATIVE[runner].positional:
        native = NATIVE[runner]
        return (
            tuple(native.input_name(i, "") for i in range(len(segment.inputs))),
            tuple(native.output_name(i, "") for i in range(len(segment.outputs))),
        )
    return (
        tuple(f"input_{i}" for i in range(len(segment.inputs))),
        tuple(f"output_{i}" for i in range(len(segment.outputs))),
    )


def _member(
    parts: Assembly, segment: SegmentSpec, runner: str, first: bool, batched: bool
) -> tuple[MemberPlan, SegmentSpec, tuple[str, ...]]:
    """A Triton model for one segment; the segment with its artifact's place; the inputs that it takes."""
    names = _member_names(segment, runner)
    native = NATIVE.get(runner)
    # One with whole shapes takes part in batches too, as they come.
    batched = batched and (native is None or can_batch(native, parts.release))
    files: dict[str, Path | bytes]
    if native is None:
        files, spec, taken = _python_member(parts, segment, names, batched)
    else:
        placed = native_files(parts, segment, native, names)
        files = {f"1/{path}": source for path, source in placed.files.items()}
        spec, taken = dataclasses.replace(segment, artifact=placed.artifact), placed.taken
        if runner == "onnxruntime":
            spec = dataclasses.replace(spec, tensor_names=None)
    pairs_in = [(n, t) for n, t in zip(names[0], segment.inputs, strict=True) if n in taken]
    pairs_out = list(zip(names[1], segment.outputs, strict=True))
    config = ModelConfig(
        name="",
        backend=native.backend if native else "python",
        platform=native.platform if native else "",
        max_batch_size=parts.batching.max_batch_size if batched else 0,
        inputs=tuple(declared(t, batched=batched, name=n) for n, t in pairs_in),
        outputs=tuple(declared(t, batched=batched, name=n) for n, t in pairs_out),
        fields=member_fields(
            parts.options,
            native,
            on_gpu=parts.on_gpu,
            first=first,
            batched=batched,
            profiles=len(parts.manifest.profiles) if runner == "tensorrt" else 0,
        ),
        warmup=_zeros(pairs_in, parts.batching.max_batch_size if batched else 0) if parts.options.model_warmup else (),
    )
    digest = _content_digest(render_config(config), files)
    name = f"{parts.manifest.name}.{segment.name}.{digest[:_DIGITS]}"
    member = MemberPlan(name, render_config(dataclasses.replace(config, name=name)), files)
    return member, dataclasses.replace(spec, artifact=f"../../{name}/1/{spec.artifact}"), taken


def _python_member(
    parts: Assembly, segment: SegmentSpec, names: tuple[tuple[str, ...], tuple[str, ...]], batched: bool
) -> tuple[dict[str, Path | bytes], SegmentSpec, tuple[str, ...]]:
    own = parts.files[segment.name]
    inputs = tuple(dataclasses.replace(t, name=n) for n, t in zip(names[0], segment.inputs, strict=True))
    outputs = tuple(dataclasses.replace(t, name=n) for n, t in zip(names[1], segment.outputs, strict=True))
    # Without what differs from build to build, for equal members are one.
    manifest = Manifest(
        name=segment.name,
        inputs=inputs,
        outputs=tuple(OutputSpec(t, t.name) for t in outputs),
        segments=(
            dataclasses.replace(segment, inputs=inputs, outputs=outputs, artifact=f"{segment.name}/{own.artifact}"),
        ),
        target=parts.manifest.target,
        settings=parts.manifest.settings,
        layout="member",
        max_batch_size=parts.batching.max_batch_size if batched else 0,
    )
    files: dict[str, Path | bytes] = {
        "1/manifest.json": manifest.to_json().encode(),
        f"1/{MODEL_FILE}": model_file(parts).encode(),
        **{f"1/{segment.name}/{path}": source for path, source in own.files.items()},
    }
    spec = dataclasses.replace(segment, artifact=f"{segment.name}/{own.artifact}")
    return files, spec, names[0]


def _zeros(inputs: list[tuple[str, TensorSpec]], max_batch_size: int) -> tuple[ConfigSample, ...]:
    """Warm-up of a member: of the sizes that occur, of zeros, which are valid as ids and as masks."""
    samples: list[ConfigSample] = []
    for point in ("min", "opt", "max"):
        shapes = [(n, t, t.shape(point)) for n, t in inputs]
        if any(size is None or size < 1 for _, _, shape in shapes for size in shape):
            continue
        start = 1 if max_batch_size else 0
        tensors = tuple((n, DTYPES[t.dtype].triton, shape[start:] or (1,), "") for n, t, shape in shapes)
        sample = ConfigSample(point, min(shapes[0][2][0], max_batch_size) if max_batch_size else 1, tensors)
        if not any((s.batch_size, s.tensors) == (sample.batch_size, sample.tensors) for s in samples):
            samples.append(sample)
    return tuple(samples)


def _content_digest(config: str, files: Mapping[str, Path | bytes]) -> str:
    digest = hashlib.sha256(config.encode())
    for path, source in sorted(files.items()):
        content = hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else file_digest(source)
        digest.update(f"\n{path} {content}".encode())
    return digest.hexdigest()


def pool_bytes(manifest: Manifest) -> int:
    """Bytes of all tensors between segments at their largest: what one request to an ensemble keeps on a GPU."""
    given = {t.name: t for s in manifest.segments for t in s.outputs}
    return sum(math.prod(d.max or d.opt for d in t.dims) * item_size(t.dtype) for t in given.values())
