"""Inputs that a request may leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from builder.errors import RequestError
from builder.runtime.values import Value
from builder.types import DTYPES, Range, TensorSpec

__all__ = ["with_defaults"]


def with_defaults(
    inputs: Sequence[TensorSpec], request: Mapping[str, Value], defaults: Mapping[str, float]
) -> dict[str, Value]:
    """The request with every optional input that it leaves out, filled with its default.

    Sizes are those that the inputs of the request have under the same names.

    Raises:
        RequestError: when no input of the request tells a size.
    """
    sizes = {
        dim.name: int(size)
        for spec in inputs
        if spec.name in request
        for size, dim in zip(request[spec.name].shape, spec.dims, strict=False)
        if dim.name
    }
    filled = dict(request)
    for spec in inputs:
        if spec.name in defaults and spec.name not in request:
            shape = [_size(spec, dim, sizes) for dim in spec.dims]
            filled[spec.name] = _full(shape, defaults[spec.name], spec.dtype)
    return filled


def _size(spec: TensorSpec, dim: Range, sizes: Mapping[str, int]) -> int:
    if dim.is_static:
        return dim.min
    if dim.name is not None and dim.name in sizes:
        return sizes[dim.name]
    if dim.derived is not None and dim.derived.base in sizes:
        return dim.derived.at(sizes[dim.derived.base])
    raise RequestError(f"the input {spec.name!r} is left out, and no other input says how large its {dim} is")


def _full(shape: Sequence[int], value: float, dtype: str) -> Any:
    numpy = DTYPES[dtype].numpy
    if numpy is not None:
        return np.full(shape, value, numpy)
    import torch

    return torch.full(tuple(shape), value, dtype=getattr(torch, dtype))
