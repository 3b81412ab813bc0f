"""Rules: names, data types and dimensions of inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from builder.model_config import type_name
from builder.repository.lint.model import ANY, Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `ValidateIOShape`, `ValidateModelInput` and `ValidateNonLinearFormatIO` in
# triton-inference-server/core, model_config_utils.cc.

_COMPLETED = ("tensorrt", "onnxruntime", "openvino", "tensorflow")


def _absent(model: Model, kind: str) -> Iterator[Problem]:
    # Other backends may know their tensors themselves, as vLLM does.
    declares = model.is_ensemble or model.backend in (*_COMPLETED, "python", "pytorch")
    if declares and not getattr(model.config, kind):
        completed = "; the server completes it only where auto-complete is on" if model.backend in _COMPLETED else ""
        yield Problem(f"model {model.name} declares no {kind}{completed}", f"declare every {kind} with its dims")


@rule("no-inputs", "warning")
def _no_inputs(model: Model) -> Iterator[Problem]:
    yield from _absent(model, "input")


@rule("no-outputs", "warning")
def _no_outputs(model: Model) -> Iterator[Problem]:
    yield from _absent(model, "output")


@rule("tensor-repeated", "error")
def _repeated(model: Model) -> Iterator[Problem]:
    for kind in ("input", "output"):
        names = [tensor.name for tensor in getattr(model.config, kind)]
        for name, count in Counter(names).items():
            if count > 1 and name:
                last = len(names) - 1 - names[::-1].index(name)
                yield Problem(
                    f"model {model.name} declares the {kind} '{name}' more than once",
                    "remove one, or rename it: the server accepts both and uses one",
                    (kind, last, "name"),
                )


def _unspecified(model: Model, field: str) -> Iterator[Problem]:
    for kind, place, tensor in model.tensors():
        if not getattr(tensor, field):
            label = f" '{tensor.name}'" if tensor.name else ""
            yield Problem(f"model {kind}{label} must specify '{field}' for {model.name}", f"give its {field}", place)


@rule("tensor-name-missing", "error")
def _name(model: Model) -> Iterator[Problem]:
    yield from _unspecified(model, "name")


@rule("data-type-missing", "error")
def _data_type(model: Model) -> Iterator[Problem]:
    yield from _unspecified(model, "data_type")


@rule("data-type-unknown", "error")
def _known_type(model: Model) -> Iterator[Problem]:
    for kind, place, tensor in model.tensors():
        if type_name(tensor.data_type).lstrip("-").isdigit():
            yield Problem(
                f"model {kind} '{tensor.name}' has the data type {tensor.data_type}, which is none, for {model.name}",
                "give one by name, such as TYPE_FP32",
                (*place, "data_type"),
            )


@rule("dims-missing", "error")
def _dims(model: Model) -> Iterator[Problem]:
    yield from (
        Problem(p.message, "give its dims; a tensor without dimensions cannot be declared, [ 1 ] stands for it", p.at)
        for p in _unspecified(model, "dims")
    )


@rule("dims-invalid", "error")
def _dim_values(model: Model) -> Iterator[Problem]:
    for kind, place, tensor in model.tensors():
        bad = _first_bad(tensor.dims)
        if bad is not None:
            yield Problem(
                f"model {kind} '{tensor.name}' dimension must be integer >= 1, or -1 to indicate a variable-size "
                f"dimension for {model.name}",
                f"dims[{bad}] is {tensor.dims[bad]}",
                (*place, "dims", bad),
            )


@rule("format-dims", "error")
def _format(model: Model) -> Iterator[Problem]:
    for index, tensor in enumerate(model.config.input):
        if tensor.format in (tensor.FORMAT_NHWC, tensor.FORMAT_NCHW) and len(tensor.dims) != 3:
            yield Problem(
                f"model input NHWC/NCHW require 3 dims for {model.name} (input '{tensor.name}')",
                "give the three dimensions without the batch, or leave 'format' out: it is only a note",
                ("input", index, "format"),
            )


@rule("shape-tensor-platform", "error")
def _shape_tensor(model: Model) -> Iterator[Problem]:
    if model.platform == "tensorrt_plan":
        return
    for _, place, tensor in model.tensors():
        if tensor.is_shape_tensor:
            yield Problem(
                f"shape tensors are only supported for TensorRT platform for {model.name} ('{tensor.name}')",
                "remove is_shape_tensor",
                (*place, "is_shape_tensor"),
            )


@rule("non-linear-format", "error")
def _non_linear(model: Model) -> Iterator[Problem]:
    for kind, place, tensor in model.tensors():
        if not tensor.is_non_linear_format_io:
            continue
        if model.platform != "tensorrt_plan":
            message, fix = "Non-linear IO format is only supported for the TensorRT platform", "remove it"
        elif len(tensor.dims) != 3:
            message, fix = f"Non-linear IO format {kind} requires 3 dims", "give the three dimensions"
        else:
            continue
        yield Problem(f"{message} for {model.name} ('{tensor.name}')", fix, (*place, "is_non_linear_format_io"))


@rule("optional-unsupported", "warning")
def _optional(model: Model) -> Iterator[Problem]:
    if model.backend not in ("tensorrt", "pytorch"):
        return
    for index, tensor in enumerate(model.config.input):
        if tensor.optional:
            yield Problem(
                f"input '{tensor.name}' of {model.name} is optional, which the backend {model.backend} does not support",
                "remove 'optional', and send the input with every request",
                ("input", index, "optional"),
            )


@rule("ragged-input", "warning")
def _ragged(model: Model) -> Iterator[Problem]:
    for index, tensor in enumerate(model.config.input):
        if not tensor.allow_ragged_batch:
            continue
        if model.is_ensemble:
            reason = "an ensemble ignores it"
        elif model.config.max_batch_size < 1:
            reason = "max_batch_size is 0, so there are no batches"
        else:
            continue
        yield Problem(
            f"allow_ragged_batch of input '{tensor.name}' of {model.name} has no effect: {reason}",
            "remove it, or give max_batch_size to the model that is written for ragged input",
            ("input", index, "allow_ragged_batch"),
        )


@rule("reshape-empty", "error")
def _empty_reshape(model: Model) -> Iterator[Problem]:
    for kind, place, tensor in model.tensors():
        if tensor.HasField("reshape") and not tensor.reshape.shape and model.config.max_batch_size == 0:
            yield Problem(
                f"model {kind} '{tensor.name}' cannot have empty reshape for non-batching model as scalar tensors are "
                f"not supported for {model.name}",
                "give a max_batch_size, or a shape with a dimension",
                (*place, "reshape"),
            )


@rule("reshape-size", "error")
def _reshape(model: Model) -> Iterator[Problem]:
    for kind, place, tensor in model.tensors():
        if not tensor.HasField("reshape") or not tensor.dims or _first_bad(tensor.dims) is not None:
            continue
        fault = _reshape_fault(list(tensor.dims), list(tensor.reshape.shape))
        if fault:
            yield Problem(
                f"model {kind} '{tensor.name}' {fault} for {model.name}",
                f"dims are {list(tensor.dims)}, the shape is {list(tensor.reshape.shape)}; what stands between two "
                "variable dimensions must hold the same number of elements",
                (*place, "reshape"),
            )


def _reshape_fault(dims: list[int], shape: list[int]) -> str | None:
    if _first_bad(shape) is not None:
        return "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
    if dims.count(ANY) != shape.count(ANY):
        return "has different number of variable-size dimensions for dims and reshape"
    return "has different size for dims and reshape" if _chunks(dims) != _chunks(shape) else None


def _chunks(dims: list[int]) -> list[int]:
    """Elements before, between and after the variable dimensions."""
    found = [1]
    for dim in dims:
        if dim == ANY:
            found.append(1)
        else:
            found[-1] *= dim
    return found


def _first_bad(dims: Any) -> int | None:
    return next((index for index, dim in enumerate(dims) if dim < 1 and dim != ANY), None)


RULES = (
    _no_inputs,
    _no_outputs,
    _repeated,
    _name,
    _data_type,
    _known_type,
    _dims,
    _dim_values,
    _format,
    _shape_tensor,
    _non_linear,
    _optional,
    _ragged,
    _empty_reshape,
    _reshape,
)
