"""The range of each symbol that the sizes of a program are written in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from builder.errors import ExportError, SpecError, did_you_mean
from builder.inputs import Input
from builder.tracing import dim_name
from builder.types import Range, SymbolName

__all__ = ["Bound", "matched_bounds", "output_values", "symbol_ranges", "user_placeholders"]


@dataclasses.dataclass(frozen=True, slots=True)
class Bound:
    """What is known of an output's size that depends on the data: the range of an axis of an output.

    Args:
        output: position among the outputs.
        axis: of its shape.
        size: named "boxes[0]".
    """

    output: int
    axis: int
    size: Range


def user_placeholders(program: ExportedProgram) -> list[torch.fx.Node]:
    """The program's inputs that a caller gives, in order."""
    user = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    return [n for n in program.graph.find_nodes(op="placeholder") if n.name in user]


def output_values(program: ExportedProgram) -> list[torch.fx.Node]:
    """The tensors that the program returns, in order."""
    leaves = program.graph.output_node().args[0]
    assert isinstance(leaves, Sequence)
    return [n for n in leaves if isinstance(n, torch.fx.Node) and isinstance(n.meta.get("val"), torch.Tensor)]


def symbol_ranges(
    program: ExportedProgram, inputs: Sequence[Input], bounds: Sequence[Bound] = ()
) -> dict[SymbolName, Range]:
    """The range of each symbol that stands for a dimension or a whole number of the inputs, or that has a bound.

    Every retracing makes up other symbols for whole numbers and for sizes that depend on the data.

    Args:
        program: the exported one, or one that was made of it.
        inputs: with the declared ranges, or those of a profile.
        bounds: of sizes that depend on the data.
    Raises:
        ExportError: when a dimension has a range and the program one size.
    """
    return {**_dimensions(program, inputs), **_integers(program, inputs), **_bounded(program, bounds)}


def _dimensions(program: ExportedProgram, inputs: Sequence[Input]) -> dict[SymbolName, Range]:
    symbols: dict[SymbolName, Range] = {}
    for node, item in zip(user_placeholders(program), inputs, strict=True):
        for axis, (size, dim) in enumerate(zip(node.meta["val"].shape, item.dims, strict=True)):
            if isinstance(size, int):
                if dim.is_static:
                    continue
                raise ExportError(
                    f"torch.export fixes dimension {axis} of input {item.name!r} ({dim}) at {size}",
                    fix=f"declare the size {size} alone, or find what in the model needs it with TORCH_LOGS=+dynamic",
                )
            if dim.derived is not None:
                continue
            (symbol,) = size.node.expr.free_symbols
            name, k = dim_name(item, axis, dim), dim.multiple
            assert dim.max is not None
            if size.node.expr == symbol:
                symbols[str(symbol)] = Range(dim.min, dim.opt, dim.max, name)
            else:
                symbols[str(symbol)] = Range(dim.min // k, dim.opt // k, dim.max // k, f"({name}/{k})")
    return symbols


def _integers(program: ExportedProgram, inputs: Sequence[Input]) -> dict[SymbolName, Range]:
    found: dict[SymbolName, Range] = {}
    for node, item in zip(user_placeholders(program), inputs, strict=True):
        numbers = item.integer
        if numbers is None:
            continue
        for user in node.users:
            value = user.meta.get("val")
            if isinstance(value, torch.SymInt) and value.node.expr.is_symbol:
                found[str(value.node.expr)] = Range(numbers.min, numbers.opt, numbers.max, item.name)
    return found


def _bounded(program: ExportedProgram, bounds: Sequence[Bound]) -> dict[SymbolName, Range]:
    outputs = output_values(program)
    return {str(_expression(outputs[b.output].meta["val"].shape[b.axis])): b.size for b in bounds}


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    return sympy.Integer(size) if isinstance(size, int) else size.node.expr


def matched_bounds(
    program: ExportedProgram, output_names: Sequence[str], sizes: Mapping[str, Range]
) -> tuple[Bound, ...]:
    """The bounds of a program, from ranges by "OUTPUT[AXIS]".

    Raises:
        SpecError: when there is no such output or axis, or its size does not depend on the data alone.
    """
    open_sizes: dict[str, tuple[int, int, sympy.Expr]] = {}
    for index, (name, node) in enumerate(zip(output_names, output_values(program), strict=True)):
        for axis, size in enumerate(node.meta["val"].shape):
            expression = _expression(size)
            if expression.is_symbol and node.meta["val"].fake_mode.shape_env.is_unbacked_symint(expression):
                open_sizes[f"{name}[{axis}]"] = (index, axis, expression)
    unknown = [name for name in sizes if name not in open_sizes]
    if unknown:
        raise SpecError(
            f"the bound {unknown[0]!r} is for no size of an output that depends on the data",
            where="bounds",
            fix=f"{did_you_mean(unknown[0], open_sizes)}such sizes here are {', '.join(open_sizes) or 'none'}",
        )
    symbols = [open_sizes[name][2] for name in sizes]
    double = [name for name, symbol in zip(sizes, symbols, strict=True) if symbols.count(symbol) > 1]
    if double:
        raise SpecError(
            f"the bounds {' and '.join(map(repr, double))} are for one and the same size",
            where="bounds",
            fix="keep one",
        )
    return tuple(Bound(*open_sizes[name][:2], size) for name, size in sizes.items())
