"""One dimension, or one size, as text."""

from __future__ import annotations

import re

from builder.errors import SpecError
from builder.types import Derived, Range

__all__ = ["DECLARED_ELSEWHERE", "DIM_FORM", "NAME", "parse_bound", "parse_dim", "parse_sizes"]

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_DERIVED = re.compile(rf"(?:(?P<factor>\d+)\s*\*\s*)?(?P<base>{NAME})\s*(?:(?P<offset>[+-]\s*\d+))?")
DIM_FORM = (
    "write a number (768), MIN:OPT:MAX (1:8:32), NAME=MIN:OPT:MAX (B=1:8:32), a NAME given elsewhere (B), "
    "a size that follows from it (2*B, B+1, 2*B-1), "
    "or MIN:OPT:MAX%K for multiples of K (H=64:256:512%16)"
)

# A bare name in text stands for the range that another dimension of that name declares.
DECLARED_ELSEWHERE = -1


def parse_dim(text: str, where: str) -> Range:
    """One dimension as text: `768`, `1:8:32`, `B=1:8:32`, `H=64:256:512%16`, `B` alone, or `2*B+1`.

    A name alone stands for the range that another dimension of that name declares.

    Raises:
        SpecError: when the text is none of these.
    """
    name, eq, sizes = text.rpartition("=")
    name, sizes = name.strip(), sizes.strip()
    elsewhere = (DECLARED_ELSEWHERE, DECLARED_ELSEWHERE, DECLARED_ELSEWHERE)
    if not eq and re.fullmatch(NAME, sizes):
        return Range(*elsewhere, sizes)
    follows = None if eq else _DERIVED.fullmatch(sizes)
    if follows is not None:
        offset = int((follows["offset"] or "0").replace(" ", ""))
        derived = Derived(follows["base"], int(follows["factor"] or 1), offset)
        return Range(*elsewhere, str(derived), derived=derived)
    if eq and not re.fullmatch(NAME, name):
        raise SpecError(f"{where}: {name!r} is not a name", fix=DIM_FORM)
    sizes, percent, step = sizes.partition("%")
    try:
        numbers = [int(p) for p in sizes.split(":")]
        multiple = int(step) if percent else 1
    except ValueError:
        numbers = []
    if len(numbers) == 1 and not percent:
        return Range(numbers[0], numbers[0], numbers[0], name or None)
    if len(numbers) == 3:
        return Range(numbers[0], numbers[1], numbers[2], name or None, multiple)
    raise SpecError(f"{where}: cannot read the size {text.strip()!r}", fix=DIM_FORM)


def parse_sizes(text: str, where: str) -> Range | None:
    """A size or MIN:OPT:MAX alone; None for a dimension that is more than that.

    Raises:
        SpecError: when the text is no dimension.
    """
    size = parse_dim(text, where)
    return size if size.name is None and size.multiple == 1 else None


def parse_bound(name: str, text: str, where: str) -> Range:
    """The range of an output's size, under the name of the output and its axis.

    Raises:
        SpecError: when it cannot be read or is not in order.
    """
    size = parse_sizes(text, where)
    if size is None or size.max is None or not 0 <= size.min <= size.opt <= size.max:
        raise SpecError(
            f"cannot read the bound {name} = {text!r}",
            where=where,
            fix="write OUTPUT[AXIS] = MIN:OPT:MAX, for example boxes[0] = 0:100:300",
        )
    return Range(size.min, size.opt, size.max, name, data_dependent=True)
