"""The library and the torch.compile backend on a GPU. Skipped without CUDA."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import builder
from builder import Input
from builder.inprocess import CompiledGraph
from tests.integration.test_torch_compile import SHAPES, TWO, kinds, made
from tests.integration.threads import together
from tests.models.breaks import MLP, Broken, Hybrid

__all__ = ["made"]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

RANGE = Input(min_shape=(1, 16), opt_shape=(8, 16), max_shape=(32, 16))


class Found(MLP):
    """Adds up places that the data say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(self.first(x) > 0).sum(0)


def same(fast: Any, model: Any, *shape: int) -> None:
    x = torch.randn(*shape, device="cuda")
    with torch.no_grad():
        given = fast(x)
        assert given.is_cuda
        torch.testing.assert_close(given, model(x), rtol=1e-3, atol=1e-4)


def test_a_module_on_the_gpu_its_weights_streams_and_files(tmp_path: Path) -> None:
    model = MLP().eval().cuda()
    fast = builder.compile(model, [RANGE], compiler="inductor")
    assert fast.graph.running.manifest.target["device"] == "cuda"  # type: ignore[union-attr]
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


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("ops", [[], ["aten::special_bessel_j0"]])
def test_cuda_graphs(ops: list[str], precision: str, recwarn: pytest.WarningsRecorder) -> None:
    model = Hybrid().eval().cuda()
    fast = builder.compile(
        model, [TWO], compiler="inductor", cuda_graphs=True, torch_executed_ops=ops, precision=precision
    )
    runners = [step[1].__self__ for step in fast.graph._state.steps._steps]  # type: ignore[union-attr]
    assert len(runners) == (3 if ops else 1)
    kept = []
    for number in range(4):
        for shape in SHAPES:
            x = torch.randn(*shape, device="cuda")
            with torch.inference_mode(number % 2 == 1), torch.no_grad():
                kept.append((fast(x), model(x)))
    for given, expected in kept:
        torch.testing.assert_close(given, expected, rtol=1e-2, atol=1e-2 if precision == "fp16" else 1e-4)
    assert [len(r._graphs._captured) for r in runners] == [len(SHAPES)] * len(runners)
    assert not [w for w in recwarn if "CUDA graphs" in str(w.message)]
    with torch.no_grad():
        model.before.weight.mul_(2)
    x = torch.randn(*SHAPES[0], device="cuda")
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=1e-2, atol=1e-2)


def test_a_search_for_kernels_leaves_weights_alone() -> None:
    model = MLP().eval().cuda()
    fast = builder.compile(
        model, [RANGE], compiler="inductor", precision="fp16", max_autotune=True, require_full_compilation=True
    )
    x = torch.randn(8, 16, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-2, atol=1e-2)
        model.first.weight.mul_(2)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-2, atol=1e-2)


def test_cuda_graphs_in_threads_and_streams() -> None:
    model = MLP().eval().cuda()
    fast = builder.compile(model, [RANGE], compiler="inductor", cuda_graphs=True)

    def call(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            for number in range(40):
                x = torch.randn(1 + (seed + number) % 3, 16, device="cuda")
                torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)

    together([functools.partial(call, seed) for seed in range(4)])


def test_what_no_graph_can_hold_runs_without() -> None:
    model = Found().eval().cuda()
    with pytest.warns(UserWarning, match="captures no more CUDA graphs"):
        fast = builder.compile(model, [RANGE], compiler="inductor", cuda_graphs=True)
        for _ in range(3):
            x = torch.randn(4, 16, device="cuda")
            with torch.no_grad():
                torch.testing.assert_close(fast(x), model(x))
    torch.randn(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = torch.randn(4, device="cuda")
    graph.replay()
    assert drawn.abs().sum() > 0, "a capture that failed leaves everything as it was"


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
