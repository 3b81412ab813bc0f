"""Repositories with one fault each, and what the linter is to say of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, helper

Files = dict[str, "str | bytes | None"]

CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
PYTHON = """name: "m"
backend: "python"
max_batch_size: 4
input {
  name: "x"
  data_type: TYPE_FP32
  dims: [ 4 ]
}
output {
  name: "y"
  data_type: TYPE_FP32
  dims: [ 2 ]
}
"""
PLAN = PYTHON.replace('backend: "python"', 'platform: "tensorrt_plan"')
ONNX = PYTHON.replace('backend: "python"', 'platform: "onnxruntime_onnx"')
AOTI = (
    PYTHON.replace('backend: "python"', 'platform: "torch_aoti"').replace('"x"', '"ARGS[0]"').replace('"y"', '"RESULT"')
)
STEP = (
    'step {{\n model_name: "{model}"\n model_version: -1\n input_map {{ key: "x" value: "{x}" }}\n'
    ' output_map {{ key: "y" value: "{y}" }}\n}}\n'
)
ENSEMBLE = (
    PYTHON.replace('name: "m"', 'name: "e"', 1).replace('backend: "python"', 'platform: "ensemble"')
    + "ensemble_scheduling {\n"
    + STEP.format(model="m", x="x", y="y")
    + "}\n"
)
WARMUP = 'model_warmup {\n name: "w"\n batch_size: 1\n inputs { key: "x" value {\n %s } }\n}\n'
SAMPLE = "data_type: TYPE_FP32 dims: [ 4 ] zero_data: true"
SEQUENCE = 'sequence_batching {\n control_input [ { name: "s"\n control [ { %s } ] } ]\n}\n'
STATE = 'sequence_batching { state [ {\n input_name: "a" output_name: "b" data_type: TYPE_FP32 dims: [ 1 ]\n %s } ] }\n'


def network(dims: list[object], out: list[object] | None = None, external: str = "") -> bytes:
    """An ONNX model that adds weights to x, where they may stand in another file."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    if external:
        weights.ClearField("float_data")
        weights.data_location = TensorProto.EXTERNAL
        entry = weights.external_data.add()
        entry.key, entry.value = "location", external
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims if out is None else out)],
        [weights],
    )
    model = helper.make_model(graph)
    if not external:
        onnx.checker.check_model(model)
    return model.SerializeToString()


def model(config: str = PYTHON, name: str = "m", **files: str | bytes | None) -> Files:
    """The files of one model, its one version included where nothing else is said."""
    held = files or {"1/model.py": CODE}
    return {f"{name}/config.pbtxt": config, **{f"{name}/{path}": content for path, content in held.items()}}


def changed(old: str, new: str, config: str = PYTHON, count: int = 1) -> str:
    assert old in config
    return config.replace(old, new, count)


def plan(config: str) -> Files:
    return model(config, **{"1/model.plan": b""})


def onnx_model(config: str, content: bytes | None = None, **more: bytes) -> Files:
    return model(config, **{"1/model.onnx": network(["N", 4], ["N", 2]) if content is None else content, **more})


def aoti(config: str) -> Files:
    return model(config, **{"1/model.pt2": b""})


def torch(code: str) -> Files:
    config = changed('backend: "python"', 'backend: "pytorch"\nruntime: "model.py"')
    return model(config, **{"1/model.py": code})


def ensemble(config: str = ENSEMBLE, member: str = PYTHON) -> Files:
    return {**model(member), **model(config, "e", **{"1/.keep": ""})}


@dataclass(frozen=True)
class Case:
    """Files, and the finding that they must give: its rule, a part of its message, its place."""

    rule: str
    files: Files
    message: str
    line: int | None = None
    path: str = "m/config.pbtxt"
    release: str | None = None
    also: set[str] = field(default_factory=set)


def text(rule: str, new: str, message: str, line: int | None, old: str = "", also: tuple[str, ...] = ()) -> Case:
    """A Python model with a change, or with more behind it."""
    config = changed(old, new) if old else PYTHON + new
    return Case(rule, model(config), message, line, also=set(also))


def in_ensemble(
    rule: str, old: str, new: str, message: str, line: int | None, *also: str, member: str = PYTHON
) -> Case:
    files = ensemble(changed(old, new, ENSEMBLE), member)
    return Case(rule, files, message, line, "e/config.pbtxt", also=set(also))


def in_group(rule: str, fields: str, message: str, line: int = 15) -> Case:
    return text(rule, f'instance_group {{ name: "g"\n{fields} }}\n', message, line)


def in_warmup(rule: str, sample: str, message: str, line: int, *also: str, name: str = '"w"', batch: str = "1") -> Case:
    written = (WARMUP % sample).replace('"w"', name).replace("batch_size: 1", f"batch_size: {batch}")
    return text(rule, written, message, line, also=also)


GPU = "optimization { execution_accelerators {\n gpu_execution_accelerator [ {\n %s } ] } }\n"
BATCHING = "dynamic_batching {\n %s }\n"
TWO_STEPS = STEP.format(model="m", x="x", y="t") + STEP.format(model="m", x="t", y="y")
ONE_STEP = STEP.format(model="m", x="x", y="y")
CIRCLE = STEP.format(model="m", x="u", y="t") + STEP.format(model="m", x="t", y="u") + ONE_STEP

CASES = [
    # What is no configuration.
    Case("config-syntax", model(PYTHON + "max_batch: 1\n"), 'no field named "max_batch"', 14),
    Case("config-unreadable", model(PYTHON) | {"m/config.pbtxt": PYTHON.encode() + b"# \xff"}, "not UTF-8 text", 14),
    Case("config-missing", {"m/1/model.py": CODE}, "model 'm' has no config.pbtxt", path="m"),
    Case("stray-directory", model() | {".git/HEAD": "x"}, "No model version was found for '.git'", path=".git"),
    # Names, backends, batches.
    text(
        "name-mismatch", 'name: "n"', "unexpected directory name 'm' for model 'n', directory name must", 1, 'name: "m"'
    ),
    Case(
        "name-not-ascii",
        {f"é/{k[2:]}": v for k, v in model(changed('name: "m"', 'name: "é"')).items()},
        "whose name is not ASCII",
        path="é/config.pbtxt",
    ),
    Case(
        "backend-missing",
        model(changed('backend: "python"', ""), **{"1/model.bin": b""}),
        "Could not determine backend for model 'm' with no backend in model configuration",
    ),
    Case(
        "platform-unknown",
        model(changed('backend: "python"', 'platform: "caffe2"')),
        "unexpected platform type 'caffe2' for m",
        2,
    ),
    Case(
        "platform-backend-pair",
        plan(PLAN + 'backend: "onnxruntime"\n'),
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
        2,
        also={"artifact-missing"},
    ),
    Case(
        "platform-backend-pair",
        model(changed('backend: "python"', 'platform: "libtorch"'), **{"1/model.pt": b""}),
        "unexpected 'platform' and 'backend' pair, got:libtorch, pytorch",
        2,
    ),
    text(
        "max-batch-negative",
        "max_batch_size: -1",
        "'max_batch_size' must be non-negative value for m",
        3,
        PYTHON[27:45].strip(),
    ),
    Case("max-batch-implicit", plan(changed("max_batch_size: 4\n", "", PLAN)), "gives no max_batch_size"),
    # Tensors.
    Case("no-inputs", model(PYTHON[: PYTHON.index("input")] + PYTHON[PYTHON.index("output") :]), "declares no input"),
    Case("no-outputs", model(PYTHON[: PYTHON.index("output")]), "declares no output"),
    text(
        "tensor-repeated",
        'output { name: "y" data_type: TYPE_INT8 dims: 1 }',
        "declares the output 'y' more than once",
        14,
    ),
    text("tensor-name-missing", 'name: ""', "model input must specify 'name' for m", 4, 'name: "x"'),
    text("data-type-missing", "", "model input 'x' must specify 'data_type' for m", 4, "data_type: TYPE_FP32"),
    text("data-type-unknown", "data_type: 99", "has the data type 99, which is none", 6, "data_type: TYPE_FP32"),
    text("dims-missing", "dims: [ ]", "model input 'x' must specify 'dims' for m", 4, "dims: [ 4 ]"),
    text("dims-invalid", "dims: [ 4,\n 0 ]", "dimension must be integer >= 1, or -1 to indicate", 8, "dims: [ 4 ]"),
    text("dims-invalid", "dims: -2", "model output 'y' dimension must be integer >= 1", 12, "dims: [ 2 ]"),
    text("format-dims", "dims: [ 4 ]\n format: FORMAT_NCHW", "model input NHWC/NCHW require 3 dims", 8, "dims: [ 4 ]"),
    text(
        "shape-tensor-platform",
        "dims: [ 4 ]\n is_shape_tensor: true",
        "only supported for TensorRT platform",
        8,
        "dims: [ 4 ]",
    ),
    text(
        "non-linear-format",
        "dims: [ 4 ]\n is_non_linear_format_io: true",
        "only supported for the TensorRT",
        8,
        "dims: [ 4 ]",
    ),
    Case(
        "non-linear-format",
        plan(changed("dims: [ 2 ]", "dims: [ 2 ] is_non_linear_format_io: true", PLAN)),
        "Non-linear IO format output requires 3 dims",
        12,
    ),
    Case(
        "optional-unsupported",
        plan(changed("dims: [ 4 ]", "dims: [ 4 ]\noptional: true", PLAN)),
        "'x' of m is optional",
        8,
    ),
    Case(
        "ragged-input",
        model(changed("dims: [ 4 ]", "dims: [ -1 ]\nallow_ragged_batch: true", changed("size: 4", "size: 0"))),
        "has no effect: max_batch_size is 0",
        8,
    ),
    Case(
        "reshape-empty",
        model(changed("dims: [ 4 ]", "dims: [ 1 ]\nreshape { }", changed("size: 4", "size: 0"))),
        "model input 'x' cannot have empty reshape for non-batching model as scalar tensors are not supported",
        8,
    ),
    text(
        "reshape-size",
        "dims: [ 4 ]\nreshape { shape: [ 2, 3 ] }",
        "has different size for dims and reshape",
        8,
        "dims: [ 4 ]",
    ),
    text(
        "reshape-size",
        "dims: [ 4, -1 ]\nreshape { shape: [ 4 ] }",
        "has different number of variable-size dimensions for dims and reshape",
        8,
        "dims: [ 4 ]",
    ),
    text(
        "reshape-size",
        "dims: [ 4 ]\nreshape { shape: [ 0 ] }",
        "reshape dimensions must be integer >= 1",
        8,
        "dims: [ 4 ]",
    ),
    text(
        "batch-input",
        'batch_input { kind: BATCH_ITEM_SHAPE target_name: "t" data_type: TYPE_INT32 }',
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0",
        14,
    ),
    text(
        "batch-input",
        'batch_input {\n source_input: "x"\n data_type: TYPE_INT64 }',
        "batch input data type must be TYPE_INT32 or TYPE_FP32",
        16,
    ),
    text(
        "batch-output",
        'batch_output { source_input: "x"\n target_name: "z" }',
        "unknown target output name 'z'",
        15,
    ),
    Case("data-type-unsupported", plan(changed("TYPE_FP32", "TYPE_FP64", PLAN)), "unsupported datatype TYPE_FP64", 6),
    Case(
        "data-type-unsupported",
        onnx_model(changed("TYPE_FP32", "TYPE_BF16", ONNX)),
        "unsupported datatype TYPE_BF16",
        6,
        release="26.02",
        also={"onnx-data-type"},
    ),
    Case(
        "data-type-unsupported",
        aoti(changed("TYPE_FP32", "TYPE_BF16", AOTI)),
        "unsupported datatype TYPE_BF16",
        6,
        release="26.10",
    ),
    # Instances.
    in_group("instance-count", "count: 0", "instance group g of model m has count 0"),
    in_group("instance-count", "count: -1", "instance group g of model m has count -1"),
    in_group("instance-gpus-kind", "kind: KIND_CPU\ngpus: 0", "has kind KIND_CPU but specifies one or more GPUs", 16),
    in_group("instance-gpus-kind", "kind: KIND_MODEL gpus: 0", "has kind KIND_MODEL but specifies one or more GPUs"),
    in_group("instance-gpu-id", "gpus: [ 0,\n-3 ]", "specifies invalid or unsupported gpu id -3", 16),
    in_group("instance-gpu-repeated", "gpus: [ 1, 1 ]", "names gpu id 1 more than once"),
    in_group("instance-kind-unknown", "kind: 9", "has unexpected kind 9"),
    in_group("profile-platform", 'profile: "0"', "specifies profile field which is only supported for TensorRT models"),
    Case(
        "profile-number",
        plan(PLAN + 'instance_group { profile: "0"\nprofile: "max" }'),
        "instance group m_0 of model m and platform tensorrt_plan specifies invalid profile max",
        15,
    ),
    Case("tensorrt-copies", plan(PLAN + "instance_group { count: 2 }"), "holds its own copy of the weights", 14),
    # Schedulers.
    Case(
        "batching-without-effect",
        model(changed("size: 4", "size: 0") + "dynamic_batching { }"),
        "dynamic_batching has no effect on m",
        14,
    ),
    text("preferred-size", BATCHING % "preferred_batch_size: 8", "preferred size must be <= max batch size for m", 15),
    text("preferred-size", BATCHING % "preferred_batch_size: [ 1,\n 0 ]", "preferred size must be positive for m", 16),
    text("priority-level", BATCHING % "priority_levels: 2", "default priority level must be in range [1, 2] for m", 14),
    text(
        "priority-level",
        BATCHING % "priority_levels: 2 default_priority_level: 1\n priority_queue_policy { key: 3 value { } }",
        "priority queue policy must have priority level in range [1, 2] for m",
        16,
    ),
    text(
        "priority-without-levels", BATCHING % "default_priority_level: 1", "has no effect without priority_levels", 15
    ),
    text(
        "preserve-ordering",
        BATCHING % "preserve_ordering: true priority_levels: 2 default_priority_level: 1",
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
        15,
    ),
    text(
        "preserve-ordering",
        BATCHING
        % "preserve_ordering: true\n default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 9 }",
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        16,
    ),
    text(
        "cache-sequence",
        "sequence_batching { }\nresponse_cache { enable: true }",
        "Response Cache does not currently support model m with sequence batching scheduler",
        15,
    ),
    text(
        "cache-decoupled",
        "model_transaction_policy { decoupled: true }\nresponse_cache { enable: true }",
        "Response Cache does not currently support model m with 'decoupled' transaction policy",
        15,
    ),
    text(
        "metric-control",
        "model_metrics {\n metric_control { } }",
        "metric control must specify 'metric_identifier'",
        15,
    ),
    text(
        "sequence-preferred-size",
        "sequence_batching { oldest {\n preferred_batch_size: 9 } }",
        "sequence batching preferred batch size must be <= max batch size for m",
        15,
    ),
    text(
        "sequence-slots",
        "sequence_batching { direct {\n minimum_slot_utilization: 1.5 } }",
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        15,
    ),
    text(
        "sequence-control",
        SEQUENCE % "kind: CONTROL_SEQUENCE_START",
        "sequence batching must specify either 'int32_",
        16,
    ),
    text(
        "sequence-control",
        SEQUENCE % "int32_false_true: [ 0, 1, 2 ]",
        "control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START",
        16,
    ),
    text(
        "sequence-control",
        SEQUENCE % "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32",
        "unexpected data type for control CONTROL_SEQUENCE_CORRID. Allowed data types are TYPE_UINT64",
        16,
    ),
    text("sequence-state", (STATE % "").replace("dims: [ 1 ]", ""), "must specify 'dims'", 14),
    text(
        "sequence-state",
        STATE % 'initial_state { name: "i" data_type: TYPE_FP32 dims: -1 zero_data: true }',
        "size",
        16,
    ),
    text(
        "initial-state-file",
        STATE % 'initial_state { name: "i" data_type: TYPE_FP32 dims: 1 data_file: "f" }',
        "there is no file 'f'",
        16,
    ),
    # Versions.
    text(
        "version-policy-empty", "version_policy { latest { } }", "at least one version must be available under the", 14
    ),
    text(
        "version-policy-empty",
        "version_policy { specific { } }",
        "at least one version must be available under the",
        14,
    ),
    text("version-policy-number", "version_policy { specific { versions: [ 0,\n1 ] } }", "names version 0", 14),
    text(
        "version-absent",
        "version_policy { specific { versions: [ 1,\n7 ] } }",
        "version 7 is specified for model 'm', but the version directory is not present",
        15,
    ),
    Case("version-none", model(**{"2.txt": ""}), "at least one version must be available under the version policy of"),
    Case(
        "version-none",
        model(PYTHON + "version_policy { specific { versions: 2 } }"),
        "at least one version must be available under the version policy of model 'm'",
        14,
        also={"version-absent"},
    ),
    Case("version-name", model(**{"1/model.py": CODE, "v2/model.py": CODE}), "ignores the directory 'v2'", path="m/v2"),
    Case("version-name", model(**{"1/model.py": CODE, "01/a": ""}), "ignores the directory '01'", path="m/01"),
    Case("version-zero", model(**{"0/model.py": CODE}), "version 0 of model 'm'", path="m/0"),
    Case(
        "ensemble-version-empty",
        {**model(), "e/config.pbtxt": ENSEMBLE, "e/1": None},
        "the version directory of the ensemble 'e' is empty",
        path="e/1",
    ),
    # Files.
    Case("artifact-missing", model(**{"1": None}), "unable to find", path="m/1"),
    Case(
        "artifact-missing",
        model(PYTHON + 'default_model_filename: "main.py"'),
        "main.py' for model 'm'",
        path="m/1",
    ),
    Case(
        "capability-file-missing",
        plan(PLAN + 'cc_model_filenames {\n key: "9.0" value: "sm90.plan" }'),
        "which is for GPUs of compute capability 9.0",
        14,
    ),
    Case(
        "capability-key",
        plan(PLAN + 'cc_model_filenames { key: "sm90" value: "model.plan" }'),
        "has the key 'sm90', which is the compute capability of no GPU",
        14,
    ),
    text(
        "label-file-missing",
        'dims: [ 2 ]\nlabel_filename: "l.txt"',
        "failed to open text file for read",
        13,
        "dims: [ 2 ]",
    ),
    text(
        "environment-missing",
        'parameters { key: "EXECUTION_ENV_PATH"\n value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }',
        "which EXECUTION_ENV_PATH of m names",
        14,
    ),
    # Warm-up.
    in_warmup("warmup-name-missing", SAMPLE, "must specify 'name'", 14, name='""'),
    text("warmup-name-repeated", WARMUP % SAMPLE * 2, "declares the warm-up sample 'w' more than once", 21),
    in_warmup("warmup-skipped", SAMPLE, "batch size 0 makes the server skip the sample", 16, batch="0"),
    in_warmup("warmup-batch-size", SAMPLE, "batch size 8 is too large, max allowed is 4", 16, batch="8"),
    text(
        "warmup-input-unknown",
        (WARMUP % SAMPLE).replace('"x"', '"z"'),
        "unexpected inference input 'z', allowed inputs are: x",
        17,
        also=("warmup-input-missing",),
    ),
    text("warmup-input-missing", 'model_warmup { name: "w" batch_size: 1 }', "expected 1 inputs but got 0 inputs", 14),
    in_warmup(
        "warmup-data-type", SAMPLE.replace("FP32", "INT64"), "'x' data-type is 'INT64', but model expects 'FP32'", 18
    ),
    in_warmup("warmup-dims", SAMPLE.replace("4", "-1"), "warmup setting expects all variable-size dimensions are", 18),
    in_warmup(
        "warmup-dims", SAMPLE.replace("4", "1, 4"), "unexpected shape for input 'x'. Expected [4], got [1, 4]", 18
    ),
    in_warmup("warmup-data-missing", "data_type: TYPE_FP32 dims: 4", "must specify one of 'zero_data' and", 17),
    in_warmup("warmup-random", SAMPLE.replace("zero", "random"), "has random_data, which is random bytes", 18),
    in_warmup(
        "warmup-path",
        'data_type: TYPE_FP32 dims: 4\n input_data_file: "../f"',
        "'../f', which is no file of warmup/",
        19,
        "warmup-file-missing",
    ),
    in_warmup(
        "warmup-file-missing", 'data_type: TYPE_FP32 dims: 4\n input_data_file: "f"', "failed to open text file", 19
    ),
    Case(
        "warmup-file-size",
        model(
            PYTHON + WARMUP % 'data_type: TYPE_FP32 dims: 4 input_data_file: "f"',
            **{"1/model.py": CODE, "warmup/f": b"12345"},
        ),
        "warmup setting expects 16 bytes, but the data provided from",
        18,
    ),
    Case(
        "warmup-file-long",
        model(
            PYTHON + WARMUP % 'data_type: TYPE_FP32 dims: 4 input_data_file: "f"',
            **{"1/model.py": CODE, "warmup/f": bytes(20)},
        ),
        "has 20 bytes, of which the server uses 16",
        18,
    ),
    Case(
        "warmup-file-size",
        model(
            PYTHON.replace("FP32", "STRING") + WARMUP % 'data_type: TYPE_STRING dims: 4 input_data_file: "f"',
            **{"1/model.py": CODE, "warmup/f": b"\1\0\0\0a"},
        ),
        "holds 1 strings, and its dims need 4",
        18,
    ),
    Case(
        "warmup-file-size",
        model(
            PYTHON.replace("FP32", "STRING") + WARMUP % 'data_type: TYPE_STRING dims: 4 input_data_file: "f"',
            **{"1/model.py": CODE, "warmup/f": b"\2\0\0\0a"},
        ),
        "does not end where its last string ends",
        18,
    ),
    # Ensembles by themselves.
    in_ensemble(
        "ensemble-platform",
        'platform: "ensemble"',
        'platform: "tensorrt_plan"',
        "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble",
        14,
    ),
    in_ensemble("ensemble-platform", "max_b", 'backend: "python"\nmax_b', "and empty backend type", 3),
    Case(
        "ensemble-platform",
        model(changed('backend: "python"', 'platform: "ensemble"')),
        "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        2,
    ),
    in_ensemble(
        "ensemble-field", "max_b", "instance_group { }\nmax_b", "instance group should not be specified for", 3
    ),
    in_ensemble(
        "ensemble-field", "max_b", "optimization { }\nmax_b", "optimization should not be specified for ens", 3
    ),
    in_ensemble(
        "ensemble-field", "max_b", f"{WARMUP % SAMPLE}max_b", "model_warmup can not be specified for ensemble 'e'", 3
    ),
    in_ensemble("ensemble-step", ONE_STEP, "", "must specify 'step' for ensemble 'e'", 14),
    in_ensemble("ensemble-step", 'model_name: "m"', "", "must specify 'model_name' in step 0 of ensemble 'e'", 15),
    in_ensemble(
        "ensemble-step",
        ' input_map { key: "x" value: "x" }',
        "",
        "must specify 'input_map' in step 0 of ensemble 'e'",
        15,
        "ensemble-input-unused",
    ),
    in_ensemble(
        "ensemble-tensor-written-twice",
        ONE_STEP,
        ONE_STEP * 2,
        "ensemble tensor 'y' can appear in an output map only once for ensemble 'e' step 1",
        25,
    ),
    in_ensemble(
        "ensemble-input-unused",
        "output {",
        'input { name: "IN2" data_type: TYPE_FP32 dims: 1 }\noutput {',
        "ensemble input 'IN2' for ensemble e' is not used",
        9,
    ),
    in_ensemble(
        "ensemble-output-unused",
        "ensemble_scheduling",
        'output { name: "OUT" data_type: TYPE_FP32 dims: 1 }\nensemble_scheduling',
        "ensemble output 'OUT' for ensemble e' is not used",
        14,
    ),
    in_ensemble(
        "ensemble-output-unwritten",
        ONE_STEP,
        ONE_STEP.replace('value: "x"', 'value: "t"') + STEP.format(model="m", x="x", y="u"),
        "output 'y' for ensemble 'e' is not written: at least one of its depending tensors, 't', is not connected",
        9,
        "ensemble-tensor-unused",
    ),
    in_ensemble(
        "ensemble-tensor-unused",
        ONE_STEP,
        ONE_STEP + STEP.format(model="m", x="x", y="t"),
        "ensemble tensor 't' is unused in ensemble 'e'",
        25,
    ),
    in_ensemble(
        "ensemble-tensor-unused", ONE_STEP, CIRCLE, "ensemble tensor 't' is unused in ensemble 'e'", 19, "member-shape"
    ),
    in_ensemble(
        "ensemble-reshape",
        "dims: [ 4 ]",
        "dims: [ 4 ]\nreshape { shape: 4 }",
        "input 'x' of ensemble e has a reshape",
        8,
    ),
    dataclasses.replace(
        in_ensemble(
            "ensemble-inflight",
            ONE_STEP,
            ONE_STEP + "max_inflight_requests: 2\n",
            "Could not determine backend for model 'e'",
            21,
        ),
        release="25.10",
    ),
    # Ensembles and their members.
    in_ensemble(
        "member-unknown",
        'model_name: "m"',
        'model_name: "n"',
        "ensemble e contains models that are not available or ambiguous: n",
        16,
    ),
    in_ensemble(
        "member-cycle", 'model_name: "m"', 'model_name: "e"', "circular dependency between ensembles: e -> ... -> e", 16
    ),
    in_ensemble("member-version", "-1", "5", "depends on 'm' whose required version 5 is not loaded", 17),
    in_ensemble("member-version", "model_version: -1", "", "depends on 'm' whose required version 0 is not", 15),
    in_ensemble(
        "member-batch-size",
        "max_batch_size: 4",
        "max_batch_size: 16",
        "ensemble e allows maximum batch size 16, but it contains model m which only allows maximum batch size to be 4",
        16,
    ),
    in_ensemble(
        "member-input-unknown",
        'input_map { key: "x"',
        'input_map { key: "Q" value: "x" } input_map { key: "x"',
        "ensemble tensor x is mapping to non-existing input Q in model m",
        18,
    ),
    in_ensemble(
        "member-input-unmapped",
        "dims: [ 4 ]",
        "dims: [ 4 ]",
        "input z in model m is not mapped to any ensemble tensors",
        18,
        member=PYTHON + 'input { name: "z" data_type: TYPE_FP32 dims: 1 }',
    ),
    in_ensemble(
        "member-output-unknown",
        'output_map { key: "y"',
        'output_map { key: "Q"',
        "ensemble tensor y is mapped from non-existing output Q in model m",
        19,
    ),
    in_ensemble(
        "member-data-type",
        "TYPE_FP32",
        "TYPE_INT64",
        "ensemble tensor x: inconsistent data type: TYPE_INT64 is inferred from model e while TYPE_FP32 is inferred from "
        "model m",
        18,
    ),
    in_ensemble(
        "member-shape",
        "dims: [ 4 ]",
        "dims: [ 5 ]",
        "ensemble tensor x: inconsistent shape: [-1,5] is inferred from model e while [-1,4] is inferred from model m",
        18,
    ),
    in_ensemble(
        "member-fixed-batch",
        "dims: [ 4 ]",
        "dims: [ 4 ]",
        "ensemble tensor x: m takes only a batch of 1",
        18,
        member=PYTHON.replace("size: 4", "size: 0").replace("[ 4 ]", "[ 1, 4 ]").replace("[ 2 ]", "[ -1, 2 ]"),
    ),
    # One backend.
    Case(
        "aoti-release",
        aoti(AOTI),
        "Triton 26.02 does not know the platform torch_aoti",
        2,
        release="26.02",
        also={"aoti-names"},
    ),
    Case(
        "aoti-batching",
        aoti(AOTI),
        "gives every request to m the output of the whole batch",
        3,
        release="26.05",
    ),
    Case("aoti-names", aoti(changed("ARGS[0]", "x", AOTI)), "input 'x' of m names no tensor of an AOTInductor", 5),
    Case(
        "aoti-names",
        aoti(changed("size: 4", "size: 0", changed("RESULT", "OUTPUT__0", AOTI))),
        "input 'ARGS[0]' of m names no tensor",
        5,
        release="26.04",
    ),
    Case(
        "aoti-instances",
        aoti(changed("size: 4", "size: 0", AOTI) + "instance_group { count: 2 }"),
        "instance group m_0 of model m starts several instances",
        14,
        release="26.05",
    ),
    Case("torch-compile-options", torch("class A: pass"), "is not JSON", 16),
    Case(
        "accelerator-backend",
        plan(PLAN + GPU % 'name: "tensorrt"'),
        "execution_accelerators have no effect on m",
        14,
    ),
    Case(
        "accelerator-unknown",
        onnx_model(ONNX + GPU % 'name: "tensor_rt"'),
        "unknown Execution Accelerator 'tensor_rt' is requested",
        15,
    ),
    Case(
        "precision-mode",
        onnx_model(ONNX + GPU % 'name: "tensorrt"\n parameters { key: "precision_mode" value: "FP8" }'),
        "unsupported precision mode 'FP8' is requested",
        17,
    ),
    Case(
        "graph-batch-size",
        plan(PLAN + "optimization { cuda { graph_spec {\n batch_size: 8 } } }"),
        "a CUDA graph of m has batch_size 8, and max_batch_size is 4",
        15,
    ),
    Case(
        "multi-device",
        plan(PLAN + 'parameters { key: "enable_multi_device" value { string_value: "true" } }'),
        "needs one instance group with KIND_MODEL and count 1",
        14,
    ),
    Case(
        "allocation-strategy",
        plan(PLAN + 'parameters { key: "execution_context_allocation_strategy" value { string_value: "X" } }'),
        "is 'X', which is none",
        14,
    ),
    Case(
        "allocation-strategy-release",
        plan(PLAN + 'parameters { key: "execution_context_allocation_strategy" value { string_value: "STATIC" } }'),
        "Triton 25.03 does not know execution_context_allocation_strategy",
        14,
        release="25.03",
    ),
    in_group("python-gpu-inputs", "kind: KIND_GPU", "every input of m is copied to the CPU first", 14),
    # Python code.
    Case("python-syntax", model(**{"1/model.py": "x = 1\ndef f(:\n"}), "does not compile", 2, "m/1/model.py"),
    Case("python-syntax", model(**{"1/model.py": b"\xff\xfe\n"}), "model.py", 1, "m/1/model.py"),
    Case(
        "python-class",
        model(**{"1/model.py": "class Model: pass\n"}),
        "defines no TritonPythonModel",
        None,
        "m/1/model.py",
    ),
    Case("torch-module", torch("import torch\n"), "defines no class", None, "m/1/model.py"),
    Case(
        "torch-module-imported",
        torch("from torch.nn import Linear, Module\nclass A(Module): pass\n"),
        "the server may take Linear for the model",
        1,
        "m/1/model.py",
    ),
    # ONNX.
    Case("onnx-unreadable", onnx_model(ONNX, b"nonsense"), "the ONNX model cannot be read", None, "m/1/model.onnx"),
    Case(
        "onnx-tensor-unknown",
        onnx_model(changed('"y"', '"z"', ONNX)),
        "unexpected inference output 'z', allowed outputs are: y",
        10,
    ),
    Case(
        "onnx-input-count",
        onnx_model(changed('"x"', '"z"', ONNX)),
        "configuration expects 1 inputs, model provides 1",
        4,
        also={"onnx-tensor-unknown"},
    ),
    Case(
        "onnx-data-type",
        onnx_model(changed("TYPE_FP32", "TYPE_INT64", ONNX)),
        "configuration expects datatype TYPE_INT64 for input 'x', model provides TYPE_FP32",
        6,
    ),
    Case(
        "onnx-batch-dimension",
        onnx_model(ONNX, network([1, 4], ["N", 2])),
        "the first dimension must be -1; but shape expected by the model is [1,4]",
        7,
    ),
    Case(
        "onnx-dims",
        onnx_model(ONNX, network(["N", 4], ["N", "M"])),
        "the model expects 2 dimensions (shape [-1,-1]) but the model configuration specifies 2 dimensions (shape [-1,2])",
        12,
    ),
    Case(
        "onnx-dims",
        onnx_model(changed("dims: [ 4 ]", "dims: [ 4, 1 ]", ONNX)),
        "the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies 3 dimensions",
        7,
    ),
    Case(
        "onnx-external-data",
        onnx_model(ONNX, network(["N", 4], ["N", 2], external="data.bin")),
        "the model keeps weights in data.bin, which is not beside it",
        None,
        "m/1/model.onnx",
    ),
    Case(
        "onnx-external-data",
        onnx_model(ONNX, network(["N", 4], ["N", 2], external="/data.bin")),
        "/data.bin, an absolute path",
        None,
        "m/1/model.onnx",
    ),
]
