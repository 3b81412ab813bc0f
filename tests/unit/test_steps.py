"""The quick test of a request says the same as the slow one that explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import RequestError
from builder.runtime.check import check_request
from builder.runtime.steps import fits
from builder.types import Derived, Range, TensorSpec

INPUTS = (
    TensorSpec("ids", "int64", (Range(1, 8, 32, "B"), Range(8, 64, 256, "T"))),
    TensorSpec("image", "float32", (Range(1, 8, 32, "B"), Range(3, 3, 3), Range(16, 32, 64, "H", 16))),
    TensorSpec("targets", "float32", (Range(17, 129, 513, "2*T+1", derived=Derived("T", 2, 1)),)),
    TensorSpec("steps", "int64", (), (1, 9)),
)
TEST = fits(INPUTS)

near = st.sampled_from([-1, 0, 0, 0, 0, 0, 1])


@given(
    batch=st.sampled_from([0, 1, 2, 32, 33]),
    length=st.sampled_from([7, 8, 9, 256, 257]),
    height=st.sampled_from([16, 17, 32, 64, 80]),
    steps=st.sampled_from([0, 1, 9, 10]),
    wrong=st.lists(near, min_size=4, max_size=4),
    dtype=st.sampled_from(["int64", "int64", "int64", "int32"]),
    as_torch=st.booleans(),
)
def test_both_say_the_same(
    batch: int, length: int, height: int, steps: int, wrong: list[int], dtype: str, as_torch: bool
) -> None:
    arrays: dict[str, Any] = {
        "ids": np.zeros((batch, length), dtype),
        "image": np.zeros((max(batch + wrong[0], 0), 3 + wrong[1], height), np.float32),
        "targets": np.zeros((2 * length + 1 + wrong[2],), np.float32),
        "steps": np.array(steps),
    }
    if wrong[3]:
        arrays["targets"] = arrays["targets"][None]
    if as_torch:
        arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
    try:
        check_request(INPUTS, arrays)
        right = True
    except RequestError:
        right = False
    assert TEST(list(arrays.values())) == right
