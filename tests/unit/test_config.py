"""config.pbtxt and what stands beside it: golden texts for many kinds of models, escaping, and what is refused."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from builder.errors import RepositoryError, SpecError
from builder.releases import release
from builder.repository.assemble import assemble, check_options
from builder.repository.assembly import Assembly
from builder.repository.config import config_dims, validate_config
from builder.repository.ensemble import pool_bytes
from builder.repository.lint import lint_config
from builder.repository.plan import MemberPlan, RepositoryPlan
from builder.repository.warmup import WarmupSample, WarmupTensor
from builder.runtime.manifest import Manifest
from builder.triton_options import TritonOptions
from builder.types import DTYPES, OutputSpec, Range
from tests.unit import assemblies
from tests.unit.assemblies import BATCH, MODELS, TOKENS, assembly, segment, tensor

GOLDEN = Path(__file__).parent / "golden"


def parsed(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def simple(place: Path, **options: object) -> Assembly:
    x, y = tensor("x", "float32", BATCH, 4), tensor("y", "float32", BATCH, 2)
    return assembly(place, "encoder", [x], [y], options=options)


def written(plan: RepositoryPlan) -> str:
    """All configs, without the digests in the names of members, which cover more than the configs."""
    text = "".join([plan.config, *(f"\n# ---- {m.name} ----\n{m.config}" for m in plan.members)])
    return re.sub(r"(\.segment_\d)\.[0-9a-f]{12}\b", r"\1.DIGEST", text)


@pytest.mark.parametrize("name", MODELS)
def test_renders_the_golden_text(name: str, tmp_path: Path) -> None:
    """To write them again: python -m tests.unit.test_config"""
    plan = assemble(MODELS[name](tmp_path))
    assert written(plan) == (GOLDEN / f"{name}.pbtxt").read_bytes().decode()


@pytest.mark.parametrize("name", MODELS)
def test_the_linter_finds_nothing(name: str, tmp_path: Path) -> None:
    parts = MODELS[name](tmp_path)
    plan = assemble(parts)
    for config, directory in [(plan.config, plan.name), *((m.config, m.name) for m in plan.members)]:
        assert [str(f) for f in lint_config(config, directory, release=parts.release)] == []


def test_there_is_a_golden_text_for_every_model_and_no_other() -> None:
    assert len(MODELS) >= 20
    assert {p.stem for p in GOLDEN.glob("*.pbtxt")} == set(MODELS)


def test_strings_come_back_as_they_went_in(tmp_path: Path) -> None:
    parts = MODELS["escapes"](tmp_path)
    parameters = {key: value.string_value for key, value in parsed(assemble(parts).config).parameters.items()}
    assert parameters == {**parts.options.fields["parameters"], "FORCE_CPU_ONLY_INPUT_TENSORS": "no"}


def test_names_of_tensors_and_samples_are_escaped_and_make_plain_file_names(tmp_path: Path) -> None:
    plan = assemble(MODELS["escapes"](tmp_path))
    config = parsed(plan.config)
    assert config.input[0].name == 'a/b "c"\\'
    for sample in config.model_warmup:
        file = sample.inputs[config.input[0].name].input_data_file
        assert "/" not in file and f"warmup/{file}" in plan.beside


@pytest.mark.parametrize("name", MODELS)
def test_warmup_files_have_the_size_that_the_config_says(name: str, tmp_path: Path) -> None:
    plan = assemble(MODELS[name](tmp_path))
    for sample in parsed(plan.config).model_warmup:
        for given in sample.inputs.values():
            dtype = model_config_pb2.DataType.Name(given.data_type)
            width = next(d for d in DTYPES.values() if d.triton == dtype)
            count = int(np.prod(given.dims, dtype=int))
            expected = count * (np.dtype(width.numpy).itemsize if width.numpy else 2)
            assert len(plan.beside[f"warmup/{given.input_data_file}"]) == expected


def test_a_batch_of_warmup_repeats_the_first_row(tmp_path: Path) -> None:
    sample = WarmupSample("opt", {"x": WarmupTensor.from_numpy(np.arange(8, dtype="float32").reshape(2, 4))})
    row = sample.as_batch(8)
    assert (row.batch_size, row.tensors["x"].shape) == (2, (4,))
    assert row.tensors["x"].data == np.arange(4, dtype="float32").tobytes()
    assert sample.as_batch(1).batch_size == 1


def test_parameters_do_not_depend_on_their_order(tmp_path: Path) -> None:
    one, two = simple(tmp_path, parameters={"b": "1", "a": "2"}), simple(tmp_path, parameters={"a": "2", "b": "1"})
    assert assemble(one).config == assemble(two).config


def test_warmup_can_be_turned_off(tmp_path: Path) -> None:
    plan = assemble(simple(tmp_path, model_warmup=False))
    assert not parsed(plan.config).model_warmup
    assert not plan.beside
    assert parsed(assemble(simple(tmp_path)).config).model_warmup


def test_every_dtype_has_a_name_that_triton_knows(tmp_path: Path) -> None:
    inputs = [tensor(f"x_{name}", name, BATCH) for name in DTYPES]
    assemble(assembly(tmp_path, "encoder", inputs, [tensor("y", "float32", BATCH)]))


def test_dims() -> None:
    assert config_dims(tensor("x", "int8")) == (1,)
    assert config_dims(tensor("x", "int8", BATCH, 384, Range(0, 1, None))) == (-1, 384, -1)


def test_a_plan_has_the_models_names_and_sizes_in_its_graph(tmp_path: Path) -> None:
    plan = assemble(MODELS["text_plan"](tmp_path))
    graph = onnx.load(plan.artifacts["model.onnx/model.onnx"], load_external_data=False).graph
    assert [v.name for v in graph.input] == ["input_ids", "attention_mask"]
    (output,) = graph.output
    assert output.name == "embedding"
    sizes = [d.dim_value or d.dim_param for d in output.type.tensor_type.shape.dim]
    assert isinstance(sizes[0], str) and sizes[1] == 384
    assert plan.manifest.segments[0].artifact == "model.onnx/model.onnx"
    assert plan.manifest.segments[0].input_names == ("input_ids", "attention_mask")


def test_a_plan_of_aoti_says_what_clients_call_its_tensors(tmp_path: Path) -> None:
    assert assemble(MODELS["aoti_plan"](tmp_path)).manifest.wire_names == {"x": "INPUT__0", "y": "OUTPUT__0"}


def test_a_plan_of_aoti_numbers_by_the_engines_order(tmp_path: Path) -> None:
    """The order of a segment's inputs is that of their first use, not that of `forward`."""
    a, b = tensor("a", "float32", BATCH, 4), tensor("b", "int64", BATCH, 3)
    y, z = tensor("y", "float32", BATCH, 4), tensor("z", "int64", BATCH, 3)
    steps = [segment(0, "inductor", [b, a], [z, y])]
    plan = assemble(assembly(tmp_path, "net", [a, b], [y, z], steps, layout="plan", runners=["inductor"]))
    assert plan.manifest.wire_names == {"b": "INPUT__0", "a": "INPUT__1", "z": "OUTPUT__0", "y": "OUTPUT__1"}
    config = parsed(plan.config)
    types = {t.name: model_config_pb2.DataType.Name(t.data_type) for t in (*config.input, *config.output)}
    assert types == {
        "INPUT__0": "TYPE_INT64",
        "INPUT__1": "TYPE_FP32",
        "OUTPUT__0": "TYPE_INT64",
        "OUTPUT__1": "TYPE_FP32",
    }
    for sample in config.model_warmup:
        assert "@b@" in sample.inputs["INPUT__0"].input_data_file


def test_graph_specs_go_by_name(tmp_path: Path) -> None:
    a, b = tensor("a", "float32", BATCH, 4), tensor("b", "float32", BATCH, 3)
    y = tensor("y", "float32", BATCH, 4)
    steps = [segment(0, "tensorrt", [b, a], [y], tensor_names=(("b", "a"), ("y",)))]
    parts = assembly(
        tmp_path, "net", [a, b], [y], steps, layout="plan", runners=["tensorrt"], device="cuda", profiles=[[a, b], [a, b]],
        settings={"cuda_graphs": True},
    )  # fmt: skip
    for graph in parsed(assemble(parts).config).optimization.cuda.graph_spec:
        assert (list(graph.input["a"].dim), list(graph.input["b"].dim)) == ([4], [3])


def test_an_output_that_a_later_step_reads_goes_by_one_name(tmp_path: Path) -> None:
    x, h, y = (tensor(n, "float32", BATCH, 4) for n in ("x", "relu", "tanh"))
    steps = [segment(0, "onnxruntime", [x], [h]), segment(1, "torch", [h], [y])]
    parts = assembly(tmp_path, "net", [x], [h, y], steps, layout="ensemble", runners=["onnxruntime", "python"])
    named = (OutputSpec(dataclasses.replace(h, name="hidden"), "relu"), OutputSpec(y, "tanh"))
    config = parsed(
        assemble(dataclasses.replace(parts, manifest=dataclasses.replace(parts.manifest, outputs=named))).config
    )
    first, second = config.ensemble_scheduling.step
    assert dict(first.output_map) == {"output_0": "hidden"}
    assert dict(second.input_map) == {"input_0": "hidden"}


def test_files_beside_the_versions_are_named_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    label = tmp_path / "labels.txt"
    x, y = tensor("x", "float32", BATCH, 4), tensor("y", "float32", BATCH, 2)
    seen = set()
    for text in ("cat\ndog\n", "dog\ncat\n"):
        label.write_text(text)
        plan = assemble(assembly(tmp_path / "a", "net", [x], [y], labels={"y": label}))
        seen |= {p for p in plan.beside if p.startswith("labels/")}
        assert parsed(plan.config).output[0].label_filename in plan.beside
    assert len(seen) == 2
    one, two = (
        WarmupSample("opt", {"x": WarmupTensor(dtype, (2,), bytes(size))})
        for dtype, size in (("float32", 8), ("float16", 4))
    )
    assert one.file_name("x") != two.file_name("x")


def test_a_plan_whose_engine_lacks_an_input_is_refused(tmp_path: Path) -> None:
    inputs = [tensor("x", "float32", BATCH, 4), tensor("unused", "float32", BATCH, 4)]
    parts = assembly(
        tmp_path, "net", inputs, [tensor("y", "float32", BATCH, 2)], layout="plan", runners=["onnxruntime"]
    )
    file = parts.files["segment_0"].files["model.onnx"]
    model = onnx.load(file)
    del model.graph.input[1]
    file.write_bytes(model.SerializeToString())
    with pytest.raises(RepositoryError, match="the engine does not use the input 'unused'"):
        assemble(parts)


def test_members_are_named_by_their_content(tmp_path: Path) -> None:
    one = {m.name for m in assemble(MODELS["ensemble_old"](tmp_path / "a")).members}
    assert one == {m.name for m in assemble(MODELS["ensemble_old"](tmp_path / "b")).members}
    changed = MODELS["ensemble_old"](tmp_path / "c")
    changed.files["segment_0"].files["weights.bin"].write_bytes(b"others")
    two = {m.name for m in assemble(changed).members}
    assert len(one & two) == 2 and len(one ^ two) == 2


def test_artifacts_of_an_ensemble_are_found_from_its_version(tmp_path: Path) -> None:
    plan = assemble(MODELS["ensemble_old"](tmp_path))
    files = {f"{m.name}/{path}" for m in plan.members for path in m.files}
    for s in plan.manifest.segments:
        assert s.artifact.removeprefix("../../") in files


def test_the_pool_holds_all_tensors_between_segments(tmp_path: Path) -> None:
    plan = assemble(MODELS["ensemble_old"](tmp_path))
    assert pool_bytes(plan.manifest) == 32 * 256 * (16 + 16 + 8) * 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"instance_group": [{"count": 1, "kind": "KIND_CPU", "gpus": [0]}]},
            "KIND_CPU but specifies one or more GPUs",
        ),
        ({"instance_group": [{"count": 1, "profile": ["0"]}]}, "only supported for TensorRT models"),
        ({"dynamic_batching": {"preferred_batch_size": [64]}}, "preferred size must be <= max batch size"),
        ({"version_policy": {"latest": {}}}, "at least one version must be available under the version policy"),
    ],
)
def test_what_the_server_would_refuse_is_refused_before_anything_is_compiled(
    options: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(RepositoryError) as caught:
        check_options(simple(tmp_path, **options))
    assert said in caught.value.what
    assert "encoder" in str(caught.value.where)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dynamic_batching": {}, "max_batch_size": 0}, "dynamic_batching"),
    ],
)
def test_what_the_server_would_ignore_is_said(options: dict[str, object], said: str, tmp_path: Path) -> None:
    _, (warning,) = check_options(simple(tmp_path, **options))
    assert said in warning


def test_fields_are_checked_for_the_release() -> None:
    text = 'name: "e"\nplatform: "ensemble"\nensemble_scheduling { max_inflight_requests: 4 }\n'
    with pytest.raises(RepositoryError, match="max_inflight_requests"):
        validate_config(text, "e", release("25.01"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optional": {"y": 0}}, "has no input 'y'"),
        ({"ragged": {"z": 0}}, "has no input 'z'"),
        ({"labels": {"x": "labels.txt"}}, "has no output 'x'"),
        ({"optional": {"x": 0}}, "every input is optional"),
        ({"ensemble_scheduling": {"max_inflight_requests": 4}}, "a limit of ensembles"),
    ],
)
def test_options_by_name_must_name_a_tensor(options: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said):
        check_options(simple(tmp_path, **options))


@pytest.mark.parametrize("value", [1.5, 300])
def test_what_fills_must_be_of_the_dtype(value: float, tmp_path: Path) -> None:
    inputs = [tensor("x", "float32", BATCH, 4), tensor("mask", "int8", BATCH)]
    parts = assembly(tmp_path, "net", inputs, [tensor("y", "float32", BATCH)], options={"optional": {"mask": value}})
    with pytest.raises(SpecError, match=f"{value} is no int8"):
        check_options(parts)


def test_a_state_has_one_size(tmp_path: Path) -> None:
    x, old, new = (tensor(n, "float32", BATCH, TOKENS) for n in ("x", "state", "new_state"))
    state = {"input_name": "state", "output_name": "new_state"}
    parts = assembly(tmp_path, "net", [x, old], [x, new], options={"sequence_batching": {"state": [state]}})
    with pytest.raises(SpecError, match="the size of the state 'state' varies"):
        check_options(parts)


def test_the_size_of_what_is_left_out_must_be_known(tmp_path: Path) -> None:
    inputs = [tensor("ids", "int64", BATCH, TOKENS), tensor("bias", "float32", BATCH, Range(1, 2, 3, "W"))]
    parts = assembly(tmp_path, "net", inputs, [tensor("y", "float32", BATCH, 2)], options={"optional": {"bias": 0}})
    with pytest.raises(SpecError, match="no other input tells the size W=1:2:3 of 'bias'"):
        check_options(parts)


def test_an_ensemble_has_no_sequences(tmp_path: Path) -> None:
    parts = assemblies._three(
        tmp_path, runners=["onnxruntime", "python", "onnxruntime"], options={"sequence_batching": {"direct": {}}}
    )
    with pytest.raises(SpecError, match="an ensemble has no sequences"):
        assemble(parts)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"instance_groups": []}, "unknown key instance_groups"),
        ({"instance_group": [{"cont": 1}]}, "did you mean 'count'"),
        ({"instance_group": [{"kind": "KIND_TPU"}]}, "KIND_TPU"),
        ({"instance_group": 3}, "instance_group = 3"),
        ({"dynamic_batching": 3}, "3 stands where a table is needed"),
        ({"dynamic_batching": {"preferred_batch_size": ["many"]}}, "many"),
        ({"backend": "python"}, "backend cannot be set"),
        ({"ensemble_scheduling": 5}, "5 stands where a table is needed"),
        ({"model_transaction_policy": {"decoupled": True}}, "decoupled cannot be set"),
        ({"ensemble_scheduling": {"step": [{"model_name": "m"}]}}, "the steps of an ensemble cannot be set"),
    ],
)
def test_options_refuse(options: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        TritonOptions.model_validate(options)
    assert said in str(caught.value)
    assert "[triton]" in str(caught.value.where)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "a\nb", "a\\b", "é"])
def test_plan_refuses_a_name_that_is_no_directory(name: str) -> None:
    with pytest.raises(RepositoryError, match="cannot be the name of a model"):
        RepositoryPlan(Manifest(name, (), (), ()), "")
    with pytest.raises(RepositoryError, match="cannot be the name of a model"):
        MemberPlan(name, "", {})


@pytest.mark.parametrize(
    "path", ["/abs", "../up", "a/../b", "", "./a", "a//b", "manifest.json", "config.pbtxt", "model.py"]
)
def test_plan_refuses_paths_that_leave_the_version_or_collide(path: str) -> None:
    with pytest.raises(RepositoryError, match=r"not a plain path|twice"):
        RepositoryPlan(Manifest("net", (), (), ()), "", {path: Path("x")}, {"model.py": ""})


def test_warmup_tensor_refuses_bytes_that_do_not_fit():
    with pytest.raises(RepositoryError, match=r"int64\[2, 3\] needs 48 bytes, got 5"):
        WarmupTensor("int64", (2, 3), b"12345")
    with pytest.raises(RepositoryError, match="unknown dtype 'complex64'"):
        WarmupTensor("complex64", (), b"")
    with pytest.raises(RepositoryError, match="unknown dtype complex64"):
        WarmupTensor.from_numpy(np.zeros(2, dtype="complex64"))


def test_warmup_tensor_is_little_endian_and_row_major():
    array = np.arange(6, dtype=">i4").reshape(2, 3)
    expected = np.arange(6, dtype="<i4").tobytes()
    assert WarmupTensor.from_numpy(array) == WarmupTensor("int32", (2, 3), expected)
    assert WarmupTensor.from_numpy(np.asfortranarray(array)).data == expected


def _write_golden() -> None:
    import tempfile

    for path in GOLDEN.glob("*.pbtxt"):
        path.unlink()
    for name, build in MODELS.items():
        with tempfile.TemporaryDirectory() as place:
            (GOLDEN / f"{name}.pbtxt").write_bytes(written(assemble(build(Path(place)))).encode())


if __name__ == "__main__":
    sys.exit(_write_golden())
