"""No answer of an engine leaves before one was compared with PyTorch's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builder.cache.store import LocalStore
from builder.compilers import onnxruntime
from builder.errors import CompileError
from builder.inprocess import CompiledGraph
from builder.runtime.steps import Steps
from tests.integration.test_engine_sharing import other_function
from tests.integration.test_torch_compile import RANGE, compiled, made, same
from tests.models.breaks import MLP

__all__ = ["made"]


def test_a_wrong_answer_is_an_error_until_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Steps.run
    monkeypatch.setattr(Steps, "run", lambda self, inputs, profile=0: [v + 1 for v in right(self, inputs, profile)])
    model = MLP()
    fast = compiled(model, RANGE)
    with torch.no_grad():
        for _ in range(3):
            with pytest.raises(CompileError, match="output 0 differs from eager PyTorch"):
                fast(torch.randn(4, 16))
        monkeypatch.setattr(Steps, "run", right)
        same(fast, model, 4, 16)


@pytest.mark.parametrize("fault", ["differs", "does not load", "does not run"])
def test_a_wrong_engine_out_of_the_cache_is_put_aside(
    fault: str, tmp_path: Path, made: list[CompiledGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MLP()
    store = LocalStore(tmp_path / "cache")
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(onnxruntime._Session, "compile", other_function(onnxruntime, "onnxruntime"))
        with pytest.raises(CompileError, match="differs from eager PyTorch"), pytest.warns(match="put aside"):
            compiled(model, RANGE)(torch.randn(4, 16))
    aside = store.quarantined()
    torch._dynamo.reset()
    if fault != "differs":
        _break_once(fault, monkeypatch)
    with torch.no_grad(), pytest.warns(match="put aside"):
        same(compiled(model, RANGE), model, 4, 16)
    (segment,) = made[-1].running.compilation.segments
    assert not segment.hit
    assert store.quarantined() == aside + 1
    torch._dynamo.reset()
    with torch.no_grad():
        same(compiled(model, RANGE), model, 4, 16)
    (segment,) = made[-1].running.compilation.segments
    assert segment.hit


def _break_once(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner of the wrong engine does not even get as far as a wrong answer."""
    from builder import inprocess

    load = inprocess.load_runner

    def fail(*args: object, **kwargs: object) -> None:
        monkeypatch.setattr(inprocess, "load_runner", load)
        raise RuntimeError("a file of another version")

    def load_broken(*args: object, **kwargs: object) -> object:
        runner = load(*args, **kwargs)  # type: ignore[arg-type]
        monkeypatch.setattr(inprocess, "load_runner", load)
        monkeypatch.setattr(runner, "run", fail)
        return runner

    monkeypatch.setattr(inprocess, "load_runner", fail if fault == "does not load" else load_broken)


def test_what_runs_for_a_wider_range_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MLP()
    fast = compiled(model, RANGE, out_of_range="recompile")
    right = Steps.run
    with torch.no_grad():
        same(fast, model, 4, 16)
        monkeypatch.setattr(Steps, "run", lambda self, inputs, profile=0: [v + 1 for v in right(self, inputs, profile)])
        with pytest.raises(CompileError, match="output 0 differs from eager PyTorch"):
            fast(torch.randn(40, 16))
        monkeypatch.setattr(Steps, "run", right)
        same(fast, model, 40, 16)
