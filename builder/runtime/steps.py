"""The segments of a compiled model in order, called by position: what a call costs besides its engines is here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

from builder.errors import BuilderError, RequestError
from builder.runtime.check import SizeCheck
from builder.runtime.manifest import Manifest, SegmentSpec
from builder.runtime.runners import Runner
from builder.runtime.values import Value
from builder.types import DTYPES, TensorSpec

__all__ = ["Steps", "fits"]


class Steps:
    """Runs segments on values that lie in numbered slots, the model's inputs first.

    Args:
        manifest: of the model.
        runners: one per segment.
    """

    def __init__(self, manifest: Manifest, runners: Sequence[Runner]) -> None:
        slots = {spec.name: index for index, spec in enumerate(manifest.inputs)}
        for segment in manifest.segments:
            for tensor in segment.outputs:
                slots.setdefault(tensor.name, len(slots))
        self._more = [None] * (len(slots) - len(manifest.inputs))
        last = _last_uses(manifest)
        self._steps = [
            (
                segment,
                runner.run,
                tuple(slots[t.name] for t in segment.inputs),
                tuple(slots[t.name] for t in segment.outputs),
                _size_check(segment),
                tuple(slots[name] for name in last.get(index, ())),
            )
            for index, (segment, runner) in enumerate(zip(manifest.segments, runners, strict=True))
        ]
        self._outputs = tuple(slots[o.value] for o in manifest.outputs)

    def run(self, inputs: Sequence[Value], profile: int = 0) -> list[Value]:
        """The outputs in the manifest's order, for inputs in the manifest's order that fit the model.

        Args:
            profile: of the model, that holds the inputs.
        Raises:
            RequestError: when a library refuses the values, or they make a size that is out of bounds.
        """
        values: list[Value | None] = [*inputs, *self._more]
        for segment, run, taken, given, check_sizes, unused in self._steps:
            own = segment.profiles[profile] if segment.profiles else 0
            try:
                results = run([values[slot] for slot in taken], own)  # type: ignore[misc]
            except BuilderError:
                raise
            except Exception as error:
                raise _refusal(segment, error) from error
            if check_sizes is not None:
                check_sizes(results)
            for slot, result in zip(given, results, strict=True):
                values[slot] = result
            for slot in unused:
                values[slot] = None
        return [values[slot] for slot in self._outputs]  # type: ignore[misc]


def _refusal(segment: SegmentSpec, error: Exception) -> RequestError:
    """What a library raises for the values of a request is that request's error, and no other's."""
    text = " ".join(str(error).split())[:300] or "no message"
    return RequestError(
        f"{segment.name} fails for this request: {type(error).__name__}: {text}",
        fix="send values that the model takes",
    )


def _size_check(segment: SegmentSpec) -> SizeCheck | None:
    dims = (dim for spec in segment.outputs for dim in spec.dims)
    return SizeCheck(segment.outputs) if any(dim.data_dependent for dim in dims) else None


def _last_uses(manifest: Manifest) -> dict[int, list[str]]:
    """Values that no later segment needs, by the segment after which they can go."""
    kept = {o.value for o in manifest.outputs}
    last: dict[str, int] = {}
    for index, segment in enumerate(manifest.segments):
        for tensor in (*segment.inputs, *segment.outputs):
            last[tensor.name] = index
    uses: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in kept:
            uses.setdefault(index, []).append(name)
    return uses


def fits(inputs: Sequence[TensorSpec]) -> Callable[[Sequence[Value]], bool]:
    """A quick test of what `check_request` checks; where it says no, `check_request` says why.

    Args:
        inputs: of the model.
    """
    first: dict[str, tuple[int, int]] = {}
    tests: list[tuple[tuple[object, ...], int, tuple[tuple[int, int, int, int], ...], tuple[int, int] | None]] = []
    equal: list[tuple[int, int, int, int]] = []
    derived: list[tuple[int, int, str, int, int]] = []
    for index, spec in enumerate(inputs):
        bounds = []
        for axis, dim in enumerate(spec.dims):
            bounds.append((axis, dim.min, 2**62 if dim.max is None else dim.max, dim.multiple))
            if dim.name is not None:
                place = first.setdefault(dim.name, (index, axis))
                if place != (index, axis):
                    equal.append((index, axis, *place))
            if dim.derived is not None:
                derived.append((index, axis, dim.derived.base, dim.derived.factor, dim.derived.offset))
        tests.append((_dtypes(spec.dtype), len(spec.dims), tuple(bounds), spec.values))
    follows = [(i, a, *first[base], f, o) for i, a, base, f, o in derived if base in first]

    def test(values: Sequence[Value]) -> bool:
        shapes = []
        for value, (dtypes, rank, bounds, numbers) in zip(values, tests, strict=True):
            shape = value.shape
            if value.dtype not in dtypes or len(shape) != rank:
                return False
            for axis, low, high, multiple in bounds:
                size = shape[axis]
                if not low <= size <= high or (multiple != 1 and size % multiple):
                    return False
            if numbers is not None and not numbers[0] <= int(value) <= numbers[1]:
                return False
            shapes.append(shape)
        for index, axis, other, there in equal:
            if shapes[index][axis] != shapes[other][there]:
                return False
        return all(shapes[i][a] == f * shapes[j][b] + o for i, a, j, b, f, o in follows)

    return test


def _dtypes(name: str) -> tuple[object, ...]:
    numpy = DTYPES[name].numpy if name in DTYPES else None
    # A model that needs no torch is served without it; then there are no tensors of torch either.
    torch = sys.modules.get("torch")
    known: list[object] = [getattr(torch, name)] if hasattr(torch, name) else []
    return (*known, *([np.dtype(numpy)] if numpy else []))
