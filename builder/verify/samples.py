"""In-range inputs: which sizes to try, and tensors of those sizes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from builder.inputs import Input
from builder.profiles import dim_label, sizes_of
from builder.types import DTYPES, Range, SymbolName

__all__ = ["Point", "corner_points", "extreme_points", "make_tensors", "opt_point", "points", "random_points"]


@dataclass(frozen=True, slots=True)
class Point:
    """One size for each dimension that has a choice of sizes, by its label, and one value for each integer input."""

    sizes: Mapping[SymbolName, int]

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.sizes.items()) or "static"


def extreme_points(inputs: Sequence[Input]) -> dict[str, Point]:
    """Every dimension at its min, its opt and its max, under these names; equal points once."""
    dims = sizes_of(inputs)
    found = {
        "min": Point({name: d.min for name, d in dims.items()}),
        "opt": opt_point(inputs),
        "max": Point({name: _high(d) for name, d in dims.items()}),
    }
    kept: dict[str, Point] = {}
    for name, point in found.items():
        if point not in kept.values():
            kept[name] = point
    return kept


def opt_point(inputs: Sequence[Input]) -> Point:
    """Every dimension at its opt."""
    return Point({name: d.opt for name, d in sizes_of(inputs).items()})


def corner_points(inputs: Sequence[Input], limit: int) -> list[Point]:
    """Every combination of min, opt and max; a spread of them where there are more than `limit`.

    A spread keeps all-min, all-opt and all-max, and each dimension alone at its min and max.
    """
    dims = sizes_of(inputs)
    choices = {name: sorted({d.min, d.opt, _high(d)}) for name, d in dims.items()}
    total = 1
    for sizes in choices.values():
        total *= len(sizes)
    if total <= limit:
        return [Point(dict(zip(dims, sizes, strict=True))) for sizes in itertools.product(*choices.values())]
    opt = {name: d.opt for name, d in dims.items()}
    spread = [*extreme_points(inputs).values()]
    spread += [Point({**opt, name: size}) for name, sizes in choices.items() for size in sizes]
    unique = {tuple(point.sizes.items()): point for point in spread}
    return list(unique.values())[:limit]


def random_points(inputs: Sequence[Input], count: int, seed: int) -> list[Point]:
    """Sizes drawn from the ranges, each order of magnitude as often as the others: 8 to 16 as often as 128 to 256."""
    dims = sizes_of(inputs)
    if not dims:
        return []
    generator = random.Random(seed)
    return [Point({name: _random_size(d, generator) for name, d in dims.items()}) for _ in range(count)]


def _random_size(dim: Range, generator: random.Random) -> int:
    if dim.min == 0 and generator.random() < 0.1:
        return 0
    low, high = max(dim.min, 1), max(_high(dim), 1)
    drawn = math.exp(generator.uniform(math.log(low), math.log(high + 1)))
    size = int(drawn) // dim.multiple * dim.multiple
    return min(max(size, dim.min), _high(dim))


def points(
    profiles: Sequence[tuple[Input, ...]], *, max_corners: int, random_count: int, seed: int
) -> Iterator[tuple[tuple[Input, ...], Point]]:
    """Corners, then random points, of each profile with its inputs; each point once."""
    seen = set()
    for inputs in profiles:
        for point in (*corner_points(inputs, max_corners), *random_points(inputs, random_count, seed)):
            key = tuple(point.sizes.items())
            if key not in seen:
                seen.add(key)
                yield inputs, point


def make_tensors(inputs: Sequence[Input], point: Point, seed: int) -> list[torch.Tensor]:
    """Random tensors of the sizes of a point, in the order of the inputs.

    Floats are standard normal and integers 0 or 1, unless the input has a value range: then both
    are uniform in it.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_tensor(i, point, generator) for i in inputs]


def _size(item: Input, axis: int, dim: Range, point: Point) -> int:
    if dim.is_static:
        return dim.min
    if dim.derived is not None:
        return dim.derived.at(point.sizes[dim.derived.base])
    return point.sizes[dim_label(item, axis, dim)]


def _high(dim: Range) -> int:
    assert dim.max is not None, "an input's range is bounded"
    return dim.max


def _tensor(item: Input, point: Point, generator: torch.Generator) -> torch.Tensor:
    shape = [_size(item, axis, d, point) for axis, d in enumerate(item.dims)]
    dtype: torch.dtype = getattr(torch, item.dtype)
    if item.integer is not None:
        return torch.tensor(point.sizes.get(item.name or "", item.integer.min), dtype=dtype)
    if DTYPES[item.dtype].floating:
        if item.value_range is None:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        low, high = item.value_range
        return (torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)
    bounds = item.value_range or (0, 1)
    return torch.randint(int(bounds[0]), int(bounds[1]) + 1, shape, generator=generator).to(dtype)
