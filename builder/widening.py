"""Ranges that hold the sizes of a call which were out of range."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from builder.inputs import Input
from builder.types import Range

__all__ = ["wider_inputs"]


def wider_inputs(
    inputs: Sequence[Input], tensors: Sequence[torch.Tensor], assumed: frozenset[str], every: bool
) -> list[tuple[Input, ...]] | None:
    """Inputs whose ranges hold the sizes of tensors, with room to grow, and without; None where no range will do."""
    if len(tensors) != len(inputs):
        return None
    needed: dict[str, list[int]] = {}
    for item, tensor in zip(inputs, tensors, strict=True):
        if item.integer is not None or str(tensor.dtype) != f"torch.{item.dtype}" or tensor.dim() != len(item.dims):
            return None
        for axis, (size, dim) in enumerate(zip(tensor.shape, item.dims, strict=True)):
            needed.setdefault(dim.name or f"{item.name}[{axis}]", []).append(int(size))
    if any(len({*sizes}) > 1 for sizes in needed.values()):
        return None

    def widened(growth: int) -> tuple[Input, ...] | None:
        new = []
        for item in inputs:
            dims = []
            for axis, dim in enumerate(item.dims):
                label = dim.name or f"{item.name}[{axis}]"
                size = needed[label][0]
                if size in dim or dim.derived is not None:
                    dims.append(dim)
                    continue
                if not every and label not in assumed:
                    return None
                high = dim.max or size
                multiple = dim.multiple if size % dim.multiple == 0 else 1
                high = max(size, high * growth // multiple * multiple) if size > high else high
                dims.append(Range(min(size, dim.min), dim.opt, high, dim.name, multiple))
            new.append(item.with_dims(dims))
        return tuple(new)

    found = [widened(growth) for growth in (2, 1)]
    return [f for f in dict.fromkeys(found) if f is not None] or None
