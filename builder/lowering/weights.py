"""Which tensors of a segment are weights that an engine can be refitted with, and which decide the engine itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from builder.types import DTYPES

__all__ = ["FixedWeight", "WeightSpec", "dtype_name", "refusal"]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight of an engine: its name there ("w0"), dtype ("float32") and shape; not its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FixedWeight:
    """A tensor of the model that enters the engine key by value.

    Args:
        name: in the engine ("c0"); empty where it was folded into another.
        origin: in the model ("embeddings.position_ids").
        dtype, shape: of the tensor.
        reason: why an engine cannot be refitted with it.
    """

    name: str
    origin: str
    dtype: str
    shape: tuple[int, ...]
    reason: str


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def refusal(tensor: torch.Tensor) -> str | None:
    """Why a parameter or buffer cannot be left out of an engine, by the tensor alone; None when it can."""
    name = dtype_name(tensor.dtype)
    known = DTYPES.get(name)
    if known is None or not known.floating:
        return f"{name} tensors hold indices, masks or codes, which a compiler may fold"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}"
    return None
