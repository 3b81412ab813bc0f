"""`OnnxFile`: the tensors at the edge of an ONNX model, and the files beside it that hold its weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.repository.lint.model import ANY

__all__ = ["OnnxFile", "OnnxTensor", "read_onnx"]

# Protocol buffers stop at 2 GiB; what is nearer to that than this takes too long to look at.
_READ_AT_MOST = 1 << 30

_TYPES = {
    "FLOAT": "TYPE_FP32",
    "DOUBLE": "TYPE_FP64",
    "FLOAT16": "TYPE_FP16",
    "BFLOAT16": "TYPE_BF16",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "BOOL": "TYPE_BOOL",
    "STRING": "TYPE_STRING",
}


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """An input or output: its type as Triton names it and its dims; None for what is unknown or no tensor."""

    data_type: str | None
    dims: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """What an ONNX model shows to the outside.

    Args:
        path: of the file.
        inputs, outputs: by name, in the model's order; an initialiser is no input.
        external: paths of the files that hold weights, as the model gives them.
        fault: why the file cannot be read; None where it can.
    """

    path: Path
    inputs: Mapping[str, OnnxTensor] = field(default_factory=dict)
    outputs: Mapping[str, OnnxTensor] = field(default_factory=dict)
    external: tuple[str, ...] = ()
    fault: str | None = None

    def tensors(self, kind: str) -> Mapping[str, OnnxTensor]:
        """The inputs or the outputs."""
        return self.inputs if kind == "input" else self.outputs


def read_onnx(path: Path) -> OnnxFile | None:
    """Read a model without its weights; None where onnx is not installed or the file is too large to look at."""
    try:
        status = path.stat()
    except OSError as error:
        return OnnxFile(path, fault=error.strerror or str(error))
    if status.st_size > _READ_AT_MOST:
        return None
    return _read(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read(path: Path, changed: int, size: int) -> OnnxFile | None:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        return None
    try:
        graph = onnx.load(path, format="protobuf", load_external_data=False).graph
    except (OSError, ValueError, DecodeError) as error:
        return OnnxFile(path, fault=str(error))
    if not graph.output:
        return OnnxFile(path, fault="it holds no graph with an output")
    weights = {tensor.name for tensor in graph.initializer}
    return OnnxFile(
        path,
        {value.name: _tensor(value) for value in graph.input if value.name not in weights},
        {value.name: _tensor(value) for value in graph.output},
        tuple(sorted(set(_external(graph)))),
    )


def _tensor(value: Any) -> OnnxTensor:
    import onnx

    if value.type.WhichOneof("value") != "tensor_type":
        return OnnxTensor(None, None)
    kind = value.type.tensor_type
    names = onnx.TensorProto.DataType.DESCRIPTOR.values_by_number
    name = names[kind.elem_type].name if kind.elem_type in names else ""
    dims = tuple(_size(dim) for dim in kind.shape.dim) if kind.HasField("shape") else None
    return OnnxTensor(_TYPES.get(name), dims)


def _size(dim: Any) -> int:
    return int(dim.dim_value) if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0 else ANY


def _external(graph: Any) -> Iterator[str]:
    import onnx

    tensors = [*graph.initializer, *(a.t for node in graph.node for a in node.attribute if a.HasField("t"))]
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")
