"""Ranges of computed sizes: no size that can occur is outside of them."""

from __future__ import annotations

import itertools

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from builder.partition.ranges import expression_range
from builder.types import Range

B, T = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))
FREE = {B: Range(1, 3, 5, "B"), T: Range(2, 7, 12, "T")}

numbers = st.integers(1, 7).map(sympy.Integer)
expressions = st.recursive(
    st.one_of(st.sampled_from([B, T]), numbers),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, numbers).map(lambda p: p[0] - p[1]),
        st.tuples(inner, numbers).map(lambda p: FloorDiv(p[0], p[1])),
        # Of a negative number it is refused as soon as it is written, and no size is one.
        st.tuples(inner, numbers).filter(lambda p: not (p[0].is_Number and p[0] < 0)).map(lambda p: Mod(p[0], p[1])),
        st.tuples(inner, inner).map(lambda p: Max(*p)),
        st.tuples(inner, inner).map(lambda p: Min(*p)),
    ),
    max_leaves=6,
).filter(lambda e: bool(e.free_symbols))


def values(expression: sympy.Expr) -> dict[tuple[int, int], int]:
    places = itertools.product(range(1, 6), range(2, 13))
    return {(b, t): int(expression.xreplace({B: sympy.Integer(b), T: sympy.Integer(t)})) for b, t in places}


@settings(deadline=None, max_examples=150)
@given(expressions)
def test_every_size_is_in_the_range(expression: sympy.Expr) -> None:
    try:
        found = values(expression)
    except AssertionError:
        return  # a modulus of a negative number, which no size is
    if min(found.values()) < 0:
        return
    given = expression_range(expression, {s: FREE[s] for s in expression.free_symbols})
    assert given.min <= min(found.values())
    assert given.max is None or max(found.values()) <= given.max
    assert given.opt == found[3, 7]


@pytest.mark.parametrize(
    ("expression", "low", "opt", "high", "name"),
    [
        (2 * T, 4, 14, 24, "2*T"),
        (FloorDiv(T - 1, 2) + 1, 1, 4, 6, None),
        (B * T, 2, 21, 60, "B*T"),
        (B + T, 3, 10, 17, "B+T"),
        (Mod(T, 4), 0, 3, 3, None),
        (Max(B, T), 2, 7, 12, None),
        (Min(B, T), 1, 3, 5, None),
        (T * (13 - T) + 1, 3, 43, 133, None),
    ],
)
def test_bounds_and_opt(expression: sympy.Expr, low: int, opt: int, high: int, name: str | None) -> None:
    given = expression_range(expression, {s: FREE[s] for s in expression.free_symbols})
    assert (given.min, given.opt, given.max) == (low, opt, high)
    assert name is None or given.name == name
