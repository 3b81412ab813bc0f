"""The fields of config.pbtxt that have no place of their own in the template: ours, and the user's over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builder.errors import SpecError
from builder.model_config import new_config, only
from builder.repository.backends import NativeBackend
from builder.triton_options import TritonOptions
from builder.types import TensorSpec

__all__ = ["add_graphs", "member_fields", "model_fields"]

# What is said elsewhere.
_PLACED = ("max_batch_size", "ensemble_scheduling")

# What belongs to the models that do the work, and what the ensemble itself may say.
_OF_MEMBERS = ("instance_group", "optimization", "parameters", "model_operations", "cc_model_filenames")
_QUEUES = ("dynamic_batching",)

# Without it the Python backend copies every input to the CPU first.
_PYTHON_PARAMETERS = {"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}


def model_fields(
    options: TritonOptions,
    native: NativeBackend | None,
    *,
    on_gpu: bool,
    batched: bool,
    profiles: int,
    ensemble: bool,
) -> Any:
    """An `inference.ModelConfig` for the model that clients call.

    Args:
        options: of the user.
        native: the backend that runs its engine; None for our Python model and for an ensemble.
        on_gpu: whether engines run on a GPU.
        batched: whether a server may join its requests.
        profiles: how many optimization profiles Triton chooses from.
        ensemble: whether it is one, which has no instances.
    Raises:
        SpecError: for a field that nothing would come of.
    """
    config, given = new_config(), options.message()
    if ensemble:
        for name in (*_OF_MEMBERS, *_QUEUES):
            given.ClearField(name)
        if given.HasField("sequence_batching"):
            raise SpecError(
                "an ensemble has no sequences",
                where="[triton].sequence_batching",
                fix="use --layout python or --layout plan",
            )
    else:
        if given.HasField("ensemble_scheduling"):
            raise SpecError(
                "max_inflight_requests is a limit of ensembles, and this model is none",
                where="[triton].ensemble_scheduling",
                fix="leave it out, or use --layout ensemble",
            )
        if native is None:
            _add_parameters(config)
        else:
            _add_instances(config, on_gpu)
        if batched and not given.HasField("sequence_batching"):
            config.dynamic_batching.SetInParent()
    return _merged(config, given, profiles)


def member_fields(
    options: TritonOptions, native: NativeBackend | None, *, on_gpu: bool, first: bool, batched: bool, profiles: int
) -> Any:
    """The same for a model that only an ensemble calls.

    Args:
        first: whether requests wait in its queue; to wait again before each later step would only cost time.
    """
    queues = _QUEUES if batched and first else ()
    config, given = new_config(), only(options.message(), (*_OF_MEMBERS, *queues))
    if native is None:
        _add_parameters(config)
    _add_instances(config, on_gpu)
    if batched:
        config.dynamic_batching.SetInParent()
    return _merged(config, given, profiles)


def add_graphs(
    config: Any, profiles: Sequence[Sequence[TensorSpec]], names: Sequence[str], max_batch_size: int
) -> None:
    """Have TensorRT's backend capture CUDA graphs at the corners of each profile, unless the user said which.

    Args:
        config: of the model, an `inference.ModelConfig`.
        profiles: the engine's inputs in each.
        names: what the engine calls them.
        max_batch_size: of the model.
    Source: `ModelOptimizationPolicy.Cuda.GraphSpec` in model_config.proto.
    """
    if config.optimization.HasField("cuda"):
        return
    cuda = config.optimization.cuda
    cuda.graphs = True
    seen = set()
    for inputs in profiles:
        for point in ("min", "opt", "max"):
            shapes = [t.shape(point) for t in inputs]
            batch = min(shapes[0][0], max_batch_size) if max_batch_size else 0
            start = 1 if max_batch_size else 0
            key = (batch, *(s[start:] for s in shapes))
            if key in seen:
                continue
            seen.add(key)
            spec = cuda.graph_spec.add(batch_size=batch)
            for name, shape in zip(names, shapes, strict=True):
                spec.input[name].dim.extend(shape[start:])


def _add_parameters(config: Any) -> None:
    for key, value in _PYTHON_PARAMETERS.items():
        config.parameters[key].string_value = value


def _add_instances(config: Any, on_gpu: bool) -> None:
    """One instance: each has its own copy of an engine with a dynamic size, and a server's default is one for every GPU."""
    group = config.instance_group.add(count=1)
    kinds = type(group).Kind
    group.kind = kinds.Value("KIND_GPU" if on_gpu else "KIND_CPU")
    if on_gpu:
        # All on one GPU, or tensors between models travel from one to another.
        group.gpus.append(0)


def _merged(ours: Any, given: Any, profiles: int) -> Any:
    """The user's fields in place of ours; parameters one by one."""
    for descriptor, _ in given.ListFields():
        if descriptor.name != "parameters":
            ours.ClearField(descriptor.name)
    ours.MergeFrom(given)
    for name in _PLACED:
        ours.ClearField(name)
    if profiles > 1:
        for group in ours.instance_group:
            if not group.profile:
                group.profile.extend(map(str, range(profiles)))
    return ours
