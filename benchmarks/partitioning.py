"""How real architectures are split: engine segments and coverage on two parsers, and whether they compute the same.

Each is planned and built by the command, as a user would, without a word about the model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import Figure
from benchmarks.architectures import INPUTS

COMPILERS = ("onnxruntime", "tensorrt_rtx")
_COMMAND = str(Path(sys.executable).parent / "triton-repo")
SMALL, LARGE = 1_000, 10_000


def measure() -> Iterator[Figure]:
    """Figures of each architecture, and the time that splitting takes."""
    for name in INPUTS:
        for compiler in COMPILERS:
            plan = _run("plan", name, "--compiler", compiler)
            engines = [s for s in plan["segments"] if s["kind"] == "engine"]
            yield Figure(f"{name} on {compiler}: engine segments", len(engines), 1)
            yield Figure(f"{name} on {compiler}: share of operators in them", plan["coverage"], 1, least=True)
        with tempfile.TemporaryDirectory() as place:
            built = _run("build", name, "--compiler", "onnxruntime", "--repo", f"{place}/r", "--cache", f"{place}/c")
        errors = [o["relative"] for o in built["verification"]["outputs"]]
        yield Figure(f"{name}: worst relative error on onnxruntime", max(errors), 1e-4)
    small, large = _seconds(SMALL), _seconds(LARGE)
    yield Figure(f"splitting {LARGE} operators, seconds", large, 10)
    yield Figure(f"the same / {SMALL} operators, per operator", large / small * SMALL / LARGE, 2)


def _run(command: str, name: str, *options: str) -> Any:
    inputs = [word for text in INPUTS[name] for word in ("-i", text)]
    done = subprocess.run(
        [_COMMAND, command, f"benchmarks.architectures:{name}", *inputs, *options, "--json"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{name}: {done.stdout or done.stderr}")
    return json.loads(done.stdout)


class _Alternating:
    """A compiler that refuses one operator of two kinds, so that there are many segments."""

    def prepare(self, program: Any) -> Any:
        return program

    def screen(self, program: Any) -> Mapping[str, str]:
        return {n.name: "no sin" for n in program.graph.nodes if "sin" in n.name}

    def examine(self, segment: Any) -> Mapping[str, str]:
        return {}


def _seconds(operators: int) -> float:
    """To split a chain in which PyTorch runs each hundredth operator."""
    import torch

    from builder.export import export_model
    from builder.inputs import parse_input
    from builder.partition.partitioner import partition
    from builder.settings import Settings

    class Chain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for index in range(operators):
                x = torch.sin(x) if index % 100 == 99 else x + 1
            return x

    model = export_model(Chain(), [parse_input("x=float32[B=1:2:4, T=2:3:4]")])
    started = time.perf_counter()
    partition(model, _Alternating(), Settings())
    return time.perf_counter() - started
