"""TensorRT-RTX's own parser and builder; both run without a GPU, an engine does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("tensorrt_rtx")

from builder.compilers.base import BuildContext
from builder.compilers.tensorrt.compiler import TensorRTRTXCompiler, optimization_profiles
from builder.errors import CompileError
from builder.export import export_model
from builder.inputs import parse_input
from builder.partition.partitioner import partition
from builder.partition.plan import PartitionPlan
from builder.pipeline import build
from builder.profiles import parse_profile
from builder.repository.config import validate_config
from builder.runtime.manifest import Manifest
from builder.settings import Settings
from builder.spec import find_spec
from tests.integration.test_build import CONVNET, HYBRID, spec
from tests.models.nets import hybrid

RUNS_HERE = TensorRTRTXCompiler().availability().can_run

# Bytes 0 to 3 of a TensorRT-RTX plan.
MAGIC = b"vtrt"


def planned(tmp_path: Path, module: torch.nn.Module, *inputs: str, profiles: tuple[str, ...] = ()) -> PartitionPlan:
    given = [parse_profile(p, p) for p in profiles]
    exported = export_model(module.eval(), [parse_input(i) for i in inputs], profiles=given)
    return partition(exported, TensorRTRTXCompiler().session(BuildContext(tmp_path)), Settings())


@pytest.mark.parametrize(("model", "engines"), [(CONVNET, 1), (HYBRID, 2)])
def test_builds_real_plans(tmp_path: Path, model: tuple[str, str], engines: int) -> None:
    result = build(spec(*model, compiler="tensorrt_rtx"), root=tmp_path / "repo")
    plans = [s for s in result.segments if s.compiler == "tensorrt_rtx"]
    assert len(plans) == engines
    directory = result.publication.path
    for segment in result.publication.manifest.segments:
        if segment.kind == "engine":
            assert (directory / segment.artifact).read_bytes()[:4] == MAGIC
    validate_config((directory.parent / "config.pbtxt").read_text(), "net")


@pytest.mark.skipif(RUNS_HERE, reason="engines run here, so they are verified")
def test_says_that_it_is_not_verified_here(tmp_path: Path) -> None:
    result = build(spec(*HYBRID, compiler="tensorrt_rtx"), root=tmp_path / "repo")
    assert not result.report.verified and "GPU" in result.report.reason
    manifest = Manifest.read(result.publication.path)
    assert manifest.verification["verified"] is False
    assert manifest.verification["reason"] == result.report.reason


def test_minilm(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    result = build(find_spec("minilm", overrides={"compiler": "tensorrt_rtx"}), root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["tensorrt_rtx"]
    assert result.segments[0].size > 80 << 20, "a full plan holds the weights"


def test_the_parser_says_what_falls_back(tmp_path: Path) -> None:
    class Nonzero(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x * torch.nonzero(x[0] > 0).shape[0])

    plan = planned(tmp_path, Nonzero(), "x=float32[B=1:2:4, 4]")
    reasons = {f.operator: f.reason for f in plan.fallbacks}
    assert reasons["aten.nonzero"].startswith("TensorRT-RTX: NonZero")
    assert any(s.kind == "engine" for s in plan.segments)


def test_an_unfolded_axis_is_no_reason_to_fall_back(tmp_path: Path) -> None:
    class Mean(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((1, 2), keepdim=True) + x.amax(1, keepdim=True)

    assert not planned(tmp_path, Mean(), "x=float32[B=1:2:4, 4, T=2:3:9]").fallbacks


def test_float64_is_refused_not_narrowed(tmp_path: Path) -> None:
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    plan = planned(tmp_path, Double(), "x=float64[B=1:2:4]")
    assert [s.kind for s in plan.segments] == ["fallback"]
    assert "no float64" in plan.fallbacks[0].reason


class ManyCandidates(torch.nn.Module):
    """TopK of more than 3840 parses, but no TensorRT kernel takes it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(torch.relu(x), 4000).values + 1


def many_candidates() -> torch.nn.Module:
    return ManyCandidates().eval()


def test_what_parses_and_does_not_build_is_left_to_pytorch(tmp_path: Path) -> None:
    name = f"{__name__}:many_candidates"
    result = build(spec(name, "x=float32[B=1:2:4, 5000]", compiler="tensorrt_rtx"), root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["torch"]
    assert any("does not build" in f.reason and "TensorRT-RTX" in f.reason for f in result.plan.fallbacks)
    with pytest.raises(CompileError, match="TensorRT-RTX"):
        build(
            spec(name, "x=float32[B=1:2:4, 5000]", compiler="tensorrt_rtx", require_full_compilation=True),
            root=tmp_path / "repo",
        )


def test_an_engine_has_each_profile_once(tmp_path: Path) -> None:
    plan = planned(tmp_path, hybrid(), HYBRID[1], profiles=("B=1, T=2:4:8", "B=4:8:32, T=8:16:64"))
    session = TensorRTRTXCompiler().session(BuildContext(tmp_path))
    for segment in (s for s in plan.segments if s.kind == "engine"):
        import tensorrt_rtx as trt

        logger = trt.Logger(trt.Logger.ERROR)
        trt_builder = trt.Builder(logger)
        network = trt_builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        assert trt.OnnxParser(network, logger).parse_from_file(str(session.lowered(segment).graph))
        found = optimization_profiles(trt_builder, network, segment)
        shapes = [[tuple(s) for s in p.get_shape("input_0")] for p in found]
        width = segment.inputs[0].dims[-1].max
        assert shapes == [
            [(1, 2, width), (1, 4, width), (1, 8, width)],
            [(4, 8, width), (8, 16, width), (32, 64, width)],
        ]
        directory = tmp_path / segment.name
        directory.mkdir()
        assert (directory / session.compile(segment, directory).file).read_bytes()[:4] == MAGIC
        assert session.fingerprint(segment).components["profiles"][1][0]["opt"] == [8, 16, width]


def test_every_name_used_exists_in_the_package() -> None:
    import tensorrt_rtx as trt

    for name in ("Builder", "OnnxParser", "ILogger", "NetworkDefinitionCreationFlag", "Runtime", "Logger"):
        assert hasattr(trt, name)
    for member in ("set_input_shape", "set_tensor_address", "get_tensor_shape", "execute_async_v3"):
        assert hasattr(trt.IExecutionContext, member)
    for member in ("num_io_tensors", "get_tensor_name", "get_tensor_mode", "create_execution_context"):
        assert hasattr(trt.ICudaEngine, member)
