"""Rules: what only one backend wants."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from builder.releases import first_release
from builder.repository.lint.model import Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: the guides and sources of pytorch_backend, tensorrt_backend, onnxruntime_backend and
# python_backend.

_AOTI_NAME = re.compile(r"\w+__\d+")
_AOTI_PATH = re.compile(r"(ARGS|KWARGS|RESULT)(\[[^\[\]\"\s]+\])*")
_PRECISION_MODES = ("FP32", "FP16", "BF16", "INT8")
_ACCELERATORS = {"gpu_execution_accelerator": ("tensorrt", "cuda"), "cpu_execution_accelerator": ("openvino",)}
_TORCH_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_CPU_ONLY = "FORCE_CPU_ONLY_INPUT_TENSORS"


def _parameter(model: Model, key: str) -> str | None:
    return model.config.parameters[key].string_value if key in model.config.parameters else None


@rule("aoti-release", "error")
def _aoti(model: Model) -> Iterator[Problem]:
    if model.is_aoti and model.release is not None and not model.release.can("torch_aoti"):
        yield Problem(
            f"Triton {model.release.name} does not know the platform torch_aoti of {model.name}",
            f"serve with {first_release('torch_aoti')} or newer",
            ("platform",),
        )


@rule("aoti-batching", "error")
def _aoti_batching(model: Model) -> Iterator[Problem]:
    if (
        model.is_aoti
        and model.config.max_batch_size > 0
        and model.release is not None
        and model.release.can("torch_aoti")
        and not model.release.can("torch_aoti_batching")
    ):
        yield Problem(
            f"Triton {model.release.name} gives every request to {model.name} the output of the whole batch: its "
            "torch_aoti does not batch",
            f"write max_batch_size: 0 and the batch in every dims, or serve with {first_release('torch_aoti_batching')} "
            "or newer",
            ("max_batch_size",),
        )


@rule("aoti-names", "error")
def _aoti_names(model: Model) -> Iterator[Problem]:
    paths_known = model.release is None or model.release.can("torch_aoti_names")
    for kind, place, tensor in model.tensors() if model.is_aoti else ():
        if _AOTI_NAME.fullmatch(tensor.name) or not tensor.name:
            continue
        if _AOTI_PATH.fullmatch(tensor.name) and tensor.name.startswith("RESULT") == (kind == "output"):
            if paths_known:
                continue
            fix = f"names such as ARGS[0] and RESULT need {first_release('torch_aoti_names')}; write {kind.upper()}__0"
        else:
            fix = f"name it {kind.upper()}__0, or {'ARGS[0]' if kind == 'input' else 'RESULT'}, by its place in forward"
        yield Problem(
            f"{kind} '{tensor.name}' of {model.name} names no tensor of an AOTInductor package", fix, (*place, "name")
        )


@rule("aoti-instances", "error")
def _aoti_instances(model: Model) -> Iterator[Problem]:
    if not model.is_aoti or model.release is None or model.release.can("torch_aoti_batching"):
        return
    for index, group in enumerate(model.config.instance_group):
        if group.count > 1 or len(group.gpus) > 1:
            yield Problem(
                f"{model.group_label(index)} starts several instances, and Triton {model.release.name} keeps one loader "
                "for all of them: the last one wins",
                f"give count: 1 and one GPU, or serve with {first_release('torch_aoti_batching')} or newer",
                ("instance_group", index),
            )


@rule("torch-compile-options", "error")
def _torch_compile(model: Model) -> Iterator[Problem]:
    text = _parameter(model, _TORCH_COMPILE)
    if model.backend != "pytorch" or text is None:
        return
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        yield Problem(
            f"{_TORCH_COMPILE} of {model.name} is not JSON: {error}",
            "write a JSON object",
            ("parameters", _TORCH_COMPILE),
        )


@rule("accelerator-backend", "warning")
def _accelerator_backend(model: Model) -> Iterator[Problem]:
    known = ("tensorrt", "python", "pytorch")
    if model.backend in known and model.config.optimization.HasField("execution_accelerators"):
        yield Problem(
            f"execution_accelerators have no effect on {model.name}: the backend {model.backend} has none",
            "remove them",
            ("optimization", "execution_accelerators"),
        )


@rule("accelerator-unknown", "error")
def _accelerator(model: Model) -> Iterator[Problem]:
    if model.backend != "onnxruntime":
        return
    for field, known in _ACCELERATORS.items():
        for index, accelerator in enumerate(getattr(model.config.optimization.execution_accelerators, field)):
            if accelerator.name not in known:
                yield Problem(
                    f"unknown Execution Accelerator '{accelerator.name}' is requested for {model.name}",
                    f"{field} may be {' or '.join(known)}",
                    ("optimization", "execution_accelerators", field, index),
                )


@rule("precision-mode", "error")
def _precision(model: Model) -> Iterator[Problem]:
    if model.backend != "onnxruntime":
        return
    field = "gpu_execution_accelerator"
    for index, accelerator in enumerate(model.config.optimization.execution_accelerators.gpu_execution_accelerator):
        mode = accelerator.parameters.get("precision_mode")
        if accelerator.name == "tensorrt" and mode is not None and mode not in _PRECISION_MODES:
            yield Problem(
                f"unsupported precision mode '{mode}' is requested for {model.name}",
                f"it may be {', '.join(_PRECISION_MODES)}",
                ("optimization", "execution_accelerators", field, index, "parameters", "precision_mode"),
            )


@rule("graph-batch-size", "error")
def _graphs(model: Model) -> Iterator[Problem]:
    batches = model.config.max_batch_size > 0
    for index, spec in enumerate(model.config.optimization.cuda.graph_spec):
        if (spec.batch_size > 0) != batches or spec.batch_size > max(model.config.max_batch_size, 0):
            yield Problem(
                f"a CUDA graph of {model.name} has batch_size {spec.batch_size}, and max_batch_size is "
                f"{model.config.max_batch_size}",
                "give 1 to max_batch_size, or 0 where max_batch_size is 0",
                ("optimization", "cuda", "graph_spec", index, "batch_size"),
            )


@rule("multi-device", "error")
def _multi_device(model: Model) -> Iterator[Problem]:
    key = "enable_multi_device"
    if model.backend != "tensorrt" or (_parameter(model, key) or "").lower() not in ("true", "1"):
        return
    place = ("parameters", key)
    if model.release is not None and not model.release.can("multi_device"):
        fix = f"serve with {first_release('multi_device')} or newer"
        yield Problem(f"Triton {model.release.name} cannot run {model.name} on several GPUs at once", fix, place)
    groups = model.config.instance_group
    if len(groups) != 1 or groups[0].kind != groups[0].KIND_MODEL or groups[0].count > 1:
        yield Problem(
            f"{model.name} runs on several GPUs at once, which needs one instance group with KIND_MODEL and count 1",
            "write instance_group [ { kind: KIND_MODEL count: 1 } ]",
            ("instance_group",) if groups else place,
        )
    elif len(groups[0].profile) > 1:
        yield Problem(
            f"{model.name} runs on several GPUs at once, which allows one optimization profile",
            "name one profile",
            ("instance_group", 0, "profile"),
        )


@rule("allocation-strategy", "error")
def _allocation(model: Model) -> Iterator[Problem]:
    key, known = "execution_context_allocation_strategy", ("STATIC", "ON_PROFILE_CHANGE")
    value = _parameter(model, key)
    if model.backend == "tensorrt" and value is not None and value not in known:
        message = f"{key} of {model.name} is '{value}', which is none"
        yield Problem(message, f"it may be {' or '.join(known)}", ("parameters", key))


@rule("allocation-strategy-release", "warning")
def _allocation_release(model: Model) -> Iterator[Problem]:
    key = "execution_context_allocation_strategy"
    if model.backend != "tensorrt" or _parameter(model, key) is None or model.release is None:
        return
    if not model.release.can(key):
        yield Problem(
            f"Triton {model.release.name} does not know {key} of {model.name}, and allocates for all profiles",
            f"serve with {first_release(key)} or newer, or remove it",
            ("parameters", key),
        )


@rule("python-gpu-inputs", "warning")
def _cpu_only(model: Model) -> Iterator[Problem]:
    if model.backend != "python" or _parameter(model, _CPU_ONLY) is not None:
        return
    for index, group in enumerate(model.config.instance_group):
        if group.kind == group.KIND_GPU:
            yield Problem(
                f"{model.group_label(index)} is on a GPU, and every input of {model.name} is copied to the CPU first",
                f'write parameters {{ key: "{_CPU_ONLY}" value {{ string_value: "no" }} }} and take inputs with DLPack, '
                'or "yes" to say so',
                ("instance_group", index),
            )
            return


RULES = (
    _aoti,
    _aoti_batching,
    _aoti_names,
    _aoti_instances,
    _torch_compile,
    _accelerator_backend,
    _accelerator,
    _precision,
    _graphs,
    _multi_device,
    _allocation,
    _allocation_release,
    _cpu_only,
)
