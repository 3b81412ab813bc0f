"""Ranges of what Dynamo hands over: the user's Inputs, marks of torch, and what earlier graphs of the same call returned."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from builder.dynamo.handed import Argument, Frame, leaves
from builder.errors import ExportError, SpecError
from builder.inputs import Constant, Input, resolve_names
from builder.types import Range, canonical_dtype

__all__ = ["KNOWN", "Known", "RangedInputs", "declared_inputs", "dynamic_axes", "ranged_inputs"]

_GROWTH = 8
_AT_LEAST = 64


class Known:
    """The ranges of tensors that went through compiled graphs, for the graphs behind a graph break.

    A bounded list of weak references: a mark on the tensor itself would go with it wherever the user takes it.
    """

    def __init__(self) -> None:
        self._entries: collections.deque[tuple[Callable[[], object], tuple[Range, ...]]] = collections.deque(maxlen=256)

    def add(self, tensor: torch.Tensor, dims: tuple[Range, ...]) -> None:
        """Remember the ranges of a tensor."""
        self._entries.append((weakref.ref(tensor), dims))

    def __call__(self, tensor: torch.Tensor) -> tuple[Range, ...] | None:
        """The ranges of a tensor; None where they are not known."""
        for reference, dims in reversed(self._entries):
            if reference() is tensor and len(dims) == tensor.dim():
                return dims
        return None


KNOWN = Known()


def declared_inputs(given: Sequence[Input | Constant], frame: Frame) -> dict[str, Input]:
    """The user's Inputs by the way to the tensor that each is for.

    Raises:
        SpecError: when their count, names, dtypes or ranks are not those of the call; shows both.
    """
    tensors = dict(leaves(frame))
    inputs = resolve_names([i for i in given if isinstance(i, Input)])
    both = f"Inputs: {'; '.join(map(str, inputs))}\nthe call: {'; '.join(map(_text, tensors.items())) or 'no tensor'}"
    named = {i.name: i for i in inputs if i.name is not None}
    unnamed = [i for i in inputs if i.name is None]
    free = [name for name in tensors if name not in named]
    unknown = [name for name in named if name not in tensors]
    if unknown:
        raise SpecError(
            f"{frame.label} gets no tensor {', '.join(map(repr, unknown))}",
            where=both,
            fix="name each Input as the argument that it is for, or leave all without a name, in order",
        )
    if len(unnamed) != len(free):
        raise SpecError(
            f"{len(inputs)} Inputs are given, and {frame.label} gets {len(tensors)} tensors",
            where=both,
            fix="give one Input for each tensor of the call",
        )
    found = {**named, **dict(zip(free, unnamed, strict=True))}
    for name, item in found.items():
        _check(name, item, tensors[name], both)
    return {str(name): item for name, item in found.items()}


def _check(name: str, item: Input, tensor: torch.Tensor, both: str) -> None:
    if canonical_dtype(tensor.dtype) != item.dtype:
        raise SpecError(
            f"{name!r} is {str(tensor.dtype).removeprefix('torch.')}, and its Input says {item.dtype}",
            where=both,
            fix=f"give the Input dtype={tensor.dtype}, or call it with {item.dtype}",
        )
    if tensor.dim() != len(item.dims):
        raise SpecError(
            f"{name!r} has {tensor.dim()} dimensions, and its Input has {len(item.dims)}",
            where=both,
            fix="give the Input one size or range for each dimension",
        )


def _text(item: tuple[str, torch.Tensor]) -> str:
    name, tensor = item
    return f"{name}={str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def dynamic_axes(
    name: str, tensor: torch.Tensor, declared: Mapping[str, Input], frame: Frame, *, ranged: bool
) -> list[int]:
    """Axes of an input that are to be symbolic, whatever Dynamo has decided so far.

    Args:
        name: the way to the tensor.
        ranged: whether anything in this call has a range; then what comes out of a graph break may have too.
    """
    known = declared[name].dims if name in declared and not frame.resumed else KNOWN(tensor)
    if known is not None:
        return [axis for axis, dim in enumerate(known) if not dim.is_static]
    return list(range(tensor.dim())) if frame.resumed and ranged else []


@dataclass(frozen=True, slots=True)
class RangedInputs:
    """Inputs to compile for, in the order of the graph's input and number arguments.

    Args:
        inputs: with a name each.
        positions: of the arguments.
        assumed: labels of dimensions whose range nobody has declared.
    """

    inputs: tuple[Input, ...]
    positions: tuple[int, ...]
    assumed: frozenset[str]


def ranged_inputs(arguments: Sequence[Argument], declared: Mapping[str, Input], frame: Frame) -> RangedInputs:
    """An Input for each tensor and number of a graph.

    Raises:
        ExportError: when the model forces a size for which a range was declared.
    """
    inputs: list[Input] = []
    positions: list[int] = []
    assumed: set[str] = set()
    names = _names(arguments)
    for position, argument in enumerate(arguments):
        if argument.kind not in ("input", "number"):
            continue
        name = names[position]
        positions.append(position)
        if argument.kind == "number":
            inputs.append(Input(name=name, integer=_number_range(argument)))
            continue
        item = declared.get(argument.name) if not frame.resumed else None
        known = item.dims if item is not None else KNOWN(argument.value)
        dims, unknown = _dims(argument, name, known)
        assumed |= unknown
        dtype = canonical_dtype(argument.value.dtype)
        if dtype is None:
            raise ExportError(f"{argument.name!r} is {argument.value.dtype}, which no engine takes")
        values = item.value_range if item is not None else None
        inputs.append(Input(shape=dims, dtype=dtype, name=name, value_range=values))
    return RangedInputs(_one_range_each(inputs), tuple(positions), frozenset(assumed))


def _names(arguments: Sequence[Argument]) -> dict[int, str]:
    """A name without dots for each input, no two alike."""
    names: dict[int, str] = {}
    for position, argument in enumerate(arguments):
        base = "".join(c if c.isalnum() else "_" for c in argument.name).strip("_") or "input"
        taken = set(names.values())
        names[position] = next(
            n for n in itertools.chain([base], (f"{base}_{k}" for k in itertools.count(2))) if n not in taken
        )
    return names


def _dims(argument: Argument, name: str, known: tuple[Range, ...] | None) -> tuple[list[Range], set[str]]:
    dims: list[Range] = []
    assumed: set[str] = set()
    for axis, size in enumerate(argument.fake.shape):
        dim = known[axis] if known is not None else None
        real = int(argument.value.shape[axis])
        if not _is_symbolic(size):
            if dim is not None and not dim.is_static and argument.name == name:
                raise ExportError(
                    f"dimension {axis} of {argument.name!r}{f' ({dim.name})' if dim.name else ''} can only be {int(size)} "
                    f"in this model, and its Input says {dim}",
                    fix=f"give the Input the size {int(size)} there, or change what fixes it (TORCH_LOGS=dynamic tells)",
                )
            dims.append(Range(int(size), int(size), int(size)))
        elif dim is not None and dim.is_static:
            dims.append(Range(dim.min, dim.min, dim.min))
        elif dim is not None and dim.max is not None:
            # What follows from others inside one graph is a size of its own in the next.
            dims.append(Range(max(dim.min, 1), max(dim.opt, 1), dim.max, dim.name, dim.multiple))
        else:
            found, guessed = _symbol_range(size, real)
            dims.append(found)
            if guessed:
                assumed.add(found.name or f"{name}[{axis}]")
    return dims, assumed


def _is_symbolic(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def _symbol_range(size: torch.SymInt, real: int) -> tuple[Range, bool]:
    """What torch knows of a size: the bounds of `mark_dynamic`; else a range around the size that it has now."""
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    low = max(int(bounds.lower), 1) if bounds.lower > 0 else 1
    name = str(size.node.expr).replace(" ", "")
    if bounds.upper < 2**31:
        high = int(bounds.upper)
        return Range(min(low, real), min(max(real, low), high), max(high, real), name), False
    return Range(min(low, max(real, 1)), max(real, 1), max(real * _GROWTH, _AT_LEAST), name), True


def _number_range(argument: Argument) -> Range:
    value = int(argument.value)
    dims = KNOWN(argument.owner) if argument.owner is not None else None
    if dims is not None and dims[argument.axis].max is not None:
        dim = dims[argument.axis]
        return Range(dim.min, dim.opt, dim.max)
    return Range(0, value, max(value * _GROWTH, _AT_LEAST))


def _one_range_each(inputs: Iterable[Input]) -> tuple[Input, ...]:
    """One name has one range; where two graphs gave it different ones, they become two names."""
    ranges: dict[str, Range] = {}
    result = []
    for item in inputs:
        dims = []
        for axis, dim in enumerate(item.dims):
            if dim.name is not None and ranges.setdefault(dim.name, dim) != dim:
                dim = dataclasses.replace(dim, name=f"{item.name}_{axis}")
            if dim.name is not None and not dim.name.isidentifier():
                dim = dataclasses.replace(dim, name=f"{item.name}_{axis}")
            dims.append(dim)
        result.append(item.with_dims(dims))
    return tuple(result)
