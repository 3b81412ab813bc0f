"""In range, a loaded model never traces, compiles or loads anything again, with and without fallback segments."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch._dynamo
import torch.fx.experimental.proxy_tensor
import torch.fx.experimental.symbolic_shapes

from builder.pipeline import build
from builder.runtime.model import RuntimeModel
from builder.runtime.values import to_torch
from tests.integration.needs import needs_compiler
from tests.integration.test_build import HYBRID, spec
from tests.models.nets import hybrid

SIZES = [*itertools.product((1, 2, 7, 31, 32), (2, 3, 16, 63, 64))]


class Counter:
    """Counts what would be work that belongs to a build."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for owner, name in (
            (torch.fx.experimental.proxy_tensor, "dispatch_trace"),
            (torch.fx.experimental.symbolic_shapes.ShapeEnv, "__init__"),
            (torch._dynamo.convert_frame.ConvertFrame, "__call__"),
            (torch.fx.Interpreter, "__init__"),
            (torch.fx.GraphModule, "recompile"),
            (torch.export, "export"),
            (torch.export, "load"),
            (onnxruntime.InferenceSession, "__init__"),
        ):
            monkeypatch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append(name)
            return function(*arguments, **keywords)

        return call


@pytest.mark.parametrize(
    ("settings", "compilers"),
    [
        ({}, ["onnxruntime", "torch", "onnxruntime"]),
        ({"min_block_size": 1000}, ["torch"]),
        pytest.param({"compiler": "inductor"}, ["inductor"], marks=needs_compiler),
        pytest.param(
            {"compiler": "inductor", "torch_executed_ops": ["aten::special_bessel_j0"]},
            ["inductor", "torch", "inductor"],
            marks=[needs_compiler, pytest.mark.slow],
        ),
    ],
)
def test_nothing_is_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], compilers: list[str]
) -> None:
    result = build(spec(*HYBRID, **settings), root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == compilers
    net = hybrid()
    counter = Counter(monkeypatch)
    model = RuntimeModel(result.publication.path)
    assert counter.calls or compilers == ["inductor"], "loading is seen"
    counter.calls.clear()
    torch._dynamo.utils.counters.clear()
    for batch, length in SIZES:
        x = torch.randn(batch, length, 16)
        output = to_torch(model({"x": x.numpy()})["output"]).cpu()
        with torch.inference_mode():
            torch.testing.assert_close(output, net(x), rtol=1e-4, atol=1e-5)
    assert counter.calls == []
    assert not any(torch._dynamo.utils.counters.values())
    torch._dynamo.reset()
    torch.compile(lambda t: t.sin() + 1, backend="eager")(torch.ones(2))
    assert counter.calls or any(torch._dynamo.utils.counters.values()), "a compilation would have been seen"
