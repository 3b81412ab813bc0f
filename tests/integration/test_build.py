"""Whole builds with ONNX Runtime: real export, real parser, verified against eager PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.cache.options import CacheOptions
from builder.dims import parse_bound
from builder.errors import BuilderError, CompileError, RequestError, SpecError, VerificationError
from builder.inputs import Input, parse_input
from builder.pipeline import BuildResult, build
from builder.profiles import parse_profile
from builder.repository.config import validate_config
from builder.runtime.manifest import Manifest
from builder.runtime.model import RuntimeModel
from builder.runtime.values import to_numpy
from builder.settings import Settings, VerifySettings
from builder.spec import BuildSpec
from tests.integration.needs import needs_compiler


def spec(
    callable_name: str,
    *inputs: str,
    name: str = "net",
    profiles: tuple[str, ...] = (),
    bounds: dict[str, str] | None = None,
    **settings: Any,
) -> BuildSpec:
    return BuildSpec(
        name=name,
        source=callable_name if ":" in callable_name else f"tests.models.nets:{callable_name}",
        base=Path.cwd(),
        inputs=tuple(parse_input(i) for i in inputs),
        profiles=tuple(parse_profile(p, p) for p in profiles),
        bounds={n: parse_bound(n, t, n) for n, t in (bounds or {}).items()},
        settings=Settings(**{"compiler": "onnxruntime", **settings}),
    )


CONVNET = ("convnet", "image=float32[B=1:4:8, 3, H=16:32:65, W=16:48:64]")
HYBRID = ("hybrid", "x=float32[B=1:8:32, T=2:16:64, 16]")
STRUCTURED = (
    "Structured",
    "batch.values=float32[B=1:2:4, T=2:5:9, 8]",
    "batch.mask=float32[B, T] in 0..1",
    "extra.0=float32[B, T, 8]",
    "extra.1=float32[B, T, 8]",
    "copies=1:3:7",
    "scale=0.5",
    "normalise=True",
)


def published(result: BuildResult) -> RuntimeModel:
    return RuntimeModel(result.publication.path)


def test_convnet(tmp_path: Path) -> None:
    result = build(spec(*CONVNET), root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["onnxruntime"]
    assert result.report.verified and result.report.points >= 27
    assert result.report.worst is not None and result.report.worst.relative < 1e-4
    outputs = published(result)({"image": np.zeros((2, 3, 17, 33), np.float32)})
    assert outputs["features"].shape == (2, 8, 9, 17)
    features = next(o.tensor for o in result.publication.manifest.outputs if o.tensor.name == "features")
    assert [(d.min, d.opt, d.max) for d in features.dims] == [(1, 4, 8), (8, 8, 8), (8, 16, 33), (8, 24, 32)]


def test_hybrid(tmp_path: Path) -> None:
    result = build(spec(*HYBRID), root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["onnxruntime", "torch", "onnxruntime"]
    (fallback,) = result.plan.fallbacks
    assert fallback.operator == "aten.special_bessel_j0"
    assert "no translation" in fallback.reason
    assert fallback.place and "nets.py" in fallback.place
    assert result.report.verified and result.report.worst is not None and result.report.worst.relative < 1e-4


def test_publication_is_complete_and_readable(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    result = build(spec(*HYBRID), root=root, command="triton-repo build hybrid")
    assert sorted(p.name for p in root.iterdir()) == ["net"], "nothing but models stands in a repository"
    validate_config((root / "net" / "config.pbtxt").read_text(), "net")
    manifest = Manifest.read(result.publication.path)
    assert manifest == result.publication.manifest
    on_disk = {
        p.relative_to(result.publication.path).as_posix()
        for p in result.publication.path.rglob("*")
        if p.is_file() and p.name != "manifest.json"
    }
    assert set(manifest.files) == on_disk
    assert manifest.command == "triton-repo build hybrid"
    assert manifest.versions["torch"] == torch.__version__
    assert manifest.verification["verified"] is True


def test_same_again_publishes_nothing_and_other_weights_do(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    first = build(spec(*HYBRID), root=root)
    again = build(spec(*HYBRID), root=root)
    assert (first.publication.version, first.publication.created) == (1, True)
    assert (again.publication.version, again.publication.created) == (1, False)
    assert [s.hit for s in first.segments] == [False, None, False]
    assert [s.hit for s in again.segments] == [True, None, True]
    other = build(spec("reseeded_hybrid", HYBRID[1]), root=root)
    assert (other.publication.version, other.publication.created) == (2, True)


def test_range_is_enforced_by_the_runtime(tmp_path: Path) -> None:
    model = published(build(spec(*HYBRID), root=tmp_path / "repo"))
    with pytest.raises(RequestError, match=r"dimension 0 of input 'x' \(B\) is 33, outside the range 1 to 32"):
        model({"x": np.zeros((33, 2, 16), np.float32)})
    with pytest.raises(RequestError, match=r"dimension 1 of input 'x' \(T\) is 65"):
        model({"x": np.zeros((1, 65, 16), np.float32)})


def test_excluded_operators_and_small_segments(tmp_path: Path) -> None:
    result = build(spec(*CONVNET, torch_executed_ops=["aten::relu"], min_block_size=2), root=tmp_path / "repo")
    assert {s.compiler for s in result.segments} == {"onnxruntime", "torch"}
    assert all(s.segment.operator_count >= 2 for s in result.segments if s.compiler == "onnxruntime")
    assert result.report.verified


def test_everything_in_pytorch(tmp_path: Path) -> None:
    result = build(spec(*HYBRID, min_block_size=1000), root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["torch"]
    assert result.report.verified


DTYPES = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_travel_unchanged(tmp_path: Path, dtype: str) -> None:
    build_spec = BuildSpec(
        name="types",
        source="tests.models.nets:Permute",
        base=Path.cwd(),
        inputs=(Input(("B=1:2:4", 3), dtype=dtype, name="x"), Input((), dtype=dtype, name="scalar")),
        settings=Settings(compiler="onnxruntime"),
    )
    result = build(build_spec, root=tmp_path / "repo")
    assert result.report.verified
    assert {o.tensor.dtype for o in result.publication.manifest.outputs} == {dtype}


def test_a_wrong_engine_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is put into the engine itself: one weight of the lowered segment is changed."""
    from builder.compilers import onnxruntime as compiler

    original = compiler._Session.refit

    def damaged(self: Any, segment: Any, engine: Path, directory: Path) -> Any:
        artifact = original(self, segment, engine, directory)
        weights = directory / "weights.bin"
        content = bytearray(weights.read_bytes())
        content[0:4] = np.float32(7.0).tobytes()
        weights.write_bytes(content)
        return artifact

    monkeypatch.setattr(compiler._Session, "refit", damaged)
    root = tmp_path / "repo"
    with pytest.raises(VerificationError, match="differs from eager PyTorch: relative error") as caught:
        build(spec(*HYBRID), root=root)
    assert "B=1, T=2" in (caught.value.where or "")
    assert not root.exists()


def test_a_segment_that_does_not_build_is_left_to_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from builder.compilers import onnxruntime as compiler

    def refuse(self: Any, segment: Any, directory: Path) -> Any:
        if any("layer_norm" in n for n in segment.nodes):
            raise CompileError("no kernel for that")
        return original(self, segment, directory)

    original = compiler._Session.compile
    monkeypatch.setattr(compiler._Session, "compile", refuse)
    result = build(spec(*HYBRID), root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["torch", "onnxruntime"]
    assert {f.reason for f in result.plan.fallbacks} >= {"its segment does not build: no kernel for that"}
    with pytest.raises(CompileError, match="no kernel for that"):
        build(spec("first_half", HYBRID[1], require_full_compilation=True), root=tmp_path / "strict")


def test_a_random_model_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="the model is random"):
        build(spec("Noise", "x=float32[B=1:2:4, 4]"), root=tmp_path / "repo")


def test_complex_values_do_not_cross_a_boundary(tmp_path: Path) -> None:
    result = build(spec("Spectrum", "x=float32[B=1:2:4, 16]", torch_executed_ops=["aten::abs"]), root=tmp_path / "repo")
    assert result.report.verified
    reasons = {f.operator: f.reason for f in result.plan.fallbacks}
    assert "no complex64 inputs and outputs" in reasons["aten._fft_r2c"]
    assert [s.kind for s in result.plan.segments] == ["engine", "fallback", "engine"]


def test_data_dependent_sizes(tmp_path: Path) -> None:
    for excluded in ([], ["aten::nonzero"]):
        result = build(spec("Positive", "x=float32[B=1:2:4, 4]", torch_executed_ops=excluded), root=tmp_path / "repo")
        assert result.report.verified
        (output,) = result.publication.manifest.outputs
        assert output.tensor.dims[0].min == 0


def test_bounds_of_data_dependent_sizes(tmp_path: Path) -> None:
    given = spec(
        "Positive", "x=float32[B=1:2:4, 4]", bounds={"output[0]": "0:4:16"}, torch_executed_ops=["aten::nonzero"]
    )
    result = build(given, root=tmp_path / "repo")
    assert result.report.verified
    (output,) = result.publication.manifest.outputs
    assert (output.tensor.dims[0].min, output.tensor.dims[0].opt, output.tensor.dims[0].max) == (0, 4, 16)
    crossing = [t for s in result.plan.segments for t in s.inputs if any(d.data_dependent for d in t.dims)]
    assert crossing and all(d.max == 16 for t in crossing for d in t.dims if d.data_dependent)


def test_data_that_break_a_bound_are_refused(tmp_path: Path) -> None:
    model = ("Positive", "x=float32[B=1:2:4, 4] in 0..0")
    result = build(spec(*model, bounds={"output[0]": "0:0:7"}), root=tmp_path / "repo")
    compiled = published(result)
    assert compiled({"x": np.array([[1, 1, 1, 1], [1, 1, 1, -1]], np.float32)})["output"].shape[0] == 7
    with pytest.raises(RequestError, match=r"make dimension 0 of '\w+' \(output\[0\]\) 8, outside the range 0 to 7"):
        compiled({"x": np.ones((2, 4), np.float32)})
    some = build(spec("Positive", "x=float32[B=1:2:4, 4]", bounds={"output[0]": "0:4:7"}), root=tmp_path / "some")
    assert 0 < some.report.points < full_points(tmp_path), "points whose made-up values break the bound are left out"
    with pytest.raises(VerificationError, match="made-up values break a bound everywhere"):
        build(spec("Positive", "x=float32[B=2:2:4, 4] in 1..2", bounds={"output[0]": "0:1:2"}), root=tmp_path / "none")
    with pytest.raises(SpecError, match="for no size of an output") as caught:
        build(spec(*model, bounds={"outputs[0]": "0:1:7"}), root=tmp_path / "other")
    assert "did you mean 'output[0]'" in str(caught.value)


def test_reduced_precision(tmp_path: Path) -> None:
    cache = CacheOptions(tmp_path / "cache")
    result = build(spec(*HYBRID, precision="fp16"), root=tmp_path / "repo", cache=cache)
    assert result.report.worst is not None and 1e-5 < result.report.worst.relative < 1e-2
    full = build(spec(*HYBRID), root=tmp_path / "full", cache=cache)
    assert sum(s.size for s in result.segments) < sum(s.size for s in full.segments)
    assert not any(s.hit for s in full.segments)
    tuned = build(spec("reseeded_hybrid", HYBRID[1], precision="fp16"), root=tmp_path / "tuned", cache=cache)
    assert [s.hit for s in tuned.segments] == [True, None, True], "weights in float16 are refitted like others"


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_precision_that_the_compiler_does_not_have(tmp_path: Path, precision: str) -> None:
    with pytest.raises(SpecError, match=f"onnxruntime has no precision '{precision}'") as caught:
        build(spec(*HYBRID, precision=precision), root=tmp_path / "repo")
    assert "fp32, fp16" in (caught.value.fix or "")


def full_points(tmp_path: Path) -> int:
    return build(spec("Positive", "x=float32[B=1:2:4, 4]"), root=tmp_path / "full").report.points


def test_several_profiles(tmp_path: Path) -> None:
    given = spec(*HYBRID, profiles=("B=1, T=2:4:8", "B=4:8:32, T=8:16:64"))
    result = build(given, root=tmp_path / "repo")
    # Each profile has its own corners: 3 of T in the first, 9 in the second, and random points.
    assert result.report.verified and result.report.points >= 12
    model = published(result)
    for batch, length in ((1, 2), (1, 8), (4, 8), (32, 64)):
        assert model({"x": np.zeros((batch, length, 16), np.float32)})["output"].shape[:2] == (batch, length)
    for batch, length in ((2, 8), (1, 9), (4, 7)):
        with pytest.raises(RequestError, match="no profile that the model was built for holds these sizes"):
            model({"x": np.zeros((batch, length, 16), np.float32)})
    again = build(spec(*HYBRID), root=tmp_path / "repo")
    assert again.publication.version == 2, "what is taken has changed, although the engines have not"


def test_small_constants_stay_where_the_parser_needs_them(tmp_path: Path) -> None:
    result = build(spec("Resize", "x=float32[B=1:2:4, 3, H=5:8:20, W=5:8:20]"), root=tmp_path / "repo")
    assert result.report.verified and not result.plan.fallbacks


def test_own_tolerance(tmp_path: Path) -> None:
    strict = VerifySettings(rtol=0.0, atol=0.0, random_points=0)
    with pytest.raises(VerificationError, match="allowed 0e"):
        build(spec(*CONVNET, verify=strict), root=tmp_path / "repo")


def test_a_failed_build_keeps_the_published_version(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    build(spec(*HYBRID), root=root)
    before = snapshot(root)
    with pytest.raises(BuilderError):
        build(spec("data_dependent", "x=float32[4]"), root=root)
    with pytest.raises(VerificationError):
        build(spec(*HYBRID, verify=VerifySettings(rtol=0.0, atol=0.0)), root=root)
    assert snapshot(root) == before


def snapshot(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_the_config_can_be_customised(tmp_path: Path) -> None:
    plain = spec(*HYBRID)
    options = {"instance_group": [{"count": 2, "kind": "KIND_CPU"}], "parameters": {"team": "search"}}
    customised = BuildSpec(**{**plain.model_dump(), "inputs": plain.inputs, "triton": options})
    result = build(customised, root=tmp_path / "repo")
    text = (tmp_path / "repo" / "net" / "config.pbtxt").read_text()
    assert "count: 2" in text and 'key: "team"' in text
    assert result.publication.created


def test_json_of_the_manifest_is_plain(tmp_path: Path) -> None:
    result = build(spec(*HYBRID), root=tmp_path / "repo")
    data = json.loads((result.publication.path / "manifest.json").read_text())
    assert str(Path.cwd()) not in json.dumps(data), "no path of the building machine is published"
    outputs = RuntimeModel(result.publication.path)({"x": np.ones((1, 2, 16), np.float32)})
    assert to_numpy(outputs["output"]).shape == (1, 2, 8)


def test_sizes_that_follow_from_others(tmp_path: Path) -> None:
    follows = spec("Follows", "x=float32[B=1:2:4, T=2:5:9]", "y=float32[B, 2*T]", "m=float32[B, T+1]")
    result = build(follows, root=tmp_path / "repo")
    assert result.report.verified and result.report.points >= 9
    first, second = (o.tensor for o in result.plan.outputs)
    assert (first.shape("min"), first.shape("max")) == ((1, 4), (4, 18))
    assert second.dims == result.plan.inputs[0].dims
    assert Manifest.read(result.publication.path).inputs == result.plan.inputs
    model = published(result)
    tensors = {"x": np.ones((2, 5), np.float32), "m": np.ones((2, 6), np.float32)}
    assert model({**tensors, "y": np.ones((2, 10), np.float32)})["output_0"].shape == (2, 10)
    with pytest.raises(RequestError, match=r"is 9, but must be 10: it is 2\*T"):
        model({**tensors, "y": np.ones((2, 9), np.float32)})


def test_a_view_of_what_an_engine_gives(tmp_path: Path) -> None:
    viewed = spec("Viewed", "x=float32[B=1:2:4, T=2:5:9, 8]", torch_executed_ops=["aten::transpose"])
    result = build(viewed, root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["torch", "onnxruntime", "torch"]
    assert result.report.verified


@pytest.mark.parametrize("compiler", ["onnxruntime", "torch"])
@pytest.mark.parametrize("name", ["Branches", "Loop", "Scanned", "InPlace", "Selected", "Kept", "Optional", "Numbers"])
def test_what_export_keeps_computes_the_same(tmp_path: Path, name: str, compiler: str) -> None:
    """Control flow, updates in place, sizes that depend on the data, scalars: in an engine, and left to PyTorch."""
    more = {"Optional": ["y=None"], "Numbers": ["scale=float32[]", "power=2"]}.get(name, [])
    settings = {} if compiler == "onnxruntime" else {"min_block_size": 1000}
    result = build(
        spec(f"tests.models.flow:{name}", "x=float32[B=2:3:6, T=2:5:9, 8]", *more, **settings), root=tmp_path / "repo"
    )
    assert {s.compiler for s in result.segments} == {compiler}
    assert result.report.verified and result.report.points >= 9


@pytest.mark.parametrize(
    ("name", "compiler", "segments"),
    [
        ("lstm", "onnxruntime", ["onnxruntime"]),
        ("gru", "onnxruntime", ["onnxruntime"]),
        ("rnn", "onnxruntime", ["onnxruntime", "torch", "onnxruntime"]),
        pytest.param(
            "lstm",
            "inductor",
            ["inductor", "torch", "inductor"],
            marks=[
                needs_compiler,
                pytest.mark.slow,
            ],
        ),
    ],
)
def test_recurrent_layers(tmp_path: Path, name: str, compiler: str, segments: list[str]) -> None:
    result = build(spec(name, "x=float32[B=1:2:8, T=1:16:64, 8]", compiler=compiler), root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == segments
    assert result.report.verified and result.report.points >= 9
