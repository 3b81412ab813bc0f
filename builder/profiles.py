"""Optimization profiles: parts of the declared ranges that an engine is tuned for one by one.

A profile is the model's inputs with narrower ranges. Together the profiles are all that the model takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from builder.dims import parse_sizes
from builder.errors import SpecError, did_you_mean
from builder.inputs import Input
from builder.types import Range, SymbolName

__all__ = ["Profile", "dim_label", "parse_profile", "profiled_inputs", "sizes_of"]

_FORM = "name every dimension that the profile narrows: B = 1, T = '8:64:256' (min, opt and max)"


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """One optimization profile: a range for each dimension that it narrows, by the dimension's name.

    A dimension without a name is `x[0]`: axis 0 of the input `x`. A whole number that changes goes by
    the name of its input. What is not named keeps its declared range.
    """

    sizes: Mapping[SymbolName, Range]

    def __str__(self) -> str:
        return ", ".join(f"{name}={dataclasses.replace(r, name=None)}" for name, r in self.sizes.items())


def parse_profile(sizes: str | Mapping[str, str | int], where: str) -> Profile:
    """A profile as text, `B=1, T=8:64:256`, or as a table of a spec file.

    Raises:
        SpecError: when a size cannot be read, or a dimension is named twice.
    """
    pairs = _pairs(sizes, where) if isinstance(sizes, str) else [(n, str(s)) for n, s in sizes.items()]
    found: dict[SymbolName, Range] = {}
    for name, text in pairs:
        if name in found:
            raise SpecError(f"{name!r} stands twice in one profile", where=where, fix=_FORM)
        size = parse_sizes(text, f"{where}, {name}")
        if size is None:
            raise SpecError(f"{name} = {text!r} is no range of sizes", where=where, fix=_FORM)
        found[name] = size
    if not found:
        raise SpecError("a profile is empty", where=where, fix=_FORM)
    return Profile(found)


def _pairs(text: str, where: str) -> list[tuple[str, str]]:
    pairs = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, size = part.partition("=")
        if not equals or not name.strip():
            raise SpecError(f"cannot read {part!r} in the profile {text!r}", where=where, fix=_FORM)
        pairs.append((name.strip(), size.strip()))
    return pairs


def dim_label(item: Input, axis: int, dim: Range) -> SymbolName:
    """What a dimension is called in messages and profiles: its name, else its input and axis."""
    return dim.name or f"{item.name}[{axis}]"


def sizes_of(inputs: Sequence[Input]) -> dict[SymbolName, Range]:
    """Each size that a caller can choose, once, by its label: dimensions that follow from none, and whole numbers.

    One that has only one value is among them if it has a name.
    """
    found: dict[SymbolName, Range] = {}
    for item in inputs:
        for axis, dim in enumerate(item.dims):
            if dim.derived is None and not (dim.is_static and dim.name is None):
                found.setdefault(dim_label(item, axis, dim), dim)
        if item.integer is not None and not item.integer.is_static:
            found[item.name or ""] = item.integer
    return found


def profiled_inputs(inputs: Sequence[Input], profiles: Sequence[Profile]) -> tuple[tuple[Input, ...], ...]:
    """The inputs in each profile; the inputs alone where there is no profile.

    Args:
        inputs: with names and known ranges.
        profiles: in the order in which an engine has them.
    Raises:
        SpecError: when a profile names no dimension of the inputs or leaves its range, when two are
            equal, or when a declared min or max is in no profile.
    """
    if not profiles:
        return (tuple(inputs),)
    declared = sizes_of(inputs)
    found: list[dict[SymbolName, Range]] = []
    for index, profile in enumerate(profiles):
        where = f"profile {index} ({profile})"
        narrowed = {**declared, **{n: _checked(n, r, declared, where) for n, r in profile.sizes.items()}}
        if narrowed in found:
            raise SpecError(f"profile {index} and profile {found.index(narrowed)} are equal", where=where)
        found.append(narrowed)
    for name, dim in declared.items():
        low, high = min(f[name].min for f in found), max(f[name].max or 0 for f in found)
        if (low, high) != (dim.min, dim.max):
            raise SpecError(
                f"the profiles take {name} from {low} to {high}, but it is declared as {dim}",
                where="; ".join(f"profile {i} ({p})" for i, p in enumerate(profiles)),
                fix=f"declare {name} from {low} to {high}, or have a profile for the rest",
            )
    return tuple(tuple(_narrowed(item, sizes) for item in inputs) for sizes in found)


def _checked(name: SymbolName, size: Range, declared: Mapping[SymbolName, Range], where: str) -> Range:
    whole = declared.get(name)
    if whole is None:
        raise SpecError(
            f"{name!r} is no dimension of the inputs",
            where=where,
            fix=did_you_mean(name, declared) + f"those that change are {', '.join(declared) or 'none'}",
        )
    sizes = (size.min, size.opt, size.max or 0)
    if not sizes[0] <= sizes[1] <= sizes[2]:
        raise SpecError(f"the sizes {size} of {name} are not in order", where=where, fix="order them min <= opt <= max")
    outside = [s for s in sizes if s not in whole]
    if outside:
        raise SpecError(
            f"the size {outside[0]} of {name} is not in its range, {whole}",
            where=where,
            fix="stay inside the declared range, or widen it",
        )
    return Range(*sizes, whole.name, whole.multiple)


def _narrowed(item: Input, sizes: Mapping[SymbolName, Range]) -> Input:
    dims = tuple(_narrowed_dim(item, axis, dim, sizes) for axis, dim in enumerate(item.dims))
    numbers = sizes.get(item.name or "") if item.integer is not None else None
    return item.with_dims(dims) if numbers is None else item.with_integer(numbers)


def _narrowed_dim(item: Input, axis: int, dim: Range, sizes: Mapping[SymbolName, Range]) -> Range:
    if dim.derived is None:
        return sizes.get(dim_label(item, axis, dim), dim)
    base = sizes[dim.derived.base]
    low, opt, high = (dim.derived.at(size) for size in (base.min, base.opt, base.max or 0))
    return dataclasses.replace(dim, min=low, opt=opt, max=high)
