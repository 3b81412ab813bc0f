"""TensorRT-RTX: how networks build in each precision, what our adapter adds to a bare build, and how much memory one takes.

No GPU is needed. TensorRT proper is not measured: no machine of this project has it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import Figure

# Three profiles each: single requests, some, and many.
NETWORKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "resnet": (
        ("pixel_values=float32[B=1:8:32, 3, 224, 224]",),
        ("B=1", "B=2:4:8", "B=8:16:32"),
    ),
    "vit": (("pixel_values=float32[B=1:8:32, 3, 224, 224]",), ("B=1", "B=2:4:8", "B=8:16:32")),
    "minilm": (
        ("input_ids=int64[B=1:8:32, T=8:64:256] in 0..30521", "attention_mask=int64[B, T] in 0..1"),
        ("B=1, T=8:32:64", "B=1:4:8", "B=8:16:32, T=8:64:256"),
    ),
    "hybrid": (
        ("input_ids=int64[B=1:8:32, T=8:64:128] in 0..999",),
        ("B=1, T=8:32:64", "B=1:4:8", "B=8:16:32, T=8:64:128"),
    ),
}
PRECISIONS = ("fp32", "fp16", "bf16")
ROUNDS = 3

# Ten products of 8192 x 8192 in float32.
WIDTH, LAYERS = 8192, 10


def measure() -> Iterator[Figure]:
    """Figures of each network and precision, then of memory."""
    for name in NETWORKS:
        ours, bare = 0.0, 0.0
        for precision in PRECISIONS:
            with tempfile.TemporaryDirectory() as work:
                session, plan = _planned(name, precision, Path(work))
                engines = [s for s in plan.segments if s.kind == "engine"]
                for reason in sorted({f"{f.operator}: {f.reason}" for f in plan.fallbacks}):
                    print(f"{name} in {precision}, left to PyTorch: {reason}", flush=True)
                yield Figure(f"{name} in {precision}: share of operators in engines", plan.coverage, 0.9, least=True)
                for segment in engines:
                    one, other = _times(session, segment, Path(work))
                    ours, bare = ours + one, bare + other
        yield Figure(f"{name}: our builds / bare ones, all precisions", ours / bare, 1.1)
    with tempfile.TemporaryDirectory() as work:
        _lower_large(Path(work))
        weights = WIDTH * WIDTH * LAYERS * 4
        yield Figure("2.7 GB model: peak memory of parsing and building / weights", _peak(Path(work)) / weights, 2.3)


def _planned(name: str, precision: str, work: Path) -> tuple[Any, Any]:
    from benchmarks import architectures
    from builder.compilers.base import BuildContext
    from builder.compilers.tensorrt.compiler import TensorRTRTXCompiler
    from builder.export import export_model
    from builder.inputs import parse_input
    from builder.partition.partitioner import partition
    from builder.profiles import parse_profile
    from builder.settings import Settings

    inputs, profiles = NETWORKS[name]
    settings = Settings(precision=precision)
    session = TensorRTRTXCompiler().session(BuildContext(work, settings))
    model = export_model(
        getattr(architectures, name)(),
        [parse_input(i) for i in inputs],
        profiles=[parse_profile(p, p) for p in profiles],
    )
    return session, partition(model, session, settings)


def _times(session: Any, segment: Any, work: Path) -> tuple[float, float]:
    """Seconds of parsing and building a segment, by the adapter and by a minimal script; the best of some rounds each."""
    session.fingerprint(segment)
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for index, build in enumerate((_ours, _bare)):
            started = time.perf_counter()
            build(session, segment, work)
            best[index] = min(best[index], time.perf_counter() - started)
    return best[0], best[1]


def _ours(session: Any, segment: Any, work: Path) -> None:
    # What was parsed when the partitioner asked does not count for us.
    session._parsed.clear()
    session.compile(segment, work)


def _bare(session: Any, segment: Any, work: Path) -> None:
    import tensorrt_rtx as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(session.lowered(segment).graph))
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    for inputs in segment.engine_profiles:
        profile = builder.create_optimization_profile()
        for index, tensor in enumerate(inputs):
            profile.set_shape(f"input_{index}", *(tensor.shape(p) for p in ("min", "opt", "max")))
        config.add_optimization_profile(profile)
    (work / "bare.plan").write_bytes(builder.build_serialized_network(network, config))


def _lower_large(work: Path) -> None:
    """The large model in ONNX, written in a process of its own, whose memory does not count."""
    _python(_LOWER, work)


def _peak(work: Path) -> int:
    """Bytes that a process needs at most that parses and builds it."""
    return int(_python(_BUILD, work)) * 1024


def _python(code: str, work: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code, str(work)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.split()[-1] if done.stdout.split() else ""


_LOWER = f"""
import sys, torch
from pathlib import Path
from builder.export import export_model
from builder.inputs import parse_input
from builder.lowering.onnx import lower_to_onnx
from builder.partition.partitioner import partition
from builder.settings import Settings
class Takes:
    prepare = lambda self, program: program
    screen = examine = lambda self, program: {{}}
net = torch.nn.Sequential(*(torch.nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})))
model = export_model(net.eval(), [parse_input("input=float32[B=1:8:32, {WIDTH}]")])
(segment,) = partition(model, Takes(), Settings()).segments
lower_to_onnx(segment, Path(sys.argv[1]))
"""

_BUILD = f"""
import resource, sys
from pathlib import Path
from types import SimpleNamespace
import tensorrt_rtx as trt
from builder.compilers.tensorrt.build import build_plan
from builder.compilers.tensorrt.config import builder_config
from builder.compilers.tensorrt.flavour import TENSORRT_RTX
from builder.compilers.tensorrt.network import parse_network
from builder.progress import Silent
from builder.settings import Settings
work = Path(sys.argv[1])
parsed, refused = parse_network(trt, TENSORRT_RTX, SimpleNamespace(directory=work, graph=work / "model.onnx"), ())
assert parsed is not None, refused
config = builder_config(trt, TENSORRT_RTX, parsed.builder, Settings())
profile = parsed.builder.create_optimization_profile()
profile.set_shape("input_0", (1, {WIDTH}), (8, {WIDTH}), (32, {WIDTH}))
config.add_optimization_profile(profile)
build_plan(trt, TENSORRT_RTX, parsed, config, work / "model.plan", timeout=None, progress=Silent())
assert (work / "model.plan").stat().st_size > {WIDTH * WIDTH * LAYERS * 4}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
