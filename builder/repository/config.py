"""config.pbtxt: rendered from a template, read back, and checked before a server sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from builder.errors import RepositoryError
from builder.repository import templates
from builder.repository.plan import CONFIG_NAME, RepositoryPlan, WarmupSample
from builder.runtime.manifest import Manifest
from builder.triton_options import TritonOptions
from builder.types import DTYPES, TensorSpec

__all__ = ["TEMPLATE", "config_dims", "render_config", "signature", "validate_config"]

TEMPLATE = "config.pbtxt.j2"

# Without it the Python backend copies every input to the CPU first.
_PARAMETERS = {"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}

_ANY = -1
_KNOWN_TYPES = frozenset(d.triton for d in DTYPES.values())


def render_config(plan: RepositoryPlan) -> str:
    """The text of config.pbtxt for the `python` layout.

    Every shape is given in full (`max_batch_size: 0`), so that the server derives nothing.
    """
    return templates.render(
        TEMPLATE,
        name=plan.name,
        inputs=[_tensor(spec) for spec in plan.manifest.inputs],
        outputs=[_tensor(output.tensor) for output in plan.manifest.outputs],
        triton=plan.triton,
        parameters={**_PARAMETERS, **plan.triton.parameters},
        warmup=[_sample(sample) for sample in plan.active_warmup],
    )


def config_dims(spec: TensorSpec) -> tuple[int, ...]:
    """The `dims` of a tensor: -1 for a dimension that varies, (1,) for a scalar, which Triton cannot declare."""
    return tuple(dim.min if dim.is_static else _ANY for dim in spec.dims) or (1,)


def signature(manifest: Manifest) -> frozenset[str]:
    """One line for each input and output, as config.pbtxt declares it; all versions of a model share them."""
    inputs = (_line("input", spec) for spec in manifest.inputs)
    outputs = (_line("output", output.tensor) for output in manifest.outputs)
    return frozenset([*inputs, *outputs])


def validate_config(text: str, directory_name: str, options: TritonOptions | None = None) -> None:
    """Check a config.pbtxt against the rules that the server enforces, and against those that it should.

    Args:
        text: the content of the file.
        directory_name: the model's directory in the repository.
        options: what the user asked for, if the text must say exactly that.
    Raises:
        RepositoryError: with every fault, in the server's own words where it has any.
    Source: `ValidateModelConfig`, `ValidateModelIOConfig` and `ValidateInstanceGroup` in
        triton-inference-server/core, model_config_utils.cc; `GenerateWarmupData` in backend_model_instance.cc.
    """
    config = _parsed(text, directory_name)
    faults = [
        *_model_faults(config, directory_name),
        *_tensor_faults("input", config),
        *_tensor_faults("output", config),
        *_instance_group_faults(config),
        *_version_policy_faults(config),
        *_warmup_faults(config),
        *(_option_faults(config, options) if options is not None else ()),
    ]
    if faults:
        raise RepositoryError(
            "\n".join(faults),
            where=f"{CONFIG_NAME} of model {directory_name!r}",
            fix="correct the [triton] table of the spec, or the model's inputs and outputs",
        )


def _tensor(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "data_type": DTYPES[spec.dtype].triton, "dims": config_dims(spec)}


def _sample(sample: WarmupSample) -> dict[str, object]:
    tensors = [
        {
            "name": name,
            "data_type": DTYPES[tensor.dtype].triton,
            "dims": tensor.shape or (1,),
            "file": sample.file_name(name),
        }
        for name, tensor in sample.tensors.items()
    ]
    return {"name": sample.name, "tensors": tensors}


def _line(kind: str, spec: TensorSpec) -> str:
    return f"{kind} {spec.name}: {DTYPES[spec.dtype].triton} {list(config_dims(spec))}"


def _parsed(text: str, directory_name: str) -> Any:
    # tritonclient.grpc takes a quarter of a second to import, which only a build should pay.
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise RepositoryError(
            f"{CONFIG_NAME} is not a model configuration: {error}",
            where=f"{CONFIG_NAME} of model {directory_name!r}",
            fix="correct it at the line and column given",
        ) from None


def _model_faults(config: Any, directory_name: str) -> Iterator[str]:
    if config.name != directory_name:
        yield (
            f"unexpected directory name '{directory_name}' for model '{config.name}', "
            "directory name must equal model name"
        )
    if not config.backend and not config.platform:
        yield f"must specify 'platform' or 'backend' for {config.name}"
    if config.max_batch_size < 0:
        yield f"'max_batch_size' must be non-negative value for {config.name}"
    if config.max_batch_size == 0 and config.HasField("dynamic_batching"):
        yield f"dynamic_batching has no effect on {config.name}, whose max_batch_size is 0"


def _tensor_faults(kind: str, config: Any) -> Iterator[str]:
    tensors = getattr(config, kind)
    if not tensors:
        yield f"model {config.name} declares no {kind}"
    for name in _repeated(tensor.name for tensor in tensors):
        yield f"model {config.name} declares the {kind} '{name}' more than once"
    for tensor in tensors:
        fault = _tensor_fault(tensor)
        if fault:
            place = f" (of '{tensor.name}')" if tensor.name else ""
            yield f"model {kind} {fault} for {config.name}{place}"


def _tensor_fault(tensor: Any) -> str | None:
    if not tensor.name:
        return "must specify 'name'"
    if not tensor.data_type:
        return "must specify 'data_type'"
    if _type_name(tensor.data_type) not in _KNOWN_TYPES:
        return f"has the data type {_type_name(tensor.data_type)}, which no PyTorch dtype matches,"
    if not tensor.dims:
        return "must specify 'dims'"
    if any(dim < 1 and dim != _ANY for dim in tensor.dims):
        return "dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
    return None


def _instance_group_faults(config: Any) -> Iterator[str]:
    for group in config.instance_group:
        label = f"instance group {group.name} of model {config.name}"
        kind = type(group).Kind.Name(group.kind)
        if group.count < 1:
            yield f"{label} has count {group.count}, which starts no instance"
        if kind in ("KIND_CPU", "KIND_MODEL") and group.gpus:
            yield f"{label} has kind {kind} but specifies one or more GPUs"
        if any(gpu < 0 for gpu in group.gpus):
            yield f"{label} specifies invalid or unsupported gpu id {min(group.gpus)}"
        if group.profile:
            yield f"{label} specifies profile field which is only supported for TensorRT models"


def _version_policy_faults(config: Any) -> Iterator[str]:
    policy, choice = config.version_policy, config.version_policy.WhichOneof("policy_choice")
    if choice == "latest" and policy.latest.num_versions < 1:
        yield f"version policy of model {config.name} keeps the latest 0 versions, so none"
    if choice == "specific" and not policy.specific.versions:
        yield f"at least one version must be available under the version policy of model '{config.name}'"
    if choice == "specific" and any(version < 1 for version in policy.specific.versions):
        yield f"version policy of model {config.name} names a version below 1"


def _warmup_faults(config: Any) -> Iterator[str]:
    for name in _repeated(sample.name for sample in config.model_warmup):
        yield f"model {config.name} declares the warm-up sample '{name}' more than once"
    declared = {tensor.name: tensor for tensor in config.input}
    required = {tensor.name for tensor in config.input if not tensor.optional}
    for sample in config.model_warmup:
        for fault in _sample_faults(sample, declared, required, config.max_batch_size):
            yield f"model_warmup '{sample.name}' of {config.name}: {fault}"


def _sample_faults(sample: Any, declared: dict[str, Any], required: set[str], max_batch_size: int) -> Iterator[str]:
    if not sample.name:
        yield "must specify 'name'"
    if sample.batch_size < 1:
        yield f"batch size {sample.batch_size} makes the server skip the sample"
    if sample.batch_size > max(max_batch_size, 1):
        yield f"batch size {sample.batch_size} is too large, max allowed is {max_batch_size}"
    for name in sorted(sample.inputs.keys() - declared.keys()):
        yield f"unexpected inference input '{name}', allowed inputs are: {', '.join(declared)}"
    for name in sorted(required - sample.inputs.keys()):
        yield f"expected {len(required)} inputs but got {len(sample.inputs)} inputs, without '{name}'"
    for name in sorted(sample.inputs.keys() & declared.keys()):
        yield from _sample_input_faults(name, sample.inputs[name], declared[name])


def _sample_input_faults(name: str, given: Any, declared: Any) -> Iterator[str]:
    if given.data_type != declared.data_type:
        yield (
            f"inference input '{name}' data-type is '{_type_name(given.data_type).removeprefix('TYPE_')}', "
            f"but model expects '{_type_name(declared.data_type).removeprefix('TYPE_')}'"
        )
    if any(dim < 1 for dim in given.dims):
        yield f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
    elif not _fits(given.dims, declared.dims):
        yield f"unexpected shape for input '{name}'. Expected {list(declared.dims)}, got {list(given.dims)}"
    source = given.WhichOneof("input_data_type")
    if source == "random_data":
        yield f"input '{name}' has random_data, which is random bytes: NaN for floats, ids out of every vocabulary"
    elif source is None:
        yield f"input '{name}' must specify one of 'zero_data' and 'input_data_file'"
    elif source == "input_data_file" and not _is_plain_name(given.input_data_file):
        yield f"input '{name}' has the input_data_file '{given.input_data_file}', which is no file of warmup/"


def _option_faults(config: Any, options: TritonOptions) -> Iterator[str]:
    """Where the text says other than the user: a fault of the template, or of its escaping."""
    groups = [(g.count, type(g).Kind.Name(g.kind), tuple(g.gpus)) for g in config.instance_group]
    parameters = {key: value.string_value for key, value in config.parameters.items()}
    policy = options.version_policy.model_dump(exclude_none=True) if options.version_policy else {}
    agreements = {
        "instance_group": groups == [(g.count, g.kind, g.gpus) for g in options.instance_group],
        "version_policy": _policy(config) == policy,
        "parameters": parameters == {**_PARAMETERS, **options.parameters},
        "response_cache": config.response_cache.enable == options.response_cache,
        "model_warmup": options.model_warmup or not config.model_warmup,
    }
    for field, agrees in agreements.items():
        if not agrees:
            yield f"{field} of {config.name} is not what [triton] asks for"


def _policy(config: Any) -> dict[str, dict[str, object]]:
    policy, choice = config.version_policy, config.version_policy.WhichOneof("policy_choice")
    if choice == "latest":
        return {"latest": {"num_versions": policy.latest.num_versions}}
    if choice == "specific":
        return {"specific": {"versions": tuple(policy.specific.versions)}}
    return {choice: {}} if choice else {}


def _type_name(number: int) -> str:
    from tritonclient.grpc import model_config_pb2

    values = model_config_pb2.DataType.DESCRIPTOR.values_by_number
    return str(values[number].name) if number in values else str(number)


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(dim in (_ANY, size) for size, dim in zip(shape, dims, strict=True))


def _is_plain_name(text: str) -> bool:
    return bool(text) and "/" not in text and "\\" not in text and text not in (".", "..")


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
