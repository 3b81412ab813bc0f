"""Tensors of the runtime: numpy arrays, or torch tensors where a runner or a dtype needs torch.

torch is imported only when a value must become a torch tensor, so that a model without fallback
segments is served without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from builder.types import DTYPES

if TYPE_CHECKING:
    import torch

__all__ = ["Value", "dtype_of", "to_numpy", "to_torch"]

Value: TypeAlias = "np.ndarray[Any, Any] | torch.Tensor"


def to_numpy(value: Value) -> np.ndarray[Any, Any]:
    """The value as a contiguous array in host memory, without a copy where it is one already.

    Raises:
        TypeError: for bfloat16, which numpy does not have.
    """
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value) if value.ndim else value
    return np.ascontiguousarray(value.numpy(force=True)) if value.ndim else value.numpy(force=True)


def to_torch(value: Value, device: str = "cpu") -> torch.Tensor:
    """The value as a tensor on a device, sharing memory where it can."""
    import torch

    if isinstance(value, np.ndarray):
        # A request's buffer may be read-only; no runner writes into its inputs.
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    return value.to(device)


def dtype_of(value: Value) -> str:
    """The name of its dtype, as in `builder.types.DTYPES`."""
    name = str(value.dtype).removeprefix("torch.")
    return name if name in DTYPES else str(value.dtype)
