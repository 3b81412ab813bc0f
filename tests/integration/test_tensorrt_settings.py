"""TensorRT-RTX's real parser and builder: settings, precisions, dtypes, profiles, time limits, Ctrl-C. No GPU is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import onnx
import pytest
import torch

pytest.importorskip("tensorrt_rtx")


import tensorrt_rtx as trt
import torch.ao.quantization.fx._decomposed  # Registers quantized_decomposed.

from builder.cache.key import engine_key
from builder.compilers.base import BuildContext
from builder.compilers.tensorrt.build import build_plan
from builder.compilers.tensorrt.compiler import TensorRTCompiler, TensorRTRTXCompiler
from builder.compilers.tensorrt.config import builder_config, keyed_settings
from builder.compilers.tensorrt.flavour import TENSORRT_RTX
from builder.compilers.tensorrt.network import WeightlessGraph, empty_network, parse_network
from builder.compilers.tensorrt.profiles import optimization_profiles
from builder.engines import engine_components
from builder.errors import CompileError, SpecError
from builder.export import export_model
from builder.inputs import parse_input
from builder.partition.partitioner import partition
from builder.partition.plan import PartitionPlan, Segment
from builder.profiles import parse_profile
from builder.progress import Silent
from builder.settings import Settings, TensorRTSettings
from tests.integration.told import Told
from tests.models.nets import Block, hybrid

# Bytes 0 to 3 of a plan.
MAGIC = b"vtrt"
INPUT = "x=float32[B=2:3:7, T=2:5:9, 8]"


def session(work: Path, progress: Any = None, **settings: Any) -> Any:
    return TensorRTRTXCompiler().session(BuildContext(work, Settings(**settings), work / "state", progress or Silent()))


def planned(made: Any, module: torch.nn.Module, *inputs: str, profiles: tuple[str, ...] = ()) -> PartitionPlan:
    model = export_model(
        module.eval(), [parse_input(i) for i in inputs], profiles=[parse_profile(p, p) for p in profiles]
    )
    return partition(model, made, made.context.settings)


def compiled(made: Any, segment: Segment, work: Path) -> Path:
    directory = work / f"compiled_{len(list(work.iterdir()))}"
    directory.mkdir()
    plan: Path = directory / made.compile(segment, directory).file
    assert plan.read_bytes()[:4] == MAGIC
    return plan


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimization_level": 3}, "optimization_level"),
        ({"tactic_sources": ("JIT_CONVOLUTIONS",)}, "tactic_sources"),
        ({"hardware_compatibility": "ampere_plus"}, "hardware_compatibility"),
        ({"version_compatible": True}, "version_compatible"),
        ({"dla_core": 0}, "dla_core"),
        ({"dla_sram_size": 1 << 20}, "dla_sram_size"),
        ({"compute_capabilities": ("9.0",)}, "compute_capabilities"),
        ({"workspace_size": 2**70}, "workspace_size"),
        ({"plugins": ("/no/such/plugin.so",)}, "plugins"),
    ],
)
def test_a_setting_that_it_does_not_take_is_an_error(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        planned(session(tmp_path, tensorrt=TensorRTSettings(**settings)), Block(8), INPUT)
    assert said in (caught.value.where or "")


def test_settings_reach_the_configuration() -> None:
    given = TensorRTSettings(
        workspace_size=64 << 20, tactic_dram=32 << 20, tactic_shared_memory=1 << 16, max_aux_streams=2, sparse_weights=True,
        strict_nans=True, tiling_optimization_level="moderate", l2_limit_for_tiling=1 << 20, profiling_verbosity="detailed",
        engine_capability="standard", compute_capabilities=("8.6", "12.0"),
    )  # fmt: skip
    _, builder, _ = empty_network(trt)
    config = builder_config(trt, TENSORRT_RTX, builder, Settings(tensorrt=given, precision="tf32"))
    assert config.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 64 << 20
    assert config.get_memory_pool_limit(trt.MemoryPoolType.TACTIC_DRAM) == 32 << 20
    assert config.max_aux_streams == 2 and config.l2_limit_for_tiling == 1 << 20
    assert config.get_flag(trt.BuilderFlag.SPARSE_WEIGHTS) and config.get_flag(trt.BuilderFlag.STRICT_NANS)
    assert config.get_flag(trt.BuilderFlag.TF32)
    assert config.tiling_optimization_level == trt.TilingOptimizationLevel.MODERATE
    assert config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert [config.get_compute_capability(i) for i in range(2)] == [
        trt.ComputeCapability.SM86,
        trt.ComputeCapability.SM120,
    ]
    assert not builder_config(trt, TENSORRT_RTX, builder, Settings()).get_flag(trt.BuilderFlag.TF32), (
        "float32 is float32"
    )


def test_what_decides_an_engine_is_in_its_key() -> None:
    base = keyed_settings(Settings())
    assert keyed_settings(Settings(precision="tf32")) != base
    assert keyed_settings(Settings(tensorrt=TensorRTSettings(workspace_size=1 << 30))) != base
    for same in ({"build_timeout": 9.0}, {"timing_cache": False}):
        assert keyed_settings(Settings(tensorrt=TensorRTSettings(**same))) == base
    assert keyed_settings(Settings(cuda_graphs=True)) == base
    zeros = (
        "optimization_level",
        "dla_core",
        "max_aux_streams",
        "workspace_size",
        "tactic_dram",
        "l2_limit_for_tiling",
    )
    for zero in zeros:
        assert keyed_settings(Settings(tensorrt=TensorRTSettings(**{zero: 0}))) != base, "0 is not the default"
    target = TensorRTRTXCompiler().target(Settings(tensorrt=TensorRTSettings(compute_capabilities=("8.9", "8.6"))))
    assert target["compute_capabilities"] == ["8.6", "8.9"]


def test_only_some_gpus(tmp_path: Path) -> None:
    made = session(tmp_path, tensorrt=TensorRTSettings(compute_capabilities=("8.6", "12.0")))
    (segment,) = planned(made, Block(8), INPUT).segments
    compiled(made, segment, tmp_path)
    turing = session(tmp_path, tensorrt=TensorRTSettings(compute_capabilities=("7.5",)))
    (segment,) = planned(turing, Block(8), INPUT).segments
    with pytest.raises(CompileError, match="Turing"):
        compiled(turing, segment, tmp_path)


def test_the_other_flavour_says_how_to_get_it(tmp_path: Path) -> None:
    if TensorRTCompiler().flavour.installed:
        pytest.skip("TensorRT is installed")
    with pytest.raises(CompileError, match="tensorrt is not installed") as caught:
        TensorRTCompiler().session(BuildContext(tmp_path))
    assert "pip install" in (caught.value.fix or "")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_every_precision_builds_with_three_profiles(tmp_path: Path, precision: str) -> None:
    made = session(tmp_path, precision=precision)
    plan = planned(
        made,
        hybrid(),
        "x=float32[B=1:8:32, T=2:16:64, 16]",
        profiles=("B=1, T=2:4:8", "B=1:2:4", "B=8:16:32, T=2:16:64"),
    )
    engines = [s for s in plan.segments if s.kind == "engine"]
    assert len(engines) == 2 and plan.fallbacks[0].operator == "aten.special_bessel_j0"
    for segment in engines:
        assert len(segment.engine_profiles) == 3
        compiled(made, segment, tmp_path)
        assert "weights" in made.fingerprint(segment).components, "this builder cannot strip, so weights are in the key"


def test_that_it_cannot_strip_is_said_once(tmp_path: Path) -> None:
    told = Told()
    made = session(tmp_path, told)
    for segment in planned(made, hybrid(), "x=float32[B=1:8:32, T=2:16:64, 16]").segments:
        if segment.kind == "engine":
            assert made.fingerprint(segment).refit == "none"
    assert len([n for n in told.notes if "without weights" in n]) == 1
    assert session(tmp_path, tensorrt=TensorRTSettings(refit="none"))._refit == "none"


class Dtypes(torch.nn.Module):
    def forward(self, flags: torch.Tensor, counts: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.where(flags, x * scale, x), counts + 1, ~flags, (x.sum() * scale).to(torch.float16)


def test_dtypes_and_scalars_at_the_boundary(tmp_path: Path) -> None:
    made = session(tmp_path)
    given = ("flags=bool[B=1:2:4]", "counts=int64[B]", "x=float32[B]", "scale=float32[]")
    (segment,) = planned(made, Dtypes(), *given).segments
    assert segment.kind == "engine"
    compiled(made, segment, tmp_path)


class Padded(torch.nn.Module):
    def forward(self, x: torch.Tensor, width: int) -> torch.Tensor:
        return torch.nn.functional.pad(x, (0, width)) * 2


def test_values_that_are_sizes(tmp_path: Path) -> None:
    made = session(tmp_path)
    plan = planned(made, Padded(), "x=float32[B=1:2:4, 8]", "width=1:4:9", profiles=("width=1", "width=2:4:9"))
    (segment,) = plan.segments
    compiled(made, segment, tmp_path)
    assert made.fingerprint(segment).components["values"] == [[None, [1, 1]], [None, [2, 9]]]
    parsed, refused = parse_network(trt, TENSORRT_RTX, made.lowered(segment), ())
    assert parsed is not None and not refused
    assert [parsed.network.get_input(i).is_shape_tensor for i in range(2)] == [False, True]


class Quantised(torch.nn.Module):
    """INT8 as ModelOpt and torchao leave it in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(-32, 32, dtype=torch.int8).reshape(8, 8), requires_grad=False)
        self.register_buffer("scale", torch.linspace(0.001, 0.01, 8))
        self.register_buffer("zero", torch.zeros(8, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        x = ops.quantize_per_tensor(x, 0.02, 0, -128, 127, torch.int8)
        x = ops.dequantize_per_tensor(x, 0.02, 0, -128, 127, torch.int8)
        weight = ops.dequantize_per_channel(self.weight, self.scale, self.zero, 0, -128, 127, torch.int8)
        return torch.nn.functional.linear(x, weight).relu()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_quantised_graphs_pass_through(tmp_path: Path, precision: str) -> None:
    made = session(tmp_path, precision=precision)
    (segment,) = planned(made, Quantised(), "x=float32[B=1:2:4, 8]").segments
    assert segment.kind == "engine"
    text = made.lowered(segment).text()
    assert "QuantizeLinear" in text and "DequantizeLinear" in text
    compiled(made, segment, tmp_path)


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum(-1)


def test_float64_is_narrowed_only_when_asked(tmp_path: Path) -> None:
    plan = planned(session(tmp_path), Double(), "x=float64[B=1:2:4, 8]")
    assert [s.kind for s in plan.segments] == ["fallback"]
    assert all("truncate_double" in f.reason for f in plan.fallbacks)
    made = session(tmp_path, truncate_double=True)
    (segment,) = planned(made, Double(), "x=float64[B=1:2:4, 8]").segments
    compiled(made, segment, tmp_path)
    assert segment.inputs[0].dtype == "float64", "requests keep their dtype"


class InnerDouble(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x.double() * 1e-3 + 1e10) - 1e10).float().relu()


def test_float64_inside_a_segment_is_not_narrowed_either(tmp_path: Path) -> None:
    plan = planned(session(tmp_path), InnerDouble(), "x=float32[B=1:2:4, 8]")
    assert any("would compute it in float32" in f.reason for f in plan.fallbacks)
    assert [s.kind for s in plan.segments if "aten.sub" in s.operators] == ["fallback"]


def test_one_profile_with_another_opt_is_another_engine(tmp_path: Path) -> None:
    keys = []
    for profiles in ((), ("B=2:5:7",)):
        made = session(tmp_path)
        (segment,) = planned(made, Block(8), INPUT, profiles=profiles).segments
        keys.append(
            engine_key(engine_components(TensorRTRTXCompiler(), Settings(), made.fingerprint(segment), segment))
        )
    assert keys[0] != keys[1]


def test_weights_are_mapped_not_copied(tmp_path: Path) -> None:
    made = session(tmp_path)
    (segment,) = planned(made, torch.nn.Linear(512, 512), "input=float32[B=1:2:4, 512]").segments
    graph = WeightlessGraph.read(made.lowered(segment))
    assert sum(size for _, _, size in graph.weights) == 4 * (512 * 512 + 512)
    assert len(graph.model) < 4096


def test_a_graph_of_unknown_rank_is_refused(tmp_path: Path) -> None:
    made = session(tmp_path)
    (segment,) = planned(made, torch.nn.Linear(4, 4), "input=float32[B=1:2:4, 4]").segments
    lowered = made.lowered(segment)
    model = onnx.load(lowered.graph, load_external_data=False)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, lowered.graph)
    parsed, refused = parse_network(trt, TENSORRT_RTX, lowered, ())
    assert parsed is None and "the rank of input_0 is not known" in refused[None]


def test_a_build_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    made = session(tmp_path, tensorrt=TensorRTSettings(build_timeout=1e-6))
    (segment,) = planned(made, blocks(), INPUT.replace("x=", "input=")).segments
    directory = tmp_path / "late"
    directory.mkdir()
    with pytest.raises(CompileError, match="longer than"):
        made.compile(segment, directory)
    again = session(tmp_path)
    (segment,) = planned(again, blocks(), INPUT.replace("x=", "input=")).segments
    compiled(again, segment, tmp_path)


def blocks() -> torch.nn.Module:
    return torch.nn.Sequential(*(Block(8) for _ in range(6))).eval()


def test_phases_are_shown_and_the_caller_can_stop_it(tmp_path: Path) -> None:
    made = session(tmp_path)
    (segment,) = planned(made, blocks(), INPUT.replace("x=", "input=")).segments
    parsed, _ = parse_network(trt, TENSORRT_RTX, made.lowered(segment), ())
    assert parsed is not None
    config = builder_config(trt, TENSORRT_RTX, parsed.builder, Settings())
    for profile in optimization_profiles(parsed.builder, parsed.network, segment):
        config.add_optimization_profile(profile)

    class Interrupts(Silent):
        phases: ClassVar[list[str]] = []

        def step(self, text: str, done: int, total: int) -> None:
            self.phases.append(text)
            raise KeyboardInterrupt

    path = tmp_path / "stopped.plan"
    with pytest.raises(KeyboardInterrupt):
        build_plan(trt, TENSORRT_RTX, parsed, config, path, timeout=None, progress=Interrupts())
    assert Interrupts.phases and Interrupts.phases[0].startswith("TensorRT-RTX: ")
    assert not path.exists()


CTRL_C = """
import os, signal, sys, threading, time
from pathlib import Path
from tests.integration.test_tensorrt_settings import *
work = Path(sys.argv[1])
made = session(work)
(segment,) = planned(made, torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))), "input=float32[B=1:2:4, 4096]").segments
directory = work / "out"
directory.mkdir()
made._refit
threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
started = time.monotonic()
try:
    made.compile(segment, directory)
except KeyboardInterrupt:
    print("stopped", list(directory.iterdir()))
"""


def test_ctrl_c_stops_the_builder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "stopped []"
