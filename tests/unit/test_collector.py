"""The collector is as it was before, whoever asked for pauses."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from builder import plan
from builder.collector import collector_paused
from builder.errors import BuilderError


def test_pauses_may_lie_in_each_other_and_beside_each_other() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        thread.start()
        inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join(10)
    assert gc.isenabled()


def test_who_has_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_is_on_after_a_model_that_cannot_be_traced() -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    with pytest.raises(BuilderError):
        plan(Fails(), ["float32[B=1:2:4]"])
    assert gc.isenabled()
