"""Models of many kinds as the assemble stage gets them: signatures, segments, layout and options, without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from builder.releases import Release, release
from builder.repository.assembly import Assembly, SegmentFiles
from builder.repository.batching import Batching, batch_symbol, choose_batching, unbatched_boundary
from builder.repository.layout import LayoutChoice
from builder.repository.warmup import WarmupSample, WarmupTensor, item_size
from builder.runtime.manifest import Manifest, SegmentSpec
from builder.triton_options import TritonOptions
from builder.types import Derived, OutputSpec, Range, TensorSpec

BATCH, TOKENS = Range(1, 8, 32, "B"), Range(8, 64, 256, "T")
ANY = Range(0, 8, None, "found", data_dependent=True)


def fixed(size: int) -> Range:
    return Range(size, size, size)


def tensor(name: str, dtype: str, *dims: Range | int, values: tuple[int, int] | None = None) -> TensorSpec:
    return TensorSpec(name, dtype, tuple(d if isinstance(d, Range) else fixed(d) for d in dims), values)


def segment(
    index: int, compiler: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], **more: object
) -> SegmentSpec:
    kind = "fallback" if compiler == "torch" else "engine"
    return SegmentSpec(f"segment_{index}", kind, compiler, "", tuple(inputs), tuple(outputs), **more)  # type: ignore[arg-type]


def files(place: Path, spec: SegmentSpec, *, weights: bool = True) -> SegmentFiles:
    """What a compiler would have written: a real graph for ONNX Runtime, else a few bytes."""
    place = place / spec.name
    place.mkdir(parents=True, exist_ok=True)
    if spec.compiler == "onnxruntime":
        graph = place / "model.onnx"
        graph.write_bytes(_graph(spec).SerializeToString())
        found = {"model.onnx": graph}
        if weights:
            found["weights.bin"] = place / "weights.bin"
            found["weights.bin"].write_bytes(b"weights")
        return SegmentFiles("model.onnx", found)
    name = {"tensorrt": "model.plan"}.get(spec.compiler, "model.pt2")
    (place / name).write_bytes(f"{spec.name} {spec.compiler}".encode())
    return SegmentFiles(name, {name: place / name})


def _graph(spec: SegmentSpec) -> onnx.ModelProto:
    """Outputs of the declared dtypes and ranks, computed by nothing worth running."""

    def values(names: Sequence[str], specs: Sequence[TensorSpec]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                n, _ONNX[t.dtype], [d.min if d.is_static else f"d{i}" for i, d in enumerate(t.dims)]
            )
            for n, t in zip(names, specs, strict=True)
        ]

    nodes = [helper.make_node("Identity", [spec.input_names[0]], ["v0"])]
    nodes += [helper.make_node("Identity", ["v0"], [name]) for name in spec.output_names]
    graph = helper.make_graph(
        nodes, "segment", values(spec.input_names, spec.inputs), values(spec.output_names, spec.outputs)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


_ONNX = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int16": TensorProto.INT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}


def samples(inputs: Sequence[TensorSpec]) -> tuple[WarmupSample, ...]:
    found = []
    for point in ("min", "opt", "max"):
        tensors = {}
        for spec in inputs:
            shape = spec.shape(point)
            count = 1
            for size in shape:
                count *= size
            tensors[spec.name] = WarmupTensor(spec.dtype, shape, bytes(count * item_size(spec.dtype)))
        found.append(WarmupSample(point, tensors))
    return tuple({tuple(t.shape for t in s.tensors.values()): s for s in reversed(found)}.values())[::-1]


def assembly(
    place: Path,
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    segments: Sequence[SegmentSpec] | None = None,
    *,
    layout: str = "python",
    runners: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    triton: str | None = "26.09",
    device: str = "cpu",
    profiles: Sequence[Sequence[TensorSpec]] = (),
    settings: Mapping[str, object] | None = None,
    labels: Mapping[str, Path] | None = None,
    warmup: bool = True,
) -> Assembly:
    """Outputs are values of the same name; without segments there is one of ONNX Runtime."""
    segments = segments or [segment(0, "onnxruntime", inputs, outputs)]
    triton_options = TritonOptions.model_validate(dict(options or {}))
    served: Release | None = release(triton) if triton else None
    symbol, reason = batch_symbol(inputs, outputs, profiles)
    limit = next((d.max or 0 for t in inputs for d in t.dims if d.name == symbol), 0) if symbol else 0
    batching: Batching = choose_batching(limit, symbol, reason, triton_options.fields.get("max_batch_size"))
    if layout == "ensemble" and batching.batched:
        between = unbatched_boundary([t for s in segments for t in (*s.inputs, *s.outputs)], symbol)
        batching = choose_batching(0, "", between, None) if between else batching
    place.mkdir(parents=True, exist_ok=True)
    return Assembly(
        manifest=Manifest(
            name,
            tuple(inputs),
            tuple(OutputSpec(t, t.name) for t in outputs),
            tuple(segments),
            target={"device": device},
            profiles=tuple(map(tuple, profiles)),
            settings=settings or {},
        ),
        files={s.name: files(place, s) for s in segments},
        layout=LayoutChoice(layout, "a test", tuple(runners)),
        batching=batching,
        options=triton_options,
        release=served,
        tool_version="1",
        work=place,
        warmup=samples(inputs) if warmup else (),
        labels=labels or {},
    )


def _text(place: Path) -> Assembly:
    ids = [tensor(n, "int64", BATCH, TOKENS) for n in ("input_ids", "attention_mask")]
    return assembly(place, "encoder", ids, [tensor("embedding", "float32", BATCH, 384)])


def _text_plan(place: Path) -> Assembly:
    ids = [tensor(n, "int64", BATCH, TOKENS) for n in ("input_ids", "attention_mask")]
    out = [tensor("embedding", "float32", BATCH, 384)]
    return assembly(place, "encoder", ids, out, layout="plan", runners=["onnxruntime"])


def _image_tensorrt(place: Path) -> Assembly:
    x, y = tensor("image", "float16", BATCH, 3, 224, 224), tensor("logits", "float32", BATCH, 1000)
    named = segment(0, "tensorrt", [x], [y], tensor_names=(("image",), ("logits",)))
    label = place / "labels.txt"
    place.mkdir(parents=True, exist_ok=True)
    label.write_text("cat\ndog\n")
    return assembly(
        place,
        "classifier",
        [x],
        [y],
        [named],
        layout="plan",
        runners=["tensorrt"],
        device="cuda",
        labels={"logits": label},
        options={
            "optimization": {"cuda": {"graphs": True, "graph_spec": [{"batch_size": 1}]}, "eager_batching": True},
            "dynamic_batching": {"preferred_batch_size": [8, 32], "max_queue_delay_microseconds": 200},
        },
    )


def _profiles_tensorrt(place: Path) -> Assembly:
    def ids(tokens: Range) -> list[TensorSpec]:
        return [tensor("ids", "int64", BATCH, tokens)]

    out = [tensor("hidden", "float32", BATCH, TOKENS, 64)]
    named = segment(0, "tensorrt", ids(TOKENS), out, tensor_names=(("ids",), ("hidden",)))
    profiles = [ids(Range(8, 16, 63, "T")), ids(Range(64, 128, 256, "T"))]
    return assembly(
        place,
        "two",
        ids(TOKENS),
        out,
        [named],
        layout="plan",
        runners=["tensorrt"],
        device="cuda",
        profiles=profiles,
        settings={"cuda_graphs": True},
    )


def _aoti_plan(place: Path) -> Assembly:
    x, y = tensor("x", "float32", BATCH, 16), tensor("y", "float32", BATCH, 4)
    return assembly(place, "mlp", [x], [y], [segment(0, "inductor", [x], [y])], layout="plan", runners=["inductor"])


def _three(place: Path, **more: object) -> Assembly:
    x, a, b = (tensor(n, "float32", BATCH, TOKENS, 16) for n in ("x", "layer_norm", "bessel"))
    y = tensor("y", "float32", BATCH, TOKENS, 8)
    steps = [
        segment(0, "onnxruntime", [x], [a]),
        segment(1, "torch", [a], [b]),
        segment(2, "onnxruntime", [b, a], [y]),
    ]
    return assembly(place, "hybrid", [x], [y], steps, layout="ensemble", **more)  # type: ignore[arg-type]


def _ensemble_old(place: Path) -> Assembly:
    return _three(place, runners=["onnxruntime", "python", "onnxruntime"], triton="25.01")


def _ensemble_aoti(place: Path) -> Assembly:
    """The middle one is compiled for the PyTorch backend, which could not batch yet."""
    return _three(place, runners=["onnxruntime", "inductor", "onnxruntime"], triton="26.03")


def _ensemble_options(place: Path) -> Assembly:
    options = {
        "dynamic_batching": {"max_queue_delay_microseconds": 500},
        "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
        "ensemble_scheduling": {"max_inflight_requests": 16},
        "version_policy": {"latest": {"num_versions": 1}},
        "response_cache": True,
        "max_batch_size": 16,
    }
    return _three(place, runners=["onnxruntime", "inductor", "onnxruntime"], options=options)


def _ensemble_unbatched(place: Path) -> Assembly:
    x, y = tensor("x", "float32", BATCH, 4), tensor("scores", "float32", BATCH)
    h = tensor("h", "float32", BATCH, 8)
    steps = [segment(0, "onnxruntime", [x], [h]), segment(1, "torch", [h], [y])]
    return assembly(place, "scorer", [x], [y], steps, layout="ensemble", runners=["onnxruntime", "python"])


def _detector(place: Path) -> Assembly:
    x = tensor("image", "uint8", 3, Range(64, 256, 512, "H", 32), Range(64, 256, 512, "W", 32))
    return assembly(place, "detector", [x], [tensor("boxes", "float32", ANY, 4), tensor("labels", "int64", ANY)])


def _scalars(place: Path) -> Assembly:
    inputs = [tensor("x", "bfloat16", BATCH, 3), tensor("scale", "float32"), tensor("steps", "int64", values=(1, 8))]
    return assembly(place, "scaler", inputs, [tensor("mean", "float64"), tensor("total", "int16", BATCH)])


def _per_row(place: Path) -> Assembly:
    inputs = [tensor("x", "float32", BATCH, 4), tensor("weight", "float32", BATCH)]
    return assembly(place, "rows", inputs, [tensor("score", "float32", BATCH)])


def _static(place: Path) -> Assembly:
    return assembly(place, "static", [tensor("x", "float32", 1, 3, 8, 8)], [tensor("y", "bool", 1, 2)])


def _derived(place: Path) -> Assembly:
    longer = Range(17, 129, 513, "2*T+1", derived=Derived("T", 2, 1))
    return assembly(
        place, "upsampler", [tensor("x", "float32", BATCH, TOKENS)], [tensor("y", "float32", BATCH, longer)]
    )


def _optional_ragged(place: Path) -> Assembly:
    ids = [tensor(n, "int64", BATCH, TOKENS) for n in ("input_ids", "attention_mask")]
    options = {"optional": {"attention_mask": 1}, "ragged": {"input_ids": 0, "attention_mask": 0}}
    return assembly(place, "padded", ids, [tensor("embedding", "float32", BATCH, 384)], options=options)


def _queues(place: Path) -> Assembly:
    options = {
        "dynamic_batching": {
            "max_queue_delay_microseconds": 100,
            "preserve_ordering": False,
            "priority_levels": 2,
            "default_priority_level": 1,
            "priority_queue_policy": {"2": {"timeout_action": "REJECT", "max_queue_size": 8}},
            "default_queue_policy": {"default_timeout_microseconds": 5000, "allow_timeout_override": True},
        }
    }
    return assembly(
        place, "queued", [tensor("x", "float32", BATCH, 4)], [tensor("y", "float32", BATCH, 2)], options=options
    )


def _instances(place: Path) -> Assembly:
    options = {
        "instance_group": [
            {"count": 2, "kind": "KIND_GPU", "gpus": [0, 1], "host_policy": "numa_0"},
            {
                "count": 1,
                "kind": "KIND_CPU",
                "rate_limiter": {"resources": [{"name": "R1", "count": 4}], "priority": 2},
            },
        ],
        "version_policy": {"specific": {"versions": [1, 3]}},
        "parameters": {"FORCE_CPU_ONLY_INPUT_TENSORS": "yes", "owner": "team a"},
        "metric_tags": {"team": "a"},
        "model_warmup": False,
    }
    return assembly(
        place, "placed", [tensor("x", "float32", BATCH, 4)], [tensor("y", "float32", BATCH, 2)], options=options
    )


def _escapes(place: Path) -> Assembly:
    options = {
        "parameters": {
            "quote \" and '": 'back\\slash " } name: "x"',
            "lines": "a\nb\r\tc\x7f\x01",
            "unicode": "é € 😀 \u2028",
        },
        "version_policy": {"all": {}},
    }
    return assembly(
        place,
        "escapes",
        [tensor('a/b "c"\\', "float32", BATCH, 4)],
        [tensor("y", "float32", BATCH, 2)],
        options=options,
    )


def _no_batches(place: Path) -> Assembly:
    options = {"max_batch_size": 0}
    return assembly(
        place, "single", [tensor("x", "float32", BATCH, 4)], [tensor("y", "float32", BATCH, 2)], options=options
    )


def _accelerated(place: Path) -> Assembly:
    """TensorRT inside ONNX Runtime, as a user asks for it."""
    accelerator = {"name": "tensorrt", "parameters": {"precision_mode": "FP16", "trt_engine_cache_enable": "true"}}
    options = {
        "optimization": {"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}, "graph": {"level": 1}},
        "instance_group": [{"kind": "KIND_GPU", "gpus": [0]}],
    }
    ids = [tensor("ids", "int32", BATCH, TOKENS)]
    out = [tensor("hidden", "float16", BATCH, TOKENS, 8)]
    return assembly(place, "accelerated", ids, out, layout="plan", runners=["onnxruntime"], options=options)


def _scalar_plan(place: Path) -> Assembly:
    """ONNX Runtime serves tensors without dimensions as one element."""
    inputs = [tensor("x", "float32", BATCH, 3), tensor("scale", "float32")]
    return assembly(place, "scaled", inputs, [tensor("mean", "float32")], layout="plan", runners=["onnxruntime"])


def _sequences(place: Path, layout: str, name: str) -> Assembly:
    x, y = tensor("x", "float32", BATCH, 3), tensor("y", "float32", BATCH, 3)
    old, new = tensor("state", "float32", BATCH, 8), tensor("new_state", "float32", BATCH, 8)
    options = {
        "sequence_batching": {
            "max_sequence_idle_microseconds": 5000000,
            "state": [{"input_name": "state", "output_name": "new_state"}],
            "oldest": {"max_candidate_sequences": 4},
        }
    }
    runners = ["onnxruntime"] if layout == "plan" else []
    return assembly(place, name, [x, old], [y, new], layout=layout, runners=runners, options=options)


def _sequences_plan(place: Path) -> Assembly:
    """The backend keeps the state."""
    return _sequences(place, "plan", "sums")


def _sequences_python(place: Path) -> Assembly:
    """Our Python model does."""
    return _sequences(place, "python", "sums")


MODELS = {
    function.__name__.strip("_"): function
    for function in (
        _text, _text_plan, _image_tensorrt, _profiles_tensorrt, _aoti_plan, _ensemble_old, _ensemble_aoti,
        _ensemble_options, _ensemble_unbatched, _detector, _scalars, _per_row, _static, _derived, _optional_ragged, _queues,
        _instances, _escapes, _no_batches, _accelerated, _scalar_plan,
        _sequences_plan, _sequences_python,
    )
}  # fmt: skip
