"""Join requests to one batch, and take its outputs apart again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from builder.runtime.manifest import Manifest
from builder.runtime.values import Value, to_torch
from builder.types import Range, TensorSpec

__all__ = ["Joiner", "padded_sizes"]

Request = Mapping[str, Value]


class Joiner:
    """Joins requests along their first dimension; those whose other sizes differ only where the manifest lets them be padded.

    Args:
        manifest: of a model that is batched: every input and output begins with the batch.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._inputs = manifest.inputs
        self._outputs = [o.tensor for o in manifest.outputs]
        self._padding = dict(manifest.padding)
        self._padded = padded_sizes(manifest.inputs, self._padding)

    def groups(self, requests: Sequence[Request]) -> list[list[int]]:
        """The indices of requests that can be one batch, in order."""
        found: dict[tuple[object, ...], list[int]] = {}
        for index, request in enumerate(requests):
            if self._padded:
                key = tuple(self._fixed(spec, request[spec.name]) for spec in self._inputs)
            else:
                key = tuple(request[spec.name].shape[1:] for spec in self._inputs)
            found.setdefault(key, []).append(index)
        return list(found.values())

    def join(self, requests: Sequence[Request]) -> dict[str, Value]:
        """One request with the rows of all."""
        if not self._padded:
            return {spec.name: _stacked(_alike([r[spec.name] for r in requests])) for spec in self._inputs}
        sizes = [self._sizes(r) for r in requests]
        largest = {name: max(s[name] for s in sizes) for name in self._padded}
        return {
            spec.name: self._joined(spec, _alike([r[spec.name] for r in requests]), largest) for spec in self._inputs
        }

    def split(self, requests: Sequence[Request], outputs: Request) -> list[dict[str, Value]]:
        """The outputs of each request, without rows and sizes that are not its own."""
        answers, start = [], 0
        for request in requests:
            rows = int(request[self._inputs[0].name].shape[0])
            own = slice(start, start + rows)
            if self._padded:
                sizes = self._sizes(request)
                answers.append({t.name: outputs[t.name][(own, *self._own(t, sizes))] for t in self._outputs})
            else:
                answers.append({t.name: outputs[t.name][own] for t in self._outputs})
            start += rows
        return answers

    def _fixed(self, spec: TensorSpec, value: Value) -> tuple[int | None, ...]:
        pairs = zip(value.shape[1:], spec.dims[1:], strict=True)
        return tuple(None if self._grows(spec, dim) else int(size) for size, dim in pairs)

    def _grows(self, spec: TensorSpec, dim: Range) -> bool:
        return spec.name in self._padding and dim.name in self._padded

    def _sizes(self, request: Request) -> dict[str, int]:
        return {
            dim.name: int(size)
            for spec in self._inputs
            for size, dim in zip(request[spec.name].shape, spec.dims, strict=True)
            if dim.name in self._padded and dim.name is not None
        }

    def _joined(self, spec: TensorSpec, values: Sequence[Value], largest: Mapping[str, int]) -> Value:
        rows = sum(int(v.shape[0]) for v in values)
        pairs = zip(values[0].shape[1:], spec.dims[1:], strict=True)
        shape = [rows, *(largest[dim.name or ""] if self._grows(spec, dim) else int(size) for size, dim in pairs)]
        joined: Any = _filled(values[0], shape, self._padding.get(spec.name, 0))
        start = 0
        for value in values:
            stop = start + int(value.shape[0])
            joined[(slice(start, stop), *(slice(0, int(size)) for size in value.shape[1:]))] = value
            start = stop
        return cast(Value, joined)

    def _own(self, spec: TensorSpec, sizes: Mapping[str, int]) -> list[slice]:
        own = []
        for dim in spec.dims[1:]:
            if dim.name is not None and dim.name in sizes:
                own.append(slice(0, sizes[dim.name]))
            elif dim.derived is not None and dim.derived.base in sizes:
                own.append(slice(0, dim.derived.at(sizes[dim.derived.base])))
            else:
                own.append(slice(None))
        return own


def padded_sizes(inputs: Sequence[TensorSpec], padding: Mapping[str, float]) -> frozenset[str]:
    """The names of the sizes that padding may enlarge: all but the batch, of inputs that are padded."""
    return frozenset(d.name for t in inputs if t.name in padding for d in t.dims[1:] if d.name and not d.is_static)


def _alike(values: Sequence[Value]) -> list[Value]:
    """All as arrays, or all as tensors on one device: a request's own tensors may be anywhere, defaults and states elsewhere."""
    if all(isinstance(v, np.ndarray) for v in values):
        return list(values)
    devices = [str(v.device) for v in values if not isinstance(v, np.ndarray)]
    device = next((d for d in devices if d != "cpu"), "cpu")
    return [to_torch(v, device) for v in values]


def _stacked(values: Sequence[Any]) -> Value:
    if isinstance(values[0], np.ndarray):
        return cast(Value, np.concatenate(values))
    import torch

    return torch.cat(list(values))


def _filled(like: Value, shape: Sequence[int], value: float) -> Any:
    if isinstance(like, np.ndarray):
        return np.full(shape, value, like.dtype)
    return like.new_full(tuple(shape), value)
