"""AOTInductor on the CPU: compiled with the real C++ compiler, verified, kept in the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from builder.build import build
from builder.compilers.inductor import InductorCompiler
from builder.errors import CompileError, RequestError
from builder.runtime.model import RuntimeModel
from tests.integration.test_build import HYBRID, spec

pytestmark = pytest.mark.skipif(not InductorCompiler().availability().can_build, reason="needs a C++ compiler")


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


def test_boundaries_are_contiguous_whatever_eager_makes_of_them(tmp_path: Path) -> None:
    """PyTorch's fallback hands over a transposed view; the engine is compiled for a contiguous tensor."""
    strided = spec(
        "Transposed", "x=float32[B=2:4:8, T=3:5:9, 16]", torch_executed_ops=["aten::transpose"], compiler="inductor"
    )
    result = build(strided, root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["inductor", "torch", "inductor"]
    assert result.report.verified


def test_without_a_cpp_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    state = InductorCompiler().availability()
    assert not state.can_build and "C++ compiler" in state.detail
    with pytest.raises(CompileError, match="cannot build here") as caught:
        build(spec(*HYBRID, compiler="inductor"), root=tmp_path / "repo")
    assert "g++" in (caught.value.fix or "")
