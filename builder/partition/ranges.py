"""Sizes of a tensor, (min, opt, max) per dimension, from its symbolic shape. No forward pass."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from builder.types import Range, SymbolName, TensorSpec, canonical_dtype

__all__ = ["dim_range", "expression_range", "tensor_spec"]

_UNBOUNDED = 2**31


def tensor_spec(name: str, value: torch.Tensor, symbols: Mapping[SymbolName, Range]) -> TensorSpec:
    """Name, dtype and ranges of a fake tensor.

    Args:
        name: of the tensor in the plan.
        value: the `meta["val"]` of its node.
        symbols: the declared range of each symbol; others are taken from the program's own bounds.
    """
    dtype = canonical_dtype(value.dtype) or str(value.dtype).removeprefix("torch.")
    return TensorSpec(name, dtype, tuple(dim_range(size, symbols) for size in value.shape))


def dim_range(size: int | torch.SymInt, symbols: Mapping[SymbolName, Range]) -> Range:
    """The range of one symbolic size: bounds by interval analysis, opt by evaluation.

    A size that is one declared symbol keeps its name; an expression is named by itself, written in
    declared names ("B*T"), so that equal names still mean equal sizes.
    """
    if isinstance(size, int):
        return Range(size, size, size)
    expression = size.node.expr
    if expression.is_number:
        return Range(int(expression), int(expression), int(expression))
    known = symbols.get(str(expression))
    if known is not None:
        return known
    return expression_range(expression, {s: _range_of(s, size, symbols) for s in expression.free_symbols})


def expression_range(expression: sympy.Expr, free: Mapping[sympy.Symbol, Range]) -> Range:
    """The range of an expression, named by itself in the names of its symbols.

    Args:
        free: the range of each of its symbols.
    """
    bounds = bound_sympy(
        expression, {s: ValueRanges(r.min, sympy.oo if r.max is None else r.max) for s, r in free.items()}
    )
    low = max(int(bounds.lower), 0) if bounds.lower.is_finite else 0
    high = int(bounds.upper) if bounds.upper.is_finite and bounds.upper < _UNBOUNDED**2 else None
    opt = int(expression.xreplace({s: sympy.Integer(r.opt) for s, r in free.items()}))
    name = str(expression.xreplace({s: sympy.Symbol(r.name or str(s)) for s, r in free.items()})).replace(" ", "")
    by_data = any(r.data_dependent for r in free.values())
    return Range(low, max(low, opt if high is None else min(opt, high)), high, name, data_dependent=by_data)


def _range_of(symbol: sympy.Symbol, size: torch.SymInt, symbols: Mapping[SymbolName, Range]) -> Range:
    known = symbols.get(str(symbol))
    if known is not None:
        return known
    environment = size.node.shape_env
    bounds = environment.bound_sympy(symbol)
    low = int(bounds.lower) if bounds.lower.is_finite else 0
    high = int(bounds.upper) if bounds.upper.is_finite and bounds.upper < _UNBOUNDED else None
    # A data-dependent size has no opt; its largest size is the one that an engine must be fast at.
    opt = max(low, 0) if high is None else high
    return Range(max(low, 0), opt, high, str(symbol), data_dependent=environment.is_unbacked_symint(symbol))
