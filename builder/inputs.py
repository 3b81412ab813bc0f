"""`Input` and `Constant`: what the user says of one argument of the model, or of a part of it, in Python or as text."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from builder.dims import DECLARED_ELSEWHERE, DIM_FORM, NAME, parse_dim
from builder.errors import SpecError
from builder.types import DTYPES, INT32_MAX, Derived, Range, SymbolName, canonical_dtype

__all__ = ["Constant", "Input", "parse_input", "resolve_names"]

_INPUT = re.compile(
    rf"""^\s*
    (?:(?P<name>{NAME}(?:\.[A-Za-z0-9_]+)*)\s*=\s*)?
    (?P<dtype>[A-Za-z][A-Za-z0-9_.]*)\s*
    \[(?P<dims>[^\]]*)\]\s*
    (?:\bin\s+(?P<low>[^\s]+?)\s*\.\.\s*(?P<high>[^\s]+))?
    \s*$""",
    re.VERBOSE,
)
_SCALAR = re.compile(rf"^\s*(?:(?P<name>{NAME}(?:\.[A-Za-z0-9_]+)*)\s*=\s*)?(?P<value>.+?)\s*$")
_FORM = (
    "write NAME=DTYPE[DIM, ...] in LOW..HIGH, for example input_ids=int64[B=1:8:32, T=8:64:256] in 0..30521; "
    "NAME=MIN:OPT:MAX for a whole number that changes; NAME=VALUE for None, True, False, a number or a 'text' that does not"
)


@dataclass(frozen=True, slots=True)
class Constant:
    """An argument that is the same in every call: None, a bool, a number or a text. It is no input of what is built.

    Args:
        value: what `forward` gets.
        name: the parameter that it is for, or a part of one ("options.scale").
    """

    value: bool | int | float | str | None
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}" if self.name else repr(self.value)

    def with_name(self, name: str) -> Constant:
        """The same under another name."""
        return dataclasses.replace(self, name=name)


@dataclass(frozen=True, slots=True, init=False)
class Input:
    """One model input: dtype, one (min, opt, max) range per dimension, and its name.

    Torch-TensorRT's spelling: `Input(min_shape=, opt_shape=, max_shape=, dtype=, name=)` for a
    dynamic shape, `Input(shape=)` for a static one. An entry of `shape` may also be a
    `Range`, a (min, opt, max) tuple or text as on the command line ("B=1:8:32").

    Args:
        shape: one entry per dimension. Excludes the three below.
        min_shape, opt_shape, max_shape: sizes of equal rank, min <= opt <= max everywhere.
        dtype: a `torch.dtype`, a numpy dtype or a name such as "int64" or "fp16".
        name: the parameter of `forward` that it feeds; without one it is matched by position.
        dim_names: {axis: name}; one name is one size, in this input and in all others.
        value_range: inclusive (low, high) of the values, for samples (token ids, masks).
        integer: `forward` takes a Python int between min and max, not a tensor; it is served as an
            int64 scalar. Excludes shape and dtype.
    Raises:
        SpecError: when a range is empty, negative, zero or not ordered, or a dtype is unknown.
    """

    name: str | None
    dtype: str
    dims: tuple[Range, ...]
    value_range: tuple[float, float] | None
    integer: Range | None

    def __init__(
        self,
        shape: Sequence[int | str | Range | tuple[int, int, int]] | None = None,
        *,
        min_shape: Sequence[int] | None = None,
        opt_shape: Sequence[int] | None = None,
        max_shape: Sequence[int] | None = None,
        dtype: object = "float32",
        name: str | None = None,
        dim_names: dict[int, SymbolName] | None = None,
        value_range: tuple[float, float] | None = None,
        integer: Range | tuple[int, int, int] | None = None,
    ) -> None:
        label = f"input {name!r}" if name else "an input without a name"
        if integer is not None:
            shape, dtype = (), "int64"
            integer = _checked_integer(label, integer if isinstance(integer, Range) else Range(*integer))
            value_range = (integer.min, integer.max or integer.min)
        dims = _dims(label, shape, min_shape, opt_shape, max_shape)
        dims = _named(label, dims, dim_names or {})
        known = canonical_dtype(dtype)
        if known is None:
            raise SpecError(f"{label} has the unknown dtype {dtype!r}", fix=f"use one of {', '.join(DTYPES)}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "dtype", known)
        object.__setattr__(self, "dims", tuple(_checked(label, i, d) for i, d in enumerate(dims)))
        object.__setattr__(self, "value_range", _checked_values(label, known, value_range))
        object.__setattr__(self, "integer", integer)

    def __str__(self) -> str:
        if self.integer is not None:
            return f"{self.name}={self.integer}" if self.name else str(self.integer)
        text = f"{self.dtype}[{', '.join(map(str, self.dims))}]"
        if self.value_range is not None:
            low, high = self.value_range
            text += f" in {low:g}..{high:g}" if isinstance(low, float) else f" in {low}..{high}"
        return f"{self.name}={text}" if self.name else text

    def with_name(self, name: str) -> Input:
        """The same input under another name."""
        return _replaced(self, name=name)

    def with_dtype(self, dtype: object) -> Input:
        """The same input of another dtype, a known one."""
        return _replaced(self, dtype=canonical_dtype(dtype))

    def with_dims(self, dims: Iterable[Range]) -> Input:
        """The same input with other ranges."""
        return _replaced(self, dims=tuple(dims))

    def with_values(self, low: float, high: float) -> Input:
        """The same input with other values in its samples."""
        return _replaced(self, value_range=(low, high))

    def with_integer(self, numbers: Range) -> Input:
        """The same Python int between other bounds."""
        return _replaced(self, integer=numbers, value_range=(numbers.min, numbers.max))


def _replaced(item: Input, **changes: object) -> Input:
    new = object.__new__(Input)
    for field in dataclasses.fields(item):
        object.__setattr__(new, field.name, changes.get(field.name, getattr(item, field.name)))
    return new


def _dims(
    label: str,
    shape: Sequence[int | str | Range | tuple[int, int, int]] | None,
    min_shape: Sequence[int] | None,
    opt_shape: Sequence[int] | None,
    max_shape: Sequence[int] | None,
) -> list[Range]:
    bounds = (min_shape, opt_shape, max_shape)
    if shape is not None:
        if any(b is not None for b in bounds):
            raise SpecError(
                f"{label} has both `shape` and `min_shape`/`opt_shape`/`max_shape`",
                fix="give `shape` for a static shape, or the three others for a dynamic one",
            )
        return [_dim(label, i, entry) for i, entry in enumerate(shape)]
    if min_shape is None or opt_shape is None or max_shape is None:
        raise SpecError(
            f"{label} has no complete shape",
            fix="give `shape`, or all of `min_shape`, `opt_shape` and `max_shape`",
        )
    if not len(min_shape) == len(opt_shape) == len(max_shape):
        raise SpecError(
            f"{label}: min_shape has {len(min_shape)} dimensions, opt_shape {len(opt_shape)} "
            f"and max_shape {len(max_shape)}",
            fix="give the three shapes the same rank",
        )
    return [Range(*sizes) for sizes in zip(min_shape, opt_shape, max_shape, strict=True)]


def _dim(label: str, axis: int, entry: int | str | Range | tuple[int, int, int]) -> Range:
    if isinstance(entry, Range):
        return entry
    if isinstance(entry, str):
        return parse_dim(entry, f"{label}, dimension {axis}")
    if isinstance(entry, int) and not isinstance(entry, bool):
        return Range(entry, entry, entry)
    if isinstance(entry, tuple | list) and len(entry) == 3:
        return Range(*entry)
    raise SpecError(f"{label}, dimension {axis}: cannot read {entry!r} as a size", fix=DIM_FORM)


def _named(label: str, dims: list[Range], names: dict[int, SymbolName]) -> list[Range]:
    for axis, name in names.items():
        if not 0 <= axis < len(dims):
            raise SpecError(
                f"{label}: dim_names names dimension {axis}, but the shape has {len(dims)}",
                fix=f"use axes from 0 to {len(dims) - 1}",
            )
        dims[axis] = dataclasses.replace(dims[axis], name=name)
    return dims


def _checked(label: str, axis: int, dim: Range) -> Range:
    where = f"{label}, dimension {axis}"
    if dim.min == DECLARED_ELSEWHERE and dim.name:
        return dim
    sizes = (dim.min, dim.opt, dim.max)
    if any(not isinstance(s, int) or isinstance(s, bool) for s in sizes):
        raise SpecError(f"{where}: the sizes {sizes} are not whole numbers", fix=DIM_FORM)
    low, opt, high = dim.min, dim.opt, dim.max
    assert high is not None
    if low <= 0:
        kind = "zero" if low == 0 else "negative"
        raise SpecError(f"{where}: the size {low} is {kind}", fix="use sizes of 1 or more")
    if low > opt:
        raise SpecError(f"{where}: min {low} is greater than opt {opt}", fix="order them min <= opt <= max")
    if opt > high:
        raise SpecError(f"{where}: opt {opt} is greater than max {high}", fix="order them min <= opt <= max")
    for size in (low, opt, high):
        if dim.multiple < 1 or size % dim.multiple:
            raise SpecError(
                f"{where}: the size {size} is not a multiple of {dim.multiple}",
                fix=f"use multiples of {dim.multiple} for min, opt and max",
            )
    if high > INT32_MAX:
        raise SpecError(f"{where}: max {high} does not fit into 32 bits", fix=f"use at most {INT32_MAX}")
    return dim


def _checked_integer(label: str, numbers: Range) -> Range:
    low, opt, high = numbers.min, numbers.opt, numbers.max
    if high is None or not 0 <= low <= opt <= high <= INT32_MAX:
        raise SpecError(f"{label}: the numbers {low}:{opt}:{high} are not in order", fix="use 0 <= min <= opt <= max")
    return Range(low, opt, high)


def _checked_values(label: str, dtype: str, value_range: tuple[float, float] | None) -> tuple[float, float] | None:
    if value_range is None:
        return None
    low, high = value_range
    if low > high:
        raise SpecError(f"{label}: the value range {low}..{high} is empty", fix="write LOW..HIGH, both inclusive")
    if not DTYPES[dtype].floating and (low != int(low) or high != int(high)):
        raise SpecError(f"{label}: the value range {low}..{high} is not whole, but the dtype is {dtype}")
    return (low, high)


def parse_input(text: str, *, name: str | None = None, where: str = "--input") -> Input | Constant:
    """An argument as text: `input_ids=int64[B=1:8:32, T=8:64:256] in 0..30521`, `steps=1:8:32` or `causal=True`.

    Args:
        text: the text; the name before `=` may be left out.
        name: the name, where the text carries none (the key in a spec file).
        where: the place to name in an error.
    Raises:
        SpecError: when the text cannot be read, or a range in it is wrong.
    """
    match = _INPUT.match(text)
    try:
        if match is None:
            return _parse_scalar(text, name)
        return Input(
            shape=[d.strip() for d in match["dims"].split(",")] if match["dims"].strip() else [],
            dtype=match["dtype"],
            name=match["name"] or name,
            value_range=_parse_values(match["low"], match["high"]),
        )
    except SpecError as error:
        raise SpecError(error.what, where=f"{where}: {text}", fix=error.fix) from None


def _parse_scalar(text: str, name: str | None) -> Input | Constant:
    match = _SCALAR.match(text)
    if match is not None:
        name, value = match["name"] or name, match["value"]
        if re.fullmatch(r"\d+:\d+:\d+", value):
            return Input(integer=_numbers(value), name=name)
        try:
            literal = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            literal = {"true": True, "false": False, "none": None, "null": None}.get(value, ...)
        if literal is None or isinstance(literal, bool | int | float | str):
            return Constant(literal, name)
    raise SpecError(f"cannot read the input {text!r}", fix=_FORM)


def _numbers(text: str) -> Range:
    low, opt, high = (int(n) for n in text.split(":"))
    return Range(low, opt, high)


def _parse_values(low: str | None, high: str | None) -> tuple[float, float] | None:
    if low is None or high is None:
        return None
    try:
        return (int(low), int(high))
    except ValueError:
        pass
    try:
        return (float(low), float(high))
    except ValueError:
        raise SpecError(
            f"cannot read the value range {low}..{high}", fix="write two numbers, LOW..HIGH, both inclusive"
        ) from None


def resolve_names(inputs: Sequence[Input]) -> tuple[Input, ...]:
    """Fill in ranges given by name alone, and check that one name has one range everywhere.

    Raises:
        SpecError: when a name is declared twice with different ranges, or used but never declared.
    """
    declared: dict[SymbolName, tuple[Range, str]] = {}
    for item in inputs:
        for axis, dim in enumerate(item.dims):
            if dim.name is None or dim.min == DECLARED_ELSEWHERE or dim.derived is not None:
                continue
            here = f"input {item.name or '(unnamed)'}, dimension {axis}"
            known, there = declared.setdefault(dim.name, (dim, here))
            if known != dim:
                raise SpecError(
                    f"the dimension {dim.name!r} has two ranges: {known} and {dim}",
                    where=f"{there}; {here}",
                    fix=f"give {dim.name!r} one range, or use two names",
                )
    return tuple(
        item.with_dims(_resolved(item, axis, d, declared) for axis, d in enumerate(item.dims)) for item in inputs
    )


def _resolved(item: Input, axis: int, dim: Range, declared: dict[SymbolName, tuple[Range, str]]) -> Range:
    if dim.name is None or (dim.min != DECLARED_ELSEWHERE and dim.derived is None):
        return dim
    where = f"input {item.name or '(unnamed)'}, dimension {axis}"
    name = dim.derived.base if dim.derived is not None else dim.name
    if name not in declared:
        known = ", ".join(declared) or "none"
        raise SpecError(
            f"the dimension name {name!r} has no range (declared: {known})",
            where=where,
            fix=f"write {name}=MIN:OPT:MAX in one place",
        )
    base = declared[name][0]
    return base if dim.derived is None else _following(base, dim.derived, where)


def _following(base: Range, derived: Derived, where: str) -> Range:
    assert base.max is not None
    if base.multiple > 1 or derived.factor < 1:
        raise SpecError(
            f"{derived} cannot follow from {base}",
            where=where,
            fix="let it follow from a dimension without '%'" if derived.factor else "use a factor of 1 or more",
        )
    low, opt, high = (derived.at(size) for size in (base.min, base.opt, base.max))
    if low < 1 or high > INT32_MAX:
        raise SpecError(f"{derived} goes from {low} to {high} for {base}", where=where, fix="use sizes of 1 or more")
    return Range(low, opt, high, str(derived), derived=derived)
