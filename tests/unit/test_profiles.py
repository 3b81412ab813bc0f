"""Optimization profiles: read, matched to the inputs, and chosen for a request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from builder.errors import RequestError, SpecError
from builder.export import export_model
from builder.inputs import Input, parse_input, resolve_names
from builder.partition.partitioner import partition
from builder.profiles import parse_profile, profiled_inputs
from builder.runtime.profiles import ProfileChooser
from builder.settings import Settings
from builder.spec import find_spec
from builder.types import Range, TensorSpec
from tests.models.nets import hybrid
from tests.unit.test_partition import Oracle


def inputs(*texts: str) -> tuple[Input, ...]:
    return resolve_names([i for t in texts if isinstance(i := parse_input(t), Input)])


GIVEN = inputs("x=float32[B=1:8:32, T=8:64:256]", "y=float32[B, 2*T, 3:4:5]", "steps=1:4:9")


@pytest.mark.parametrize("sizes", ["B=1, T=8:16:64, steps=1", {"B": 1, "T": "8:16:64", "steps": "1"}])
def test_reading(sizes: Any) -> None:
    profile = parse_profile(sizes, "here")
    assert profile.sizes == {"B": Range(1, 1, 1), "T": Range(8, 16, 64), "steps": Range(1, 1, 1)}
    assert str(profile) == "B=1, T=8:16:64, steps=1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("B", "cannot read 'B'"),
        ("B=1, B=2", "'B' stands twice"),
        ("B=C", "no range of sizes"),
        ("B=2*T", "no range of sizes"),
        ("B=x", "no range of sizes"),
        ("", "empty"),
        ("B=1:2", "cannot read"),
    ],
)
def test_what_is_no_profile(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said.replace("*", r"\*")) as caught:
        parse_profile(text, "profile 3")
    assert "profile 3" in str(caught.value)


def test_inputs_in_each_profile() -> None:
    small, large = profiled_inputs(
        GIVEN,
        [
            parse_profile("B=1, T=8:16:64, steps=1:2:3, y[2]=3", "0"),
            parse_profile("B=2:8:32, T=64:128:256, steps=3:4:9", "1"),
        ],
    )
    x, y, steps = small
    assert x.dims == (Range(1, 1, 1, "B"), Range(8, 16, 64, "T"))
    assert [(d.min, d.opt, d.max) for d in y.dims] == [(1, 1, 1), (16, 32, 128), (3, 3, 3)]
    assert steps.integer == Range(1, 2, 3) and steps.value_range == (1, 3)
    assert [(d.min, d.opt, d.max) for d in large[1].dims] == [(2, 8, 32), (128, 256, 512), (3, 4, 5)]
    assert profiled_inputs(GIVEN, []) == (GIVEN,)


@pytest.mark.parametrize(
    ("profiles", "said", "fix"),
    [
        (["b=1"], "'b' is no dimension of the inputs", "did you mean 'B'"),
        (["B=1:8:64"], "the size 64 of B is not in its range, B=1:8:32", "widen"),
        (["B=0:1:32"], "the size 0 of B is not in its range", "widen"),
        (["B=8:4:32"], "not in order", "min <= opt <= max"),
        (["B=1:8:32"] * 2, "profile 1 and profile 0 are equal", ""),
        (["B=1", "B=2:4:16"], "the profiles take B from 1 to 16, but it is declared as B=1:8:32", "declare B"),
        (["B=2:8:32"], "the profiles take B from 2 to 32", "declare B"),
        (["x[0]=1"], "'x[0]' is no dimension", "those that change are B, T, y[2], steps"),
    ],
)
def test_what_does_not_fit_the_inputs(profiles: list[str], said: str, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        profiled_inputs(GIVEN, [parse_profile(p, p) for p in profiles])
    assert said in caught.value.what and fix in (caught.value.fix or "")


def test_multiples_stay_multiples() -> None:
    image = inputs("x=float32[H=16:32:64%16]")
    with pytest.raises(SpecError, match="the size 24 of H is not in its range"):
        profiled_inputs(image, [parse_profile("H=16:24:64", "0")])
    (narrowed,), _ = profiled_inputs(image, [parse_profile("H=16", "0"), parse_profile("H=16:48:64", "1")])
    assert narrowed.dims == (Range(16, 16, 16, "H", 16),)


SMALL = (TensorSpec("x", "float32", (Range(1, 1, 1, "B"), Range(1, 8, 64, "T"))), TensorSpec("n", "int64", (), (1, 3)))
LARGE = (TensorSpec("x", "float32", (Range(1, 8, 32, "B"), Range(1, 8, 16, "T"))), TensorSpec("n", "int64", (), (1, 3)))
MANY = (TensorSpec("x", "float32", (Range(1, 8, 32, "B"), Range(1, 8, 16, "T"))), TensorSpec("n", "int64", (), (1, 9)))


@pytest.mark.parametrize(
    ("shape", "number", "chosen"),
    [((1, 8), 2, 1), ((1, 64), 2, 1), ((2, 8), 2, 2), ((32, 16), 3, 2), ((32, 16), 4, 0), ((1, 8), 9, 0)],
)
def test_the_tightest_profile_is_chosen(shape: tuple[int, int], number: int, chosen: int) -> None:
    request = {"x": np.zeros(shape, np.float32), "n": np.array(number)}
    assert ProfileChooser([MANY, SMALL, LARGE]).choose(request) == chosen


def test_sizes_in_no_profile() -> None:
    request = {"x": np.zeros((2, 17), np.float32), "n": np.array(1)}
    with pytest.raises(RequestError) as caught:
        ProfileChooser([SMALL, LARGE]).choose(request)
    assert "x [2, 17]" in caught.value.what
    assert "profile 0 (x: float32[1, T=1:8:64]" in (caught.value.fix or "")
    assert "profile 1 (x: float32[B=1:8:32, T=1:8:16]" in (caught.value.fix or "")


def test_boundaries_have_ranges_in_each_profile() -> None:
    model = export_model(
        hybrid().eval(),
        [parse_input("x=float32[B=1:8:32, T=2:16:64, 16]")],
        profiles=[parse_profile("B=1", "0"), parse_profile("T=2:4:8", "1")],
    )
    plan = partition(model, Oracle(["bessel"]), Settings())
    last = plan.segments[-1]
    assert [[(d.min, d.opt, d.max) for d in t.dims][:2] for (t,) in last.profiles] == [
        [(1, 1, 1), (2, 16, 64)],
        [(1, 8, 32), (2, 4, 8)],
    ]
    assert last.profile_indices == (0, 1)
    assert [[t.dims[0].max for t in p] for p in plan.profiles] == [[1], [32]]


class Separate(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.special.bessel_j0(x.exp() + 1), y.sum(0)


def test_a_segment_has_equal_profiles_once() -> None:
    model = export_model(
        Separate(),
        [parse_input("x=float32[B=1:8:32, 4]"), parse_input("y=float32[T=2:16:64, 16]")],
        profiles=[parse_profile("B=1", "0"), parse_profile("T=2", "1"), parse_profile("B=1, T=64", "2")],
    )
    plan = partition(model, Oracle(["bessel"]), Settings())
    fallback = next(s for s in plan.segments if s.kind == "fallback")
    assert len(fallback.engine_profiles) == 2 and fallback.profile_indices == (0, 1, 0)


def test_in_a_spec_file_and_on_the_command_line(tmp_path: Any) -> None:
    path = tmp_path / "net.toml"
    path.write_text(
        '[model]\nsource = "m:f"\n[inputs]\nx = "float32[B=1:8:32]"\n'
        '[[profile]]\nB = 1\n[[profile]]\nB = "2:8:32"\n[bounds]\n"y[0]" = "0:3:9"\n'
    )
    found = find_spec(str(path))
    assert [str(p) for p in found.profiles] == ["B=1", "B=2:8:32"]
    assert found.bounds == {"y[0]": Range(0, 3, 9, "y[0]", data_dependent=True)}
    other = find_spec(str(path), profiles=["B=1:1:8", "B=8:16:32"], bounds=["y[0]=0:1:4", "z[1]=3"])
    assert [str(p) for p in other.profiles] == ["B=1:1:8", "B=8:16:32"]
    assert (other.bounds["y[0]"].max, other.bounds["z[1]"].max) == (4, 3)
    for wrong in ("y[0]", "y[0]=5:4:3", "y[0]=B", "y[0]=2*B"):
        with pytest.raises(SpecError, match="cannot read"):
            find_spec(str(path), bounds=[wrong])
