"""What a call of a compiled module costs beside its engines, in this process, and beside eager PyTorch and torch.compile."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch

import builder
from benchmarks import Figure
from builder.compiled_module import CompiledModule
from builder.compilers.inductor import InductorCompiler
from builder.dynamo.backend import _Call
from builder.runtime.runners import _InductorRunner, _OnnxRuntimeRunner, _TorchRunner

ROUNDS = 9
CALLS = 2000
RANGE = "x=float32[B=1:8:32, 16]"


class Tiny(torch.nn.Module):
    """Some layers with an operator in between that PyTorch is told to run."""

    def __init__(self, cuts: int) -> None:
        super().__init__()
        self.cuts = cuts
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.cuts):
            x = torch.special.bessel_j0(self.layer(x))
        return torch.relu(self.layer(x))


def _nothing(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """A backend that does nothing: what is left is Dynamo's own cost."""
    answer = (torch.zeros(8, 16),)
    return lambda *args: answer


def measure() -> Iterator[Figure]:
    """Medians of rounds in turn, so that a machine that changes its mind is seen by all alike."""
    compilers = ["onnxruntime", *(["inductor"] if InductorCompiler().availability().can_build else [])]
    for compiler in compilers:
        with tempfile.TemporaryDirectory() as cache:
            costs = {cuts: _costs(compiler, cuts, cache) for cuts in (0, 2)}
        for way in ("builder.compile", "torch.compile"):
            one = costs[0][way]
            yield Figure(f"{compiler}: {way} over the bare engine, microseconds", one, 20)
            further = (costs[2][way] - one) / 4
            yield Figure(f"{compiler}: {way}, each further segment, microseconds", further, 10)


def _costs(compiler: str, cuts: int, cache: str) -> dict[str, float]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Tiny(cuts).eval()
    options: dict[str, Any] = {"compiler": compiler, "cache_dir": cache}
    if cuts:
        options["torch_executed_ops"] = ["aten::special_bessel_j0"]
    library = builder.compile(model, [RANGE], verify=False, **options)
    assert isinstance(library, CompiledModule)
    dynamo = torch.compile(model, backend="triton_repo", dynamic=False, options={"inputs": [RANGE], **options})
    plain = torch.compile(model, dynamic=True)
    alone = torch.compile(model, backend=_nothing, dynamic=True)
    x = torch.randn(8, 16)
    steps = library.graph._state.steps._steps
    with torch.no_grad():
        taken = [torch.randn(8, 16) for _ in steps]
        ways: dict[str, Callable[[], Any]] = {
            "bare engines": lambda: [step[1]([value], 0) for step, value in zip(steps, taken, strict=True)],
            "builder.compile": lambda: library(x),
            "torch.compile": lambda: dynamo(x),
            "Dynamo alone": lambda: alone(x),
            "eager": lambda: model(x),
            "torch.compile with inductor": lambda: plain(x),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for name in [*ways] * ROUNDS:
            times[name].append(_seconds(ways[name]))
    medians = {name: statistics.median(rounds) * 1e6 for name, rounds in times.items()}
    for name, value in medians.items():
        print(f"{compiler}, {len(steps)} segments: {name:40} {value:9.3g} microseconds", flush=True)
    return {
        "builder.compile": medians["builder.compile"] - medians["bare engines"],
        # Dynamo's own cost, before it calls what a backend gave it, is in the figures above for all alike.
        "torch.compile": _inside(dynamo, x) * 1e6,
    }


def _inside(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> float:
    """Seconds between Dynamo's call of the backend's result and its return, without those in engines."""
    whole: list[float] = []
    engines: list[float] = []

    def timed(function: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            started = time.perf_counter()
            result = function(*args)
            into.append(time.perf_counter() - started)
            return result

        return run

    kinds = [_OnnxRuntimeRunner, _InductorRunner, _TorchRunner]
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(_Call, "__call__", timed(_Call.__call__, whole)))
        for kind in kinds:
            stack.enter_context(patch.object(kind, "run", timed(kind.run, engines)))
        torch._dynamo.reset()
        with torch.no_grad():
            for _ in range(300):
                call(x)
            whole.clear()
            engines.clear()
            for _ in range(CALLS):
                call(x)
    each = len(engines) // len(whole)
    runs = [sum(engines[i * each : (i + 1) * each]) for i in range(len(whole))]
    return statistics.median(w - e for w, e in zip(whole, runs, strict=True))


def _seconds(call: Callable[[], Any]) -> float:
    for _ in range(100):
        call()
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS
