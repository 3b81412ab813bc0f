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
    sizes = list(_sizes(program))
    if not sizes:
        yield
        return
    environment = sizes[0].node.shape_env
    # Of these symbols alone: retracing rightly replaces those that it makes up for sizes that depend on data.
    symbols = {s for size in sizes for s in size.node._expr.free_symbols}
    before = {s: (environment.replacements.get(s), environment.var_to_range.get(s)) for s in symbols}
    narrowed = {}
    try:
        yield
    finally:
        for symbol, (replaced, bounds) in before.items():
            now = (environment.replacements.get(symbol), environment.var_to_range.get(symbol))
            if now != (replaced, bounds):
                narrowed[str(symbol)] = str(now[1] if now[0] is None else now[0])
                _put_back(environment.replacements, symbol, replaced)
                _put_back(environment.var_to_range, symbol, bounds)
        if narrowed:
            environment._update_version_counter()
    if narrowed:
        raise SizesNarrowed(narrowed)


def _put_back(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _sizes(program: ExportedProgram) -> Iterator[torch.SymInt]:
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                yield size
