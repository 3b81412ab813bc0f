"""Which of Triton's own backends runs the engines of which compiler, and what such a backend asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from builder.releases import Release
from builder.types import TensorSpec

__all__ = ["NATIVE", "NativeBackend", "can_batch", "tensor_fault"]


@dataclass(frozen=True, slots=True)
class NativeBackend:
    """A backend of the server.

    Args:
        label: for people.
        backend, platform: as config.pbtxt names them.
        file: what the backend opens in a version directory.
        dtypes: of inputs and outputs that it takes.
        feature: of `Release.can`, that a release must have; "" where all have it.
        batching: the feature that joining requests needs; "" where all releases can.
        bfloat16: the feature that bfloat16 inputs and outputs need; "" where all releases have it.
        scalars: whether tensors without dimensions can be served.
        positional: whether inputs and outputs go by position, under names that the backend makes up.
    Source: the sources of tensorrt_backend, onnxruntime_backend and pytorch_backend.
    """

    label: str
    backend: str
    platform: str
    file: str
    dtypes: frozenset[str]
    feature: str = ""
    batching: str = ""
    bfloat16: str = ""
    scalars: bool = False
    positional: bool = False

    def input_name(self, index: int, name: str) -> str:
        """What a client calls an input."""
        return f"INPUT__{index}" if self.positional else name

    def output_name(self, index: int, name: str) -> str:
        """What a client calls an output."""
        return f"OUTPUT__{index}" if self.positional else name


_INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "bool"})

NATIVE: Mapping[str, NativeBackend] = {
    "tensorrt": NativeBackend(
        "TensorRT",
        "tensorrt",
        "tensorrt_plan",
        "model.plan",
        frozenset({"float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool"}),
    ),
    "onnxruntime": NativeBackend(
        "ONNX Runtime",
        "onnxruntime",
        "",
        "model.onnx",
        _INTEGERS | {"float64", "float32", "float16", "bfloat16"},
        bfloat16="onnxruntime_bf16",
        scalars=True,
    ),
    "inductor": NativeBackend(
        "PyTorch (torch_aoti)",
        "pytorch",
        "torch_aoti",
        "model.pt2",
        _INTEGERS | {"float64", "float32", "float16", "bfloat16"},
        feature="torch_aoti",
        # As of 26.05 each request of a batch got the whole batch's output.
        batching="torch_aoti_batching",
        bfloat16="torch_aoti_bf16",
        positional=True,
    ),
}


def can_batch(backend: NativeBackend, release: Release | None) -> bool:
    """Whether a backend of a release joins requests and takes the answers apart as it should."""
    return not backend.batching or (release is not None and release.can(backend.batching))


def tensor_fault(backend: NativeBackend, release: Release, tensors: Iterable[TensorSpec]) -> str:
    """Why a backend of a release cannot have one of the tensors as input or output; "" where it can."""
    if backend.feature and not release.can(backend.feature):
        return f"Triton {release.name} has no {backend.label} backend"
    for spec in tensors:
        if spec.dtype not in backend.dtypes:
            return f"the {backend.label} backend has no {spec.dtype} inputs and outputs, and {spec.name!r} would be one"
        if spec.dtype == "bfloat16" and backend.bfloat16 and not release.can(backend.bfloat16):
            return f"the {backend.label} backend of Triton {release.name} has no bfloat16, and {spec.name!r} is one"
        if not spec.dims and not backend.scalars:
            return f"the {backend.label} backend has no scalars, and {spec.name!r} is one"
    return ""
