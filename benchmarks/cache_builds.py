"""Builds with AOTInductor: cold, with the fine-tuned twin from the cache, and with equal blocks in one model.

Each build has a process of its own, as a user's has; times are those that the build itself reports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import Figure

INPUTS = {
    "minilm": ["input_ids=int64[B=1:8:32, T=8:64:256] in 0..30521", "attention_mask=int64[B, T] in 0..1"],
    "transformer": ["x=float32[B=1:4:16, T=8:32:128, 16]"],
    "separated": ["x=float32[B=1:2:4, T=4:16:32, 64]"],
}

BUILD = """
import dataclasses, json, sys
from pathlib import Path

name, inputs, directory, shared = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] == "True"

from builder.pipeline import build
from builder.cache.options import CacheOptions
from builder.engines import SegmentCompiler
from builder.inputs import parse_input
from builder.settings import Settings
from builder.spec import BuildSpec

executed = ("aten::special_bessel_j0",) if name == "separated" else ()
if not shared:
    # Every segment is asked for as if nobody else could use its engine, and AOTInductor remembers nothing.
    import torch._inductor.config

    request = SegmentCompiler._request
    SegmentCompiler._request = lambda *given: dataclasses.replace(request(*given), shareable=False)
    torch._inductor.config.force_disable_caches = True
spec = BuildSpec(
    name="benchmark",
    source=f"benchmarks.models:{name}",
    base=Path.cwd(),
    inputs=tuple(map(parse_input, inputs)),
    settings=Settings(compiler="inductor", torch_executed_ops=executed),
)
result = build(spec, root=directory / "model_repo", cache=CacheOptions(directory / "cache"))
print(json.dumps({
    "seconds": result.seconds,
    "compiled": sum(s.hit is False for s in result.segments),
    "engines": sum(s.hit is not None for s in result.segments),
}))
"""


def measure() -> list[Figure]:
    """Ratios of compile stages and of whole builds."""
    figures = []
    for name in ("minilm", "transformer"):
        with tempfile.TemporaryDirectory() as directory:
            cold = _build(name, Path(directory))
            hit = _build(f"{name}_tuned", Path(directory))
        assert (cold["compiled"], hit["compiled"]) == (1, 0)
        figures += [
            Figure(
                f"{name}: compile stage cold / hit with new weights", _compile(cold) / _compile(hit), 50, least=True
            ),
            Figure(f"{name}: whole build cold / hit with new weights", _whole(cold) / _whole(hit), 5, least=True),
        ]
    with tempfile.TemporaryDirectory() as directory:
        shared = _build("separated", Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        apart = _build("separated", Path(directory), shared=False)
    assert (shared["engines"], apart["compiled"]) == (12, 12)
    return [
        *figures,
        Figure("12 equal blocks between fallback operators: compiles", shared["compiled"], 3),
        Figure("the same: compile stage without sharing / with", _compile(apart) / _compile(shared), 4, least=True),
    ]


def _compile(built: dict[str, Any]) -> float:
    return float(built["seconds"]["compile"])


def _whole(built: dict[str, Any]) -> float:
    return float(sum(built["seconds"].values()))


def _build(name: str, directory: Path, *, shared: bool = True) -> dict[str, Any]:
    """AOTInductor's own cache is as empty as ours: each call of `measure` has other directories."""
    inputs = INPUTS[name.removesuffix("_tuned")]
    done = subprocess.run(
        [sys.executable, "-c", BUILD, name, json.dumps(inputs), str(directory), str(shared)],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
