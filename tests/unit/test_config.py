"""config.pbtxt: golden texts, escaping, and one failing case for every rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format
from pydantic import ValidationError
from tritonclient.grpc import model_config_pb2

from builder.errors import RepositoryError
from builder.repository.config import config_dims, render_config, signature, validate_config
from builder.repository.plan import RepositoryPlan, WarmupSample, WarmupTensor
from builder.runtime.manifest import Manifest
from builder.triton_options import TritonOptions
from builder.types import DTYPES, OutputSpec, Range, TensorSpec

GOLDEN = Path(__file__).parent / "golden"
BATCH, TOKENS, WIDTH = Range(1, 8, 32, "B"), Range(8, 64, 256, "T"), Range(384, 384, 384)


def make_plan(
    name: str = "encoder",
    inputs: tuple[TensorSpec, ...] = (TensorSpec("x", "float32", (BATCH, Range(4, 4, 4))),),
    outputs: tuple[TensorSpec, ...] = (TensorSpec("y", "float32", (BATCH, Range(2, 2, 2))),),
    warmup: tuple[WarmupSample, ...] = (),
    **triton: object,
) -> RepositoryPlan:
    manifest = Manifest(name, inputs, tuple(OutputSpec(spec, spec.name) for spec in outputs), ())
    return RepositoryPlan(manifest, {}, {}, TritonOptions.model_validate(triton), warmup)


def parsed(text: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def minimal() -> RepositoryPlan:
    return make_plan()


def transformer() -> RepositoryPlan:
    ids = WarmupTensor.from_numpy(np.ones((8, 64), dtype="int64"))
    sample = WarmupSample("opt", {"input_ids": ids, "attention_mask": ids})
    return make_plan(
        "sentence-encoder",
        (TensorSpec("input_ids", "int64", (BATCH, TOKENS)), TensorSpec("attention_mask", "int64", (BATCH, TOKENS))),
        (TensorSpec("embedding", "float32", (BATCH, WIDTH)),),
        (sample,),
        instance_group=[{"count": 2, "kind": "KIND_GPU", "gpus": [0, 1]}],
        version_policy={"latest": {"num_versions": 2}},
        response_cache=True,
    )


def scalar_bfloat16() -> RepositoryPlan:
    sample = WarmupSample(
        "min", {"x": WarmupTensor("bfloat16", (1, 3), bytes(6)), "scale": WarmupTensor("float32", (), bytes(4))}
    )
    return make_plan(
        "scaler",
        (TensorSpec("x", "bfloat16", (BATCH, Range(3, 3, 3))), TensorSpec("scale", "float32", ())),
        (TensorSpec("mean", "float64", ()), TensorSpec("found", "int64", (Range(0, 8, None), Range(2, 2, 2)))),
        (sample,),
        instance_group=[{"kind": "KIND_CPU"}, {"count": 3}],
        version_policy={"specific": {"versions": [1, 3]}},
        parameters={"FORCE_CPU_ONLY_INPUT_TENSORS": "yes", "owner": "team a"},
    )


def escapes() -> RepositoryPlan:
    return make_plan(
        parameters={
            "quote \" and '": 'back\\slash " } name: "x"',
            "lines": "a\nb\r\tc\x7f\x01",
            "unicode": "é € 😀 \u2028",
        },
        version_policy={"all": {}},
    )


@pytest.mark.parametrize("build", [minimal, transformer, scalar_bfloat16, escapes])
def test_renders_the_golden_text_and_passes_the_checks(build):
    plan = build()
    text = render_config(plan)
    assert text == (GOLDEN / f"{build.__name__}.pbtxt").read_bytes().decode()
    validate_config(text, plan.name, plan.triton)


def test_strings_come_back_as_they_went_in():
    plan = escapes()
    parameters = {key: value.string_value for key, value in parsed(render_config(plan)).parameters.items()}
    assert parameters == {**plan.triton.parameters, "FORCE_CPU_ONLY_INPUT_TENSORS": "no"}


def test_names_of_tensors_and_samples_are_escaped_and_make_plain_file_names():
    name = 'a/b "c"\\'
    sample = WarmupSample("../x y", {name: WarmupTensor("float32", (1, 4), bytes(16))})
    plan = make_plan(inputs=(TensorSpec(name, "float32", (BATCH, Range(4, 4, 4))),), warmup=(sample,))
    text = render_config(plan)
    validate_config(text, plan.name, plan.triton)
    config = parsed(text)
    assert config.input[0].name == name
    assert config.model_warmup[0].inputs[name].input_data_file == sample.file_name(name)
    assert "/" not in sample.file_name(name)


def test_parameters_do_not_depend_on_their_order():
    one, two = make_plan(parameters={"b": "1", "a": "2"}), make_plan(parameters={"a": "2", "b": "1"})
    assert render_config(one) == render_config(two)


def test_warmup_can_be_turned_off():
    sample = WarmupSample("opt", {"x": WarmupTensor("float32", (1, 4), bytes(16))})
    assert not parsed(render_config(make_plan(warmup=(sample,), model_warmup=False))).model_warmup
    assert parsed(render_config(make_plan(warmup=(sample,)))).model_warmup


def test_every_dtype_has_a_name_that_triton_knows():
    inputs = tuple(TensorSpec(f"x_{name}", name, (BATCH,)) for name in DTYPES)
    validate_config(render_config(make_plan(inputs=inputs)), "encoder")


def test_dims_and_signature():
    assert config_dims(TensorSpec("x", "int8", ())) == (1,)
    assert config_dims(TensorSpec("x", "int8", (BATCH, WIDTH, Range(0, 1, None)))) == (-1, 384, -1)
    assert signature(make_plan().manifest) == {"input x: TYPE_FP32 [-1, 4]", "output y: TYPE_FP32 [-1, 2]"}


GROUP = 'instance_group { name: "g" %s }\n'
WARMUP = 'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { %s } } }\n'
FILE = 'data_type: TYPE_FP32 dims: [ 1, 4 ] input_data_file: "f"'
REFUSED = {
    "name": (
        'name: "encoder"',
        'name: "other"',
        "unexpected directory name 'encoder' for model 'other', directory name",
    ),
    "no name": ('name: "encoder"', "", "unexpected directory name 'encoder' for model ''"),
    "backend": ('backend: "python"', "", "must specify 'platform' or 'backend' for encoder"),
    "batch size": (
        "max_batch_size: 0",
        "max_batch_size: -1",
        "'max_batch_size' must be non-negative value for encoder",
    ),
    "batching": ("max_batch_size: 0", "dynamic_batching { }", "dynamic_batching has no effect"),
    "syntax": ("max_batch_size: 0", "max_batch_size: zero", "is not a model configuration: 4:17"),
    "unknown field": ("max_batch_size: 0", "max_batch: 0", 'no field named "max_batch"'),
    "no data type": ("data_type: TYPE_FP32", "", "model input must specify 'data_type' for encoder"),
    "strange type": ("data_type: TYPE_FP32", "data_type: TYPE_STRING", "TYPE_STRING, which no PyTorch dtype matches"),
    "no dims": ("dims: [ -1, 4 ]", "dims: [ ]", "model input must specify 'dims'"),
    "zero dim": ("dims: [ -1, 4 ]", "dims: [ 0, 4 ]", "dimension must be integer >= 1, or -1"),
    "negative dim": ("dims: [ -1, 2 ]", "dims: [ -2, 2 ]", "model output dimension must be integer >= 1, or -1"),
    "no input name": ('name: "x"', "", "model input must specify 'name'"),
    "no input": ("input {", "output {", "declares no input"),
    "no output": ("output {", "input {", "declares no output"),
    "same inputs": (
        "output {",
        'input { name: "x" data_type: TYPE_INT8 dims: [ 1 ] }\noutput {',
        "input 'x' more than once",
    ),
    "same outputs": (
        "output {",
        'output { name: "y" data_type: TYPE_INT8 dims: [ 1 ] }\noutput {',
        "output 'y' more than once",
    ),
    "count 0": ("", GROUP % "count: 0", "instance group g of model encoder has count 0"),
    "count -1": ("", GROUP % "count: -1", "instance group g of model encoder has count -1"),
    "CPU with GPUs": (
        "",
        GROUP % "count: 1 kind: KIND_CPU gpus: [ 0 ]",
        "has kind KIND_CPU but specifies one or more GPUs",
    ),
    "MODEL with GPUs": (
        "",
        GROUP % "count: 1 kind: KIND_MODEL gpus: [ 0 ]",
        "has kind KIND_MODEL but specifies one or more",
    ),
    "GPU id": ("", GROUP % "count: 1 kind: KIND_GPU gpus: [ -3 ]", "specifies invalid or unsupported gpu id -3"),
    "profile": ("", GROUP % 'count: 1 profile: "0"', "specifies profile field which is only supported for TensorRT"),
    "latest 0": ("", "version_policy { latest { } }", "keeps the latest 0 versions"),
    "specific none": (
        "",
        "version_policy { specific { } }",
        "at least one version must be available under the version",
    ),
    "specific 0": ("", "version_policy { specific { versions: [ 0 ] } }", "names a version below 1"),
    "warm-up name": ("", WARMUP.replace('"w"', '""') % FILE, "must specify 'name'"),
    "same warm-ups": ("", WARMUP % FILE * 2, "declares the warm-up sample 'w' more than once"),
    "warm-up batch 0": (
        "",
        WARMUP.replace("size: 1", "size: 0") % FILE,
        "batch size 0 makes the server skip the sample",
    ),
    "warm-up batch 4": ("", WARMUP.replace("size: 1", "size: 4") % FILE, "batch size 4 is too large, max allowed is 0"),
    "warm-up input": ("", WARMUP.replace('"x"', '"z"') % FILE, "unexpected inference input 'z', allowed inputs are: x"),
    "warm-up without": (
        "",
        'model_warmup { name: "w" batch_size: 1 }',
        "expected 1 inputs but got 0 inputs, without 'x'",
    ),
    "warm-up dtype": ("", WARMUP % FILE.replace("FP32", "INT64"), "'x' data-type is 'INT64', but model expects 'FP32'"),
    "warm-up -1": ("", WARMUP % FILE.replace("1,", "-1,"), "warmup setting expects all variable-size dimensions are"),
    "warm-up rank": (
        "",
        WARMUP % FILE.replace("1,", "1, 1,"),
        "unexpected shape for input 'x'. Expected [-1, 4], got [1, 1, 4]",
    ),
    "warm-up size": (
        "",
        WARMUP % FILE.replace("4 ]", "5 ]"),
        "unexpected shape for input 'x'. Expected [-1, 4], got [1, 5]",
    ),
    "warm-up random": ("", WARMUP % FILE.replace('input_data_file: "f"', "random_data: true"), "has random_data"),
    "warm-up no data": ("", WARMUP % FILE.replace('input_data_file: "f"', ""), "must specify one of 'zero_data'"),
    "warm-up path": ("", WARMUP % FILE.replace('"f"', '"../f"'), "'../f', which is no file of warmup/"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    old, new, message = REFUSED[case]
    text = render_config(make_plan())
    assert old in text
    changed = text.replace(old, new, 1) if old else text + new
    with pytest.raises(RepositoryError) as caught:
        validate_config(changed, "encoder")
    assert message in caught.value.what
    assert "encoder" in str(caught.value.where)


def test_names_every_fault_at_once():
    text = render_config(make_plan()).replace("TYPE_FP32", "TYPE_STRING").replace('"python"', '""')
    with pytest.raises(RepositoryError) as caught:
        validate_config(text, "encoder")
    assert len(caught.value.what.splitlines()) == 3


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("instance_group", {"instance_group": [{"count": 2}]}),
        ("version_policy", {"version_policy": {"all": {}}}),
        ("parameters", {"parameters": {"a": "b"}}),
        ("response_cache", {"response_cache": True}),
    ],
)
def test_refuses_a_text_that_says_other_than_the_options(field, options):
    with pytest.raises(RepositoryError, match=f"{field} of encoder is not what"):
        validate_config(render_config(make_plan()), "encoder", TritonOptions.model_validate(options))


def test_refuses_a_warmup_that_was_turned_off():
    with pytest.raises(RepositoryError, match="model_warmup of encoder is not what"):
        validate_config(render_config(make_plan()) + WARMUP % FILE, "encoder", TritonOptions(model_warmup=False))


def test_options_have_defaults_and_are_frozen():
    options = TritonOptions()
    assert (options.instance_group, options.version_policy, options.parameters) == ((), None, {})
    assert options.model_warmup
    assert not options.response_cache
    with pytest.raises(ValidationError, match="frozen"):
        options.response_cache = True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instance_groups": []}, "Extra inputs are not permitted"),
        ({"instance_group": [{"count": 0}]}, "greater than or equal to 1"),
        ({"instance_group": [{"count": True}]}, "valid integer"),
        ({"instance_group": [{"kind": "KIND_MODEL"}]}, "KIND_AUTO"),
        ({"instance_group": [{"kind": "KIND_CPU", "gpus": [0]}]}, "KIND_CPU but specifies one or more GPUs"),
        ({"instance_group": [{"gpus": [-1]}]}, "greater than or equal to 0"),
        ({"instance_group": [{"gpus": [1, 1]}]}, "names gpu id 1 more than once"),
        ({"version_policy": {}}, "takes one of latest, all and specific, got none"),
        ({"version_policy": {"all": {}, "latest": {}}}, "got latest, all"),
        ({"version_policy": {"latest": {"num_versions": 0}}}, "greater than or equal to 1"),
        ({"version_policy": {"specific": {"versions": []}}}, "at least 1 item"),
        ({"version_policy": {"specific": {"versions": [0]}}}, "greater than or equal to 1"),
        ({"version_policy": {"specific": {"versions": [2, 2]}}}, "names version 2 more than once"),
        ({"parameters": {"a": 1}}, "valid string"),
        ({"parameters": {"": "a"}}, "at least 1 character"),
        ({"response_cache": "yes"}, "valid boolean"),
    ],
)
def test_options_refuse(options, message):
    with pytest.raises(ValidationError, match=message):
        TritonOptions.model_validate(options)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "a\nb", "a\\b", "é"])
def test_plan_refuses_a_name_that_is_no_directory(name):
    with pytest.raises(RepositoryError, match="cannot be the name of a model"):
        make_plan(name)


@pytest.mark.parametrize(
    "path", ["/abs", "../up", "a/../b", "", "./a", "a//b", "manifest.json", "config.pbtxt", "model.py"]
)
def test_plan_refuses_paths_that_leave_the_version_or_collide(path):
    with pytest.raises(RepositoryError, match=r"not a plain path|twice"):
        RepositoryPlan(make_plan().manifest, {path: Path("x")}, {"model.py": ""})


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
