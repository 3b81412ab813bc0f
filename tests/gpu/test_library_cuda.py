"""The library and the torch.compile backend on a GPU. Skipped without CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import builder
from builder import Input
from builder.inprocess import CompiledGraph
from tests.integration.test_torch_compile import SHAPES, TWO, kinds, made
from tests.models.breaks import MLP, Broken, Hybrid

__all__ = ["made"]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

RANGE = Input(min_shape=(1, 16), opt_shape=(8, 16), max_shape=(32, 16))


def same(fast: Any, model: Any, *shape: int) -> None:
    x = torch.randn(*shape, device="cuda")
    with torch.no_grad():
        given = fast(x)
        assert given.is_cuda
        torch.testing.assert_close(given, model(x), rtol=1e-3, atol=1e-4)


def test_a_module_on_the_gpu_its_weights_streams_and_files(tmp_path: Path) -> None:
    model = MLP().eval().cuda()
    fast = builder.compile(model, [RANGE], compiler="inductor")
    assert fast.graph.manifest.target["device"] == "cuda"  # type: ignore[union-attr]
    same(fast, model, 4, 16)
    with torch.no_grad():
        model.first.weight.mul_(2)
    same(fast, model, 32, 16)
    stream = torch.cuda.Stream()
    x = torch.randn(8, 16, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), torch.no_grad():
        given = fast(x) * 2
    stream.synchronize()
    with torch.no_grad():
        torch.testing.assert_close(given, model(x) * 2, rtol=1e-3, atol=1e-4)
    builder.save(fast, tmp_path / "mlp.bin")  # type: ignore[arg-type]
    same(builder.load(tmp_path / "mlp.bin"), model, 5, 16)


def test_to_the_gpu_after_compiling() -> None:
    model = MLP().eval()
    fast = builder.compile(model, [RANGE], compiler="inductor")
    with torch.no_grad():
        x = torch.randn(4, 16)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    fast.cuda()
    same(fast, model, 4, 16)


@pytest.mark.parametrize("kind", [Hybrid, Broken])
def test_torch_compile(kind: type[Hybrid], made: list[CompiledGraph]) -> None:
    model = kind().eval().cuda()
    fast = torch.compile(
        model,
        backend="triton_repo",
        dynamic=False,
        options={"inputs": [TWO], "compiler": "inductor", "torch_executed_ops": ["aten::special_bessel_j0"] if kind is Hybrid else []},
    )  # fmt: skip
    for shape in SHAPES:
        same(fast, model, *shape)
    with torch.no_grad():
        model.before.weight.mul_(2)
    same(fast, model, 3, 5, 16)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (1 if kind is Hybrid else 2)
    assert kinds(made) == ([["engine", "fallback", "engine"]] if kind is Hybrid else [["engine"], ["engine"]])
    x = torch.randn(3, 5, 16, device="cuda", requires_grad=True)
    fast(x).square().sum().backward()
    found, x.grad = x.grad, None
    model(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-3, atol=1e-3)
