"""What torch knows of the symbolic sizes of a program, kept as it was declared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram

__all__ = ["SizesNarrowed", "sizes_kept"]


class SizesNarrowed(Exception):
    """Something was done to a program that works for fewer sizes than the program."""

    def __init__(self, narrowed: dict[str, str]) -> None:
        super().__init__("the size " + ", ".join(f"{name} narrowed to {now}" for name, now in narrowed.items()))


@contextlib.contextmanager
def sizes_kept(program: ExportedProgram) -> Iterator[None]:
    """Have a retracing or a compilation change nothing of what is known of a program's sizes.

    Programs that were made of each other share what torch knows of their sizes. A frozen one is
    narrowed without an error, and from then on all of them would speak of fewer sizes, or of one.

    Raises:
        SizesNarrowed: when it would have; what was known is put back.
    """
    environment = _environment(program)
    if environment is None:
        yield
        return
    replacements, ranges = dict(environment.replacements), dict(environment.var_to_range)
    before = _bounds(program)
    try:
        yield
    finally:
        after = _bounds(program)
        environment.replacements.clear()
        environment.replacements.update(replacements)
        environment.var_to_range.update(ranges)
        environment._update_version_counter()
    narrowed = {name: now for name, now in after.items() if before.get(name, now) != now}
    if narrowed:
        raise SizesNarrowed(narrowed)


def _sizes(program: ExportedProgram) -> Iterator[torch.SymInt]:
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                yield size


def _environment(program: ExportedProgram) -> Any:
    size = next(_sizes(program), None)
    return None if size is None else size.node.shape_env


def _bounds(program: ExportedProgram) -> dict[str, str]:
    """Bounds of each symbol of the program's inputs, or what it was replaced by."""
    found: dict[str, str] = {}
    for size in _sizes(program):
        environment = size.node.shape_env
        for symbol in size.node._expr.free_symbols:
            replaced = environment.replacements.get(symbol)
            found[str(symbol)] = str(environment.bound_sympy(symbol) if replaced is None else replaced)
    return found
