"""The compile stage with a compiler of the test's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from builder import plan
from builder.cache.engine_cache import EngineCache
from builder.cache.options import CacheOptions
from builder.compilers.base import CompiledArtifact, Fingerprint, RefitError
from builder.engines import CompiledSegment, Origin, SegmentCompiler
from builder.errors import SpecError
from builder.export import export_model
from builder.inputs import parse_input
from builder.partition.partitioner import partition
from builder.partition.plan import Segment
from builder.progress import Silent
from builder.settings import Settings
from tests.models.breaks import MLP
from tests.models.nets import hybrid
from tests.unit.test_partition import Oracle


class Stubborn:
    """A compiler whose engines do not take the weights that they are given."""

    name = "stubborn"

    def __init__(self) -> None:
        self.whole = False
        self.compiled = 0

    def target(self, settings: Settings) -> Mapping[str, Any]:
        return {"device": "cpu"}

    def fingerprint(self, segment: Segment) -> Fingerprint:
        mode = "none" if self.whole else "weights"
        return Fingerprint({"mode": mode}, text="graph", refit=mode)

    def compile(self, segment: Segment, directory: Path) -> CompiledArtifact:
        self.compiled += 1
        (directory / "engine").write_text("whole" if self.whole else "stripped")
        return CompiledArtifact("engine")

    def refit(self, segment: Segment, engine: Path, directory: Path) -> CompiledArtifact:
        raise RefitError("a weight is missing")

    def without_refit(self, segment: Segment) -> bool:
        told, self.whole = self.whole, True
        return not told


def compiled(compiler: Stubborn, work: Path) -> CompiledSegment:
    work.mkdir()
    model = export_model(hybrid().eval(), [parse_input("x=float32[B=1:8:32, T=2:16:64, 16]")])
    segment = partition(model, Oracle(), Settings()).segments[0]
    cache = EngineCache(CacheOptions(work.parent / "cache"), work, lambda _: None, lambda _: None)
    stage = SegmentCompiler(
        cast(Any, compiler), Settings(), cast(Any, compiler), cache, Origin("net", "nets", {}, {}), work, None, Silent()
    )
    done = stage.compile(segment, cast(Any, None))
    cache.close()
    return done


def test_an_engine_that_refuses_its_weights_is_compiled_with_them(tmp_path: Path) -> None:
    first = Stubborn()
    done = compiled(first, tmp_path / "one")
    assert done.files["engine"].read_text() == "whole" and first.compiled == 2
    second = Stubborn()
    again = compiled(second, tmp_path / "two")
    assert again.files["engine"].read_text() == "whole" and again.hit
    assert second.compiled == 1, "the stripped engine that nobody can use is not taken from the cache"


def test_what_is_said_to_tensorrt_is_not_swallowed() -> None:
    given = ["x=float32[B=1:2:4, 16]"]
    with pytest.raises(SpecError, match=r"workspace_size, strict_nans: for TensorRT alone, .* of onnxruntime") as error:
        plan(MLP().eval(), given, compiler="onnxruntime", workspace_size=1 << 20, strict_nans=True)
    assert error.value.where == "settings.tensorrt"
    assert plan(MLP().eval(), given, compiler="onnxruntime", optimization_level=None).segments
