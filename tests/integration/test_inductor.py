"""AOTInductor on the CPU: compiled with the real C++ compiler, verified, kept in the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch._inductor import config

from builder.compilers import inductor
from builder.compilers.inductor import InductorCompiler
from builder.errors import CompileError, PartitionError, RequestError, SpecError
from builder.pipeline import build
from builder.runtime.model import RuntimeModel
from builder.settings import InductorSettings
from tests.integration.needs import needs_compiler
from tests.integration.test_build import HYBRID, spec
from tests.integration.told import Told

pytestmark = needs_compiler


def test_the_hybrid_is_one_segment_and_then_a_hit(tmp_path: Path) -> None:
    first = build(spec(*HYBRID, compiler="inductor"), root=tmp_path / "repo")
    assert [(s.compiler, s.hit) for s in first.segments] == [("inductor", False)]
    assert first.report.verified and first.report.worst is not None and first.report.worst.relative < 1e-4
    again = build(spec(*HYBRID, compiler="inductor"), root=tmp_path / "repo")
    assert [s.hit for s in again.segments] == [True]
    assert not again.publication.created
    model = RuntimeModel(first.publication.path)
    with pytest.raises(RequestError, match="outside the range 1 to 32"):
        model({"x": np.zeros((33, 2, 16), np.float32)})


def test_a_search_for_kernels_leaves_weights_alone(tmp_path: Path) -> None:
    """On the CPU its kernels would hold packed weights, which no refit could change."""
    with config.patch(max_autotune=True):  # type: ignore[attr-defined]
        result = build(spec("first_half", HYBRID[1], compiler="inductor"), root=tmp_path / "repo")
    assert [(s.compiler, s.hit) for s in result.segments] == [("inductor", False)]
    assert result.report.verified
    again = spec(
        "first_half", HYBRID[1], compiler="inductor", inductor=InductorSettings(max_autotune=True), device="cpu"
    )
    with pytest.raises(SpecError, match="max_autotune is for a GPU"):
        build(again, root=tmp_path / "repo")


def test_boundaries_are_contiguous_whatever_eager_makes_of_them(tmp_path: Path) -> None:
    """PyTorch's fallback hands over a transposed view; the engine is compiled for a contiguous tensor."""
    strided = spec(
        "Transposed", "x=float32[B=2:4:8, T=3:5:9, 16]", torch_executed_ops=["aten::transpose"], compiler="inductor"
    )
    result = build(strided, root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["inductor", "torch", "inductor"]
    assert result.report.verified


@pytest.mark.parametrize(
    ("compiler", "segments"), [("inductor", ["inductor"]), ("onnxruntime", ["onnxruntime", "torch", "onnxruntime"])]
)
def test_a_python_int_becomes_a_size(tmp_path: Path, compiler: str, segments: list[str]) -> None:
    structured = spec(
        "Structured",
        "batch.values=float32[B=1:2:4, T=2:5:9, 8]",
        "extra.0=float32[B, T, 8]",
        "extra.1=float32[B, T, 8]",
        "copies=1:3:7",
        compiler=compiler,
    )
    result = build(structured, root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == segments
    assert result.report.verified and result.report.points == 31
    (shape,) = (o.tensor.dims for o in result.plan.outputs if o.tensor.name == "copies")
    assert (shape[1].min, shape[1].opt, shape[1].max) == (1, 3, 7)


def test_an_engine_for_another_device_is_refused(tmp_path: Path) -> None:
    first = build(spec(*HYBRID, compiler="inductor"), root=tmp_path / "repo")
    other = "cuda:0" if first.publication.manifest.target["device"] == "cpu" else "cpu"
    with pytest.raises(CompileError, match=r"is loaded for cpu|Incorrect device"):
        RuntimeModel(first.publication.path, device=other)
    artifact = first.publication.path / "segment_0" / "model.pt2"
    artifact.write_bytes(artifact.read_bytes()[:1000])
    with pytest.raises(CompileError, match="inductor cannot load segment_0"):
        RuntimeModel(first.publication.path)


def test_without_a_cpp_compiler_pytorch_runs_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "_cxx", lambda: None)
    state = InductorCompiler().availability()
    assert not state.can_build and "C++ compiler" in state.detail
    told = Told()
    result = build(spec(*HYBRID, compiler="inductor"), root=tmp_path / "repo", progress=told)
    assert [s.compiler for s in result.segments] == ["torch"] and result.report.verified
    assert len(told.warnings) == 1 and "PyTorch runs everything: install a C++ compiler" in told.warnings[0]
    assert all("needs a C++ compiler" in f.reason for f in result.plan.fallbacks) and result.plan.fallbacks
    with pytest.raises(PartitionError, match="C\\+\\+ compiler"):
        build(spec(*HYBRID, compiler="inductor", require_full_compilation=True), root=tmp_path / "repo")
