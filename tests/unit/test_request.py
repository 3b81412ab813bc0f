"""Requests are checked against the declared ranges by the runtime."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builder.errors import RequestError, ServingError
from builder.runtime.check import check_request
from builder.runtime.triton import TritonModel, instance_device
from builder.types import Derived, Range, TensorSpec

INPUTS = (
    TensorSpec("ids", "int64", (Range(1, 8, 32, "B"), Range(8, 64, 256, "T"))),
    TensorSpec("image", "float32", (Range(1, 8, 32, "B"), Range(3, 3, 3), Range(16, 32, 64, "H", 16))),
    TensorSpec("scale", "float32", ()),
    TensorSpec("targets", "float32", (Range(17, 129, 513, "2*T+1", derived=Derived("T", 2, 1)),)),
    TensorSpec("steps", "int64", (), (1, 9)),
)


def request(ids: tuple[int, ...] = (2, 8), image: tuple[int, ...] = (2, 3, 16), **extra: Any) -> dict[str, Any]:
    length = min(max(2 * ids[-1] + 1, 17), 513)
    return {
        "ids": np.zeros(ids, np.int64),
        "image": np.zeros(image, np.float32),
        "scale": np.zeros((), np.float32),
        "targets": np.zeros((length,), np.float32),
        "steps": np.array(4),
        **extra,
    }


@pytest.mark.parametrize("size", [(1, 8, 16), (32, 256, 64), (8, 64, 32)])
def test_in_range(size: tuple[int, int, int]) -> None:
    batch, length, height = size
    check_request(INPUTS, request((batch, length), (batch, 3, height)))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (request((33, 8), (33, 3, 16)), "dimension 0 of input 'ids' (B) is 33, outside the range 1 to 32"),
        (request((2, 257)), "dimension 1 of input 'ids' (T) is 257, outside the range 8 to 256"),
        (request((2, 7)), "dimension 1 of input 'ids' (T) is 7, outside the range 8 to 256"),
        (request((0, 8), (0, 3, 16)), "dimension 0 of input 'ids' (B) is 0, outside the range 1 to 32"),
        (request((2, 8), (3, 3, 16)), "dimension 0 of input 'image' is 3, but dimension 0 of input 'ids' is 2"),
        (request((2, 8), (2, 4, 16)), "dimension 1 of input 'image' is 4, the model takes 3"),
        (request((2, 8), (2, 3, 17)), "dimension 2 of input 'image' (H) is 17, the model takes multiples of 16"),
        (request((2, 8, 1)), "input 'ids' has 3 dimensions (shape [2, 8, 1]), the model takes 2"),
        (request(ids=(2, 8), **{"scale": np.zeros((1,), np.float32)}), "input 'scale' has 1 dimensions"),
        ({**request(), "ids": np.zeros((2, 8), np.int32)}, "input 'ids' has dtype int32, the model takes int64"),
        (request(**{"mask": np.zeros(1)}), "'mask' is not an input"),
        (
            request(targets=np.zeros(19, np.float32)),
            "dimension 0 of input 'targets' is 19, but must be 17: it is 2*T+1, and dimension 1 of input 'ids' (T) is 8",
        ),
        (request(steps=np.array(10)), "input 'steps' is 10, outside the range 1 to 9"),
        (request(steps=np.array(0)), "input 'steps' is 0, outside the range 1 to 9"),
    ],
)
def test_out_of_range(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_request(INPUTS, wrong)
    assert said in caught.value.what


@pytest.mark.parametrize(
    ("kind", "built_for", "device"),
    [("GPU", "cuda", "cuda:1"), ("GPU", "cpu", "cpu"), ("CPU", "cuda", "cpu"), ("CPU", "cpu", "cpu")],
)
def test_an_instance_runs_where_its_engines_were_built_for(kind: str, built_for: str, device: str) -> None:
    assert instance_device(kind, "1", {"device": built_for}) == device


def test_missing_input() -> None:
    with pytest.raises(RequestError, match="'scale' is missing"):
        check_request(INPUTS, {k: v for k, v in request().items() if k != "scale"})


def test_a_server_built_for_another_numpy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python backend of 24.10 in an environment with NumPy 2 hands every element over as the first one."""

    class Tensor:
        @staticmethod
        def from_dlpack(name: str, capsule: Any) -> Any:
            return SimpleNamespace(as_numpy=lambda: np.zeros((2, 3), np.int64))

    monkeypatch.setattr(np, "__version__", "2.1.0")
    with pytest.raises(ServingError, match="was not built for NumPy") as error:
        TritonModel(tmp_path, SimpleNamespace(Tensor=Tensor), {}, kind="CPU", device_id="0")
    assert error.value.fix is not None and "numpy<2" in error.value.fix
