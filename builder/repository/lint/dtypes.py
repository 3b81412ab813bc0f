"""Rules: which data types a backend takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from builder.model_config import type_name
from builder.releases import first_release
from builder.repository.lint.model import Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source: the data type tables of tensorrt_backend, pytorch_backend and onnxruntime_backend, and "Datatypes" in
# Triton's model configuration guide. Backends that are not named take every type.
_TORCH = ["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]
_TENSORRT = ["BOOL", "UINT8", "INT8", "INT32", "INT64", "FP16", "FP32", "BF16"]


@rule("data-type-unsupported", "error")
def _unsupported(model: Model) -> Iterator[Problem]:
    for kind, place, tensor in model.tensors():
        name = type_name(tensor.data_type)
        reason = _refused(model, name.removeprefix("TYPE_"), tensor) if name.startswith("TYPE_") else None
        if reason and name != "TYPE_INVALID":
            yield Problem(f"unsupported datatype {name} for {kind} '{tensor.name}'", reason, (*place, "data_type"))


def _refused(model: Model, name: str, tensor: Any) -> str | None:
    """What to do about a type that the backend does not take; None for one that it takes."""
    if model.backend == "tensorrt":
        return None if name in _TENSORRT else f"TensorRT takes {', '.join(_TENSORRT)}: cast inside the model"
    if model.backend == "onnxruntime":
        return _before(model, "onnxruntime_bf16") if name == "BF16" else None
    if model.is_aoti:
        if name == "BF16":
            return _before(model, "torch_aoti_bf16")
        return None if name in _TORCH else f"an AOTInductor package takes {', '.join(_TORCH)}: cast inside the model"
    if model.platform == "pytorch_libtorch":
        if name == "STRING" and model.config.max_batch_size == 0 and len(tensor.dims) == 1:
            return None
        takes = f"TorchScript takes {', '.join(_TORCH)}, and lists of strings with one dimension and max_batch_size 0"
        return None if name in _TORCH else f"{takes}: cast inside the model"
    return None


def _before(model: Model, feature: str) -> str | None:
    if model.release is None or model.release.can(feature):
        return None
    return f"{model.backend} takes it from {first_release(feature)}: serve with that release, or cast inside the model"


RULES = (_unsupported,)
