"""What a repository is put together from, and what all layouts write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np

from builder.errors import SpecError, did_you_mean
from builder.hashing import file_digest
from builder.preprocess import Preprocessing
from builder.releases import Release
from builder.repository import templates
from builder.repository.backends import NativeBackend
from builder.repository.batching import Batching
from builder.repository.config import ConfigSample, ModelConfig, declared
from builder.repository.examples import example_samples, seen_inputs
from builder.repository.fields import model_fields
from builder.repository.layout import LayoutChoice
from builder.repository.sequences import control_inputs, describe_states, hand_over_states, states
from builder.repository.warmup import WARMUP_DIRECTORY, WarmupSample
from builder.runtime.manifest import Manifest, SegmentSpec
from builder.triton_options import TritonOptions
from builder.types import DTYPES

__all__ = [
    "MODEL_FILE",
    "Assembly",
    "SegmentFiles",
    "beside",
    "described",
    "label_files",
    "model_config",
    "model_file",
]

MODEL_FILE = "model.py"


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of a segment: the one that its runner opens, and an existing source per relative path."""

    artifact: str
    files: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Assembly:
    """What a repository is put together from.

    Args:
        manifest: of the model; its segments' artifacts are set here.
        files: of each segment, by its name.
        layout: chosen for it.
        batching: chosen for it.
        options: of the user.
        release: that will serve it; None for any.
        warmup: samples of the whole model.
        labels: the file of labels of each output that has one.
        preprocessing: what a request goes through first, where it does.
        tool_version: for the head of written files.
        work: an existing directory for what is written on the way.
    """

    manifest: Manifest
    files: Mapping[str, SegmentFiles]
    layout: LayoutChoice
    batching: Batching
    options: TritonOptions
    release: Release | None
    tool_version: str
    work: Path
    warmup: tuple[WarmupSample, ...] = ()
    labels: Mapping[str, Path] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None

    @property
    def on_gpu(self) -> bool:
        return self.manifest.target.get("device") == "cuda"


def model_config(parts: Assembly, *, native: NativeBackend | None = None, ensemble: bool = False) -> ModelConfig:
    """The model's own config.pbtxt, under the model's own names.

    Args:
        native: the backend that runs its engine, if it is one of the server's own; else our Python model runs it.
        ensemble: whether it only calls other models.
    Raises:
        SpecError: when an option names an input or output that is not there.
    """
    _check_names(parts)
    manifest, options, batched = parts.manifest, parts.options, parts.batching.batched
    carried = states(options, manifest.inputs, [o.tensor for o in manifest.outputs])
    hidden = {*carried, *carried.values(), *control_inputs(options)}
    fields = model_fields(
        options,
        native,
        on_gpu=parts.on_gpu,
        batched=batched,
        profiles=len(manifest.profiles) if native is not None and native.backend == "tensorrt" else 0,
        ensemble=ensemble,
    )
    if carried and native is None:
        hand_over_states(fields)
    elif carried:
        describe_states(fields, manifest.inputs, batched=batched)
    inputs = [
        dataclasses.replace(
            declared(t, batched=batched), optional=t.name in options.optional, ragged=t.name in options.ragged
        )
        for t in manifest.inputs
        if t.name not in hidden
    ]
    if parts.preprocessing is not None:
        inputs = list(seen_inputs(parts.preprocessing, batched=batched))
    labelled = label_files(parts)
    outputs = [
        dataclasses.replace(
            declared(o.tensor, batched=batched),
            labels=labelled[o.tensor.name][0] if o.tensor.name in labelled else "",
        )
        for o in manifest.outputs
        if o.tensor.name not in hidden
    ]
    return ModelConfig(
        name=manifest.name,
        backend="" if ensemble else native.backend if native else "python",
        platform="ensemble" if ensemble else native.platform if native else "",
        max_batch_size=parts.batching.max_batch_size,
        remark=f"max_batch_size: {parts.batching.reason}",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        fields=fields,
        # An ensemble's members have a warm-up of their own.
        warmup=() if ensemble else tuple(sample for sample, _ in _warmup(parts)),
    )


def _warmup(parts: Assembly) -> Iterator[tuple[ConfigSample, Mapping[str, bytes]]]:
    """The warm-up requests and the files of each; none where the user turned it off, and for sequences, which it does not know."""
    if not parts.options.model_warmup or "sequence_batching" in parts.options.fields:
        return
    limit = parts.batching.max_batch_size
    if parts.preprocessing is not None:
        yield from example_samples(parts.preprocessing, limit)
        return
    for sample in parts.warmup:
        # No server takes an empty tensor.
        if all(t.data for t in sample.tensors.values()):
            yield _sample(sample.as_batch(limit) if limit else sample)


def _sample(sample: WarmupSample) -> tuple[ConfigSample, Mapping[str, bytes]]:
    files = {name: sample.file_name(name) for name in sample.tensors}
    tensors = tuple(
        (name, DTYPES[tensor.dtype].triton, tensor.shape or (1,), files[name])
        for name, tensor in sample.tensors.items()
    )
    return ConfigSample(sample.name, sample.batch_size, tensors), {files[n]: t.data for n, t in sample.tensors.items()}


def beside(parts: Assembly) -> dict[str, Path | bytes]:
    """The files in the model's directory: labels and warm-up."""
    found: dict[str, Path | bytes] = dict(label_files(parts).values())
    for _, files in _warmup(parts):
        found.update((f"{WARMUP_DIRECTORY}/{name}", data) for name, data in files.items())
    return found


def _check_names(parts: Assembly) -> None:
    """Options that go by input or output must name one."""
    inputs = [t.name for t in parts.manifest.inputs]
    outputs = [o.tensor.name for o in parts.manifest.outputs]
    for table, known in (("optional", inputs), ("ragged", inputs), ("labels", outputs)):
        for name in getattr(parts.options, table):
            if name not in known:
                kind = "output" if table == "labels" else "input"
                raise SpecError(
                    f"the model has no {kind} {name!r}",
                    where=f"[triton].{table}",
                    fix=f"{did_you_mean(name, known)}its {kind}s are {', '.join(known)}",
                )
    for table in ("optional", "ragged"):
        _check_fills(parts, table)
    _check_optional(parts)


def _check_fills(parts: Assembly, table: str) -> None:
    """A value that fills an input must be one of its dtype."""
    dtypes = {t.name: t.dtype for t in parts.manifest.inputs}
    for name, value in getattr(parts.options, table).items():
        dtype = DTYPES[dtypes[name]]
        kind = np.dtype(dtype.numpy) if dtype.numpy and not dtype.floating else None
        if kind is not None and kind.type(int(value)) != value:
            raise SpecError(
                f"{value} is no {dtype.name}, which the input {name!r} holds",
                where=f"[triton].{table}",
                fix="give a value of that dtype",
            )


def _check_optional(parts: Assembly) -> None:
    """The sizes of an input that is left out must be those of one that is not."""
    optional = parts.options.optional
    given = [t for t in parts.manifest.inputs if t.name not in optional]
    if optional and not given:
        raise SpecError("every input is optional", where="[triton].optional", fix="leave one of them out there")
    known = {d.name for t in given for d in t.dims if d.name}
    for spec in parts.manifest.inputs:
        for dim in spec.dims if spec.name in optional else ():
            base = dim.derived.base if dim.derived is not None else dim.name
            if not dim.is_static and base not in known:
                raise SpecError(
                    f"no other input tells the size {dim} of {spec.name!r}",
                    where="[triton].optional",
                    fix="name its dimensions as those of an input that is always there, or leave it out there",
                )


def label_files(parts: Assembly) -> dict[str, tuple[str, Path]]:
    """The file of labels of each output, below the model's directory, and its source; a name is never used for two contents."""
    return {
        output: (f"labels/{quote(output, safe='')}@{file_digest(path)[:8]}.txt", path)
        for output, path in parts.labels.items()
    }


def described(parts: Assembly, segments: tuple[SegmentSpec, ...]) -> Manifest:
    """The manifest, with what the layout adds to it."""
    return dataclasses.replace(
        parts.manifest,
        states=states(parts.options, parts.manifest.inputs, [o.tensor for o in parts.manifest.outputs]),
        segments=segments,
        layout=parts.layout.layout,
        release=parts.release.name if parts.release else "",
        max_batch_size=parts.batching.max_batch_size,
        preprocess=parts.preprocessing.spec if parts.preprocessing else None,
        sequences="sequence_batching" in parts.options.fields,
    )


def model_file(parts: Assembly) -> str:
    """The text of the Python model."""
    return templates.render("model.py.j2", tool_version=parts.tool_version)
