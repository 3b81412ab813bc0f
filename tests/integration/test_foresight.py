"""Ranges are marked before Dynamo's first trace; where that cannot be, a second trace gives the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.callback import callback_handler

from builder.dynamo import backend, foresight
from tests.integration.test_torch_compile import RANGE, SHAPES, TWO, compiled, graphs, made, same
from tests.models.breaks import MLP, Broken, Hybrid, ThroughNumpy, ThroughPython

__all__ = ["made"]


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why Dynamo was asked to trace again, each time."""
    found: list[str] = []
    trace_again = backend.trace_again

    def noted(reason: str, sources: Any) -> None:
        found.append(reason)
        trace_again(reason, sources)

    monkeypatch.setattr(backend, "trace_again", noted)
    return found


def _reset(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()


def _another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight.convert_frame, "__file__", "elsewhere.py")


@pytest.mark.parametrize("kind", [Hybrid, Broken, ThroughNumpy, ThroughPython])
@pytest.mark.parametrize("lost", [None, _reset, _another_torch])
def test_one_trace(kind: type[Hybrid], lost: Callable[..., None] | None, again: list[str], monkeypatch: Any) -> None:
    if lost is not None:
        lost(monkeypatch)
    model = kind()
    fast = compiled(model, TWO)
    with torch.no_grad():
        for shape in SHAPES:
            same(fast, model, *shape)
    assert graphs() == (1 if kind is Hybrid else 2)
    # What comes from NumPy is no tensor before the trace.
    assert bool(again) == (lost is not None or kind is ThroughNumpy)


def test_a_reset_is_made_up_for_at_the_next_frame(again: list[str]) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        compiled(MLP(), RANGE)(torch.randn(4, 16))
        assert len(again) == 1
        compiled(Hybrid(), TWO)(torch.randn(2, 3, 16))
    assert len(again) == 1
    assert len(callback_handler.start_callbacks) == len(set(callback_handler.start_callbacks))


def test_other_backends_are_left_alone() -> None:
    x = torch.randn(4, 16)
    with torch.no_grad():
        torch.compile(MLP(), backend="eager")(x)
    assert not hasattr(x, "_dynamo_weak_dynamic_indices")


def test_a_size_that_the_model_fixes_is_not_tried_again(again: list[str]) -> None:
    model = MLP()
    with torch.no_grad(), pytest.raises(backend.ExportError, match="can only be 16"):
        compiled(model, "float32[B=1:8:32, T=4:16:32]")(torch.randn(4, 16))
    assert not again


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (5, "options is of type int"),
        ({"inputs": 5}, "an object of type int among the inputs"),
        ({"inputs": [RANGE, 5]}, "an object of type int among the inputs"),
        ({"inputs": [RANGE, RANGE]}, "2 Inputs are given"),
    ],
)
def test_what_cannot_be_read_is_said_by_the_backend(options: Any, said: str) -> None:
    with torch.no_grad(), pytest.raises(backend.SpecError, match=said):
        torch.compile(MLP(), backend="triton_repo", options=options)(torch.randn(4, 16))
