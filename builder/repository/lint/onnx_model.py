"""Rules: an ONNX model and what its configuration says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from builder.model_config import type_name
from builder.repository.lint.model import ANY, Model
from builder.repository.lint.onnx_file import OnnxFile, OnnxTensor, read_onnx
from builder.repository.lint.positions import Field
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `ValidateInputs`, `ValidateOutputs` and `CompareDimsSupported` in onnxruntime_backend.


@dataclass(frozen=True, slots=True)
class _Pair:
    """A configured tensor, and the model's tensor of that name."""

    kind: str
    place: Field
    config: Any
    model: OnnxTensor


def _path(model: Model, version: int) -> Path | None:
    """The file of a version's model, which may stand in a directory of its own."""
    assert model.folder is not None
    if model.folder.is_file(str(version), model.artifact):
        return model.file(str(version), model.artifact)
    if model.folder.is_file(str(version), model.artifact, "model.onnx"):
        return model.file(str(version), model.artifact, "model.onnx")
    return None


def _files(model: Model) -> Iterator[OnnxFile]:
    if model.folder is None or model.backend != "onnxruntime":
        return
    for version in model.served:
        path = _path(model, version)
        found = read_onnx(path) if path is not None else None
        if found is not None:
            yield found


def _pairs(model: Model) -> Iterator[tuple[OnnxFile, _Pair]]:
    for found in _files(model):
        for kind, place, tensor in model.tensors():
            theirs = found.tensors(kind).get(tensor.name)
            if theirs is not None:
                yield found, _Pair(kind, place, tensor, theirs)


@rule("onnx-unreadable", "error")
def _unreadable(model: Model) -> Iterator[Problem]:
    for found in _files(model):
        if found.fault:
            yield Problem(f"the ONNX model cannot be read: {found.fault}", "export it again", file=found.path)


@rule("onnx-tensor-unknown", "error")
def _unknown(model: Model) -> Iterator[Problem]:
    for found in _files(model):
        for kind, place, tensor in model.tensors():
            known = found.tensors(kind)
            if found.fault is None and tensor.name and tensor.name not in known:
                yield Problem(
                    f"unexpected inference {kind} '{tensor.name}', allowed {kind}s are: {', '.join(known)}",
                    f"name a tensor of {found.path}",
                    (*place, "name"),
                )


@rule("onnx-input-count", "error")
def _count(model: Model) -> Iterator[Problem]:
    for found in _files(model):
        given = {tensor.name for tensor in model.config.input}
        missing = [name for name in found.inputs if name not in given]
        # Without any, the server completes the configuration.
        if found.fault is None and missing and given:
            yield Problem(
                f"unable to load model '{model.name}', configuration expects {len(given)} inputs, model provides "
                f"{len(found.inputs)}",
                f"declare {', '.join(missing)}",
                ("input",),
            )


@rule("onnx-data-type", "error")
def _data_type(model: Model) -> Iterator[Problem]:
    for found, pair in _pairs(model):
        ours = type_name(pair.config.data_type)
        if pair.model.data_type is not None and ours not in (pair.model.data_type, "TYPE_INVALID"):
            yield Problem(
                f"unable to load model '{model.name}', configuration expects datatype {ours} for {pair.kind} "
                f"'{pair.config.name}', model provides {pair.model.data_type}",
                f"write data_type: {pair.model.data_type}, as in {found.path}",
                (*pair.place, "data_type"),
            )


@rule("onnx-batch-dimension", "error")
def _batch(model: Model) -> Iterator[Problem]:
    for found, pair in _pairs(model):
        dims = pair.model.dims
        if model.config.max_batch_size > 0 and dims is not None and dims[:1] != (ANY,):
            yield Problem(
                f"model '{model.name}', tensor '{pair.config.name}': for the model to support batching the shape should "
                "have at least 1 dimension and the first dimension must be -1; but shape expected by the model is "
                f"{_text(dims)}",
                f"export {found.path} with a dynamic first dimension, or write max_batch_size: 0 and all dims",
                (*pair.place, "dims"),
            )


@rule("onnx-dims", "error")
def _dims(model: Model) -> Iterator[Problem]:
    batched = model.config.max_batch_size > 0
    for found, pair in _pairs(model):
        theirs, tensor = pair.model.dims, pair.config
        if theirs is None or (batched and theirs[:1] != (ANY,)) or not tensor.dims:
            continue
        shape = list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)
        ours = (ANY, *shape) if batched else tuple(shape)
        if not _match(pair.kind, ours, theirs):
            narrower = "may be narrower than" if pair.kind == "input" else "must be exactly"
            yield Problem(
                f"model '{model.name}', tensor '{tensor.name}': the model expects {len(theirs)} dimensions (shape "
                f"{_text(theirs)}) but the model configuration specifies {len(ours)} dimensions (shape {_text(ours)})",
                f"the dims of an {pair.kind} {narrower} those of {found.path}"
                + (", without the batch dimension" if batched else ""),
                (*pair.place, "dims"),
            )


def _match(kind: str, ours: Sequence[int], theirs: Sequence[int]) -> bool:
    if not theirs:
        return tuple(ours) == (1,)
    if len(ours) != len(theirs):
        return False
    return all(a == b or (kind == "input" and b == ANY) for a, b in zip(ours, theirs, strict=True))


@rule("onnx-external-data", "error")
def _external(model: Model) -> Iterator[Problem]:
    for found in _files(model):
        for location in found.external:
            if PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute():
                message = f"the model keeps weights in {location}, an absolute path"
            elif not _exists(found.path.parent / location):
                message = f"the model keeps weights in {location}, which is not beside it"
            else:
                continue
            fix = "put the model and its data into one directory model.onnx/, with a path relative to the model"
            yield Problem(message, fix, file=found.path)


def _exists(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _text(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"


RULES = (_unreadable, _unknown, _count, _data_type, _batch, _dims, _external)
