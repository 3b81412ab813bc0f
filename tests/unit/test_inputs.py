"""Inputs in Python and as text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from builder.errors import SpecError
from builder.inputs import Input, parse_input, resolve_names
from builder.types import Range


def test_text_and_python_mean_the_same() -> None:
    text = parse_input("input_ids=int64[B=1:8:32, T=8:64:256] in 0..30521")
    python = Input(
        min_shape=(1, 8),
        opt_shape=(8, 64),
        max_shape=(32, 256),
        dtype=torch.int64,
        name="input_ids",
        dim_names={0: "B", 1: "T"},
        value_range=(0, 30521),
    )
    assert text == python
    assert parse_input(str(text)) == text


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("x=float32[]", ()),
        ("x=float32[768]", (Range(768, 768, 768),)),
        ("x=float32[1:8:32]", (Range(1, 8, 32),)),
        ("x=float32[B=4]", (Range(4, 4, 4, "B"),)),
        ("x=float32[H=16:64:256%16]", (Range(16, 64, 256, "H", 16),)),
        (" x = float32 [ B = 1 : 2 : 3 , 4 ] ", (Range(1, 2, 3, "B"), Range(4, 4, 4))),
    ],
)
def test_dimensions(text: str, dims: tuple[Range, ...]) -> None:
    assert parse_input(text).dims == dims


@pytest.mark.parametrize(
    "dtype", [torch.float16, np.float16, "float16", "fp16", "half", "torch.float16", np.dtype("float16")]
)
def test_dtype_spellings(dtype: object) -> None:
    assert Input((1,), dtype=dtype).dtype == "float16"


def test_static_shape_forms() -> None:
    assert Input((1, 3)).dims == (Range(1, 1, 1), Range(3, 3, 3))
    assert Input(((1, 2, 3), "T=4:5:6", Range(7, 8, 9))).dims == (Range(1, 2, 3), Range(4, 5, 6, "T"), Range(7, 8, 9))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x=float32[5:2:8]", "min 5 is greater than opt 2"),
        ("x=float32[1:9:8]", "opt 9 is greater than max 8"),
        ("x=float32[-1:2:8]", "the size -1 is negative"),
        ("x=float32[0]", "the size 0 is zero"),
        ("x=float32[1:2]", "cannot read the size '1:2'"),
        ("x=float32[a:b:c]", "cannot read the size"),
        ("x=float32[1.5]", "cannot read the size"),
        ("x=float32[1:2:99999999999]", "does not fit into 32 bits"),
        ("x=float32[4:6:8%4]", "the size 6 is not a multiple of 4"),
        ("x=float23[4]", "unknown dtype 'float23'"),
        ("x=float32[4", "cannot read the input"),
        ("x=[4]", "cannot read the input"),
        ("x=float32", "cannot read the input"),
        ("x=float32[4] in 3..1", "the value range 3..1 is empty"),
        ("x=int64[4] in 0.5..2", "is not whole"),
        ("x=int64[4] in a..b", "cannot read the value range"),
        ("x=float32[1b=1:2:3]", "'1b' is not a name"),
    ],
)
def test_wrong_text(text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_input(text)
    assert said in caught.value.what
    assert text in str(caught.value)


def test_wrong_python() -> None:
    with pytest.raises(SpecError, match="no complete shape"):
        Input(min_shape=(1,), max_shape=(2,))
    with pytest.raises(SpecError, match="min_shape has 1 dimensions, opt_shape 2 and max_shape 1"):
        Input(min_shape=(1,), opt_shape=(1, 2), max_shape=(2,))
    with pytest.raises(SpecError, match="both `shape` and"):
        Input((1,), min_shape=(1,), opt_shape=(1,), max_shape=(1,))
    with pytest.raises(SpecError, match="dim_names names dimension 3"):
        Input((1,), dim_names={3: "B"})
    with pytest.raises(SpecError, match="input 'x', dimension 0: min 3 is greater than opt 2"):
        Input(min_shape=(3,), opt_shape=(2,), max_shape=(4,), name="x")
    with pytest.raises(SpecError, match="not whole numbers"):
        Input(min_shape=(1.5,), opt_shape=(2,), max_shape=(4,))  # type: ignore[arg-type]


def test_a_name_stands_for_its_range() -> None:
    first, second = resolve_names([parse_input("a=int64[B, T=2:3:4]"), parse_input("b=int64[B=1:8:32]")])
    assert first.dims == (Range(1, 8, 32, "B"), Range(2, 3, 4, "T"))
    assert second.dims == (Range(1, 8, 32, "B"),)


def test_one_name_has_one_range() -> None:
    with pytest.raises(SpecError, match="'B' has two ranges: B=1:8:32 and B=1:8:16") as caught:
        resolve_names([parse_input("a=int64[B=1:8:32]"), parse_input("b=int64[4, B=1:8:16]")])
    assert caught.value.where == "input a, dimension 0; input b, dimension 1"


def test_a_name_must_be_declared() -> None:
    with pytest.raises(SpecError, match=r"'T' has no range \(declared: B\)"):
        resolve_names([parse_input("a=int64[B=1:8:32, T]")])


def test_membership() -> None:
    assert 16 in Range(16, 64, 256, "H", 16)
    assert 24 not in Range(16, 64, 256, "H", 16)
    assert 257 not in Range(1, 2, 256)
    assert 10**9 in Range(0, 0, None)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("2*T", (4, 10, 18)), ("T+1", (3, 6, 10)), ("T-1", (1, 4, 8)), ("3 * T - 2", (4, 13, 25))],
)
def test_a_size_that_follows_from_another(text: str, sizes: tuple[int, int, int]) -> None:
    given = [parse_input(f"y=float32[{text}]"), parse_input("x=float32[T=2:5:9]")]
    for resolved in (resolve_names(given), resolve_names(resolve_names(given))):
        (dim,) = resolved[0].dims
        assert (dim.min, dim.opt, dim.max) == sizes
        assert str(resolved[0]) == f"y=float32[{text.replace(' ', '')}]"
    narrowed = resolve_names([resolved[0], parse_input("x=float32[T=3:3:4]")])
    assert narrowed[0].dims[0].opt < sizes[1]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["y=float32[2*T]"], "the dimension name 'T' has no range"),
        (["y=float32[T-2]", "x=float32[T=2:5:9]"], "T-2 goes from 0 to 7"),
        (["y=float32[0*T]", "x=float32[T=2:5:9]"], "0*T cannot follow from"),
        (["y=float32[2*T]", "x=float32[T=2:4:8%2]"], "2*T cannot follow from T=2:4:8%2"),
        (["y=float32[T*2]", "x=float32[T=2:4:8]"], "cannot read the size 'T*2'"),
    ],
)
def test_a_size_that_cannot_follow(texts: list[str], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve_names([parse_input(t) for t in texts])
    assert said in caught.value.what
