"""Sample points, sample tensors and the comparison of outputs."""

from __future__ import annotations

import math

import pytest
import torch

from builder.errors import VerificationError
from builder.inputs import parse_input, resolve_names
from builder.settings import Settings
from builder.verify.compare import compare_outputs, compare_tensors
from builder.verify.samples import corner_points, extreme_points, make_tensors, points, random_points

INPUTS = resolve_names([parse_input("a=int64[B=1:8:32, T=8:64:256] in 5..9"), parse_input("b=float32[B, 3, 2:4:6%2]")])
DEFAULTS = Settings()


def test_corners_are_every_combination() -> None:
    found = {tuple(p.sizes.values()) for p in corner_points(INPUTS, 100)}
    assert found == {(b, t, x) for b in (1, 8, 32) for t in (8, 64, 256) for x in (2, 4, 6)}


def test_a_limit_keeps_the_extremes() -> None:
    found = [p.sizes for p in corner_points(INPUTS, 9)]
    assert len(found) <= 9
    assert {"B": 1, "T": 8, "b[2]": 2} in found
    assert {"B": 32, "T": 256, "b[2]": 6} in found
    assert {"B": 8, "T": 64, "b[2]": 4} in found
    assert {"B": 1, "T": 64, "b[2]": 4} in found


def test_extremes_are_named_and_told_once() -> None:
    one = [parse_input("x=float32[B=1:4:8]")]
    assert {name: p.sizes["B"] for name, p in extreme_points(one).items()} == {"min": 1, "opt": 4, "max": 8}
    assert list(extreme_points([parse_input("x=float32[B=4:4:8]")])) == ["min", "max"]
    assert list(extreme_points([parse_input("x=float32[4]")])) == ["min"]


def test_random_points_are_in_range_and_repeat() -> None:
    drawn = random_points(INPUTS, 200, seed=3)
    assert drawn == random_points(INPUTS, 200, seed=3)
    assert {p.sizes["b[2]"] for p in drawn} == {2, 4, 6}
    assert all(1 <= p.sizes["B"] <= 32 and 8 <= p.sizes["T"] <= 256 for p in drawn)


def test_a_static_model_has_one_point() -> None:
    static = [parse_input("x=float32[2, 3]")]
    ((_, only),) = points([static], max_corners=9, random_count=4, seed=0)
    assert str(only) == "static"
    assert make_tensors(static, only, 0)[0].shape == (2, 3)


def test_tensors_fit_the_point() -> None:
    point = corner_points(INPUTS, 100)[-1]
    ids, image = make_tensors(INPUTS, point, seed=0)
    assert (ids.shape, ids.dtype) == ((32, 256), torch.int64)
    assert (image.shape, image.dtype) == ((32, 3, 6), torch.float32)
    assert set(ids.unique().tolist()) == {5, 6, 7, 8, 9}


@pytest.mark.parametrize(
    ("dtype", "allowed"), [("float32", 1e-4), ("float16", 1e-2), ("bfloat16", 4e-2), ("float64", 1e-6)]
)
def test_tolerance_is_relative_to_the_largest_magnitude(dtype: str, allowed: float) -> None:
    kind = getattr(torch, dtype)
    reference = torch.tensor([100.0, 0.0], dtype=torch.float64)
    near = reference + torch.tensor([0.0, 100 * allowed * 0.9], dtype=torch.float64)
    far = reference + torch.tensor([0.0, 100 * allowed * 1.2], dtype=torch.float64)
    assert not compare_tensors(reference.to(kind), near.to(kind), DEFAULTS).problem
    assert "relative error" in compare_tensors(reference.to(kind), far.to(kind), DEFAULTS).problem


def test_integers_and_booleans_must_be_equal() -> None:
    ints = torch.tensor([1, 2, 3])
    assert not compare_tensors(ints, ints.clone(), DEFAULTS).problem
    assert "1 elements are not equal" in compare_tensors(ints, torch.tensor([1, 2, 4]), DEFAULTS).problem
    assert "are not equal" in compare_tensors(torch.tensor([True]), torch.tensor([False]), DEFAULTS).problem


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_must_be_the_same(odd: float) -> None:
    here, there = torch.tensor([odd, 1.0]), torch.tensor([1.0, odd])
    assert not compare_tensors(here, here.clone(), DEFAULTS).problem
    assert "other places" in compare_tensors(here, there, DEFAULTS).problem
    assert "other places" in compare_tensors(torch.tensor([1.0, 1.0]), here, DEFAULTS).problem


def test_infinities_of_other_sign_differ() -> None:
    assert "other places" in compare_tensors(torch.tensor([math.inf]), torch.tensor([-math.inf]), DEFAULTS).problem


def test_nan_is_not_infinity() -> None:
    assert "other places" in compare_tensors(torch.tensor([math.inf]), torch.tensor([math.nan]), DEFAULTS).problem


def test_shape_and_dtype_must_be_equal() -> None:
    assert "float32[2]" in compare_tensors(torch.zeros(2), torch.zeros(3), DEFAULTS).problem
    assert "float64[2]" in compare_tensors(torch.zeros(2), torch.zeros(2, dtype=torch.float64), DEFAULTS).problem


def test_the_error_names_output_and_sizes() -> None:
    expected = {"good": torch.ones(2), "bad": torch.ones(2)}
    actual = {"good": torch.ones(2).numpy(), "bad": torch.zeros(2).numpy()}
    with pytest.raises(VerificationError, match="output 'bad'") as caught:
        compare_outputs(expected, actual, DEFAULTS, "B=3, T=9")
    assert caught.value.where == "at B=3, T=9"


def test_an_empty_tensor_is_equal_to_itself() -> None:
    assert not compare_tensors(torch.zeros(0, 3), torch.zeros(0, 3), DEFAULTS).problem
