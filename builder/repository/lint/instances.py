"""Rules: instance groups."""

from __future__ import annotations

from collections.abc import Iterator

from builder.model_config import enum_name
from builder.repository.lint.model import ANY, Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `NormalizeInstanceGroup` and `ValidateInstanceGroup` in triton-inference-server/core,
# model_config_utils.cc.


@rule("instance-count", "warning")
def _count(model: Model) -> Iterator[Problem]:
    for index, group in enumerate(model.config.instance_group):
        place = ("instance_group", index, "count")
        # Where it is not written it reads as 0 too, and the server then takes its default, as anyone expects.
        if group.count < 0 or (group.count == 0 and place in model.positions):
            yield Problem(
                f"{model.group_label(index)} has count {group.count}, for which the server takes its default of at "
                "least one instance",
                "give a count of 1 or more, or remove the group",
                place,
            )


@rule("instance-gpus-kind", "error")
def _gpus_kind(model: Model) -> Iterator[Problem]:
    for index, group in enumerate(model.config.instance_group):
        if group.kind in (group.KIND_CPU, group.KIND_MODEL) and group.gpus:
            kind = enum_name(type(group).Kind.DESCRIPTOR, group.kind)
            yield Problem(
                f"{model.group_label(index)} has kind {kind} but specifies one or more GPUs",
                "remove 'gpus', or make the kind KIND_GPU",
                ("instance_group", index, "gpus"),
            )


@rule("instance-gpu-id", "error")
def _gpu_id(model: Model) -> Iterator[Problem]:
    for index, group in enumerate(model.config.instance_group):
        for position, gpu in enumerate(group.gpus):
            if gpu < 0:
                yield Problem(
                    f"{model.group_label(index)} specifies invalid or unsupported gpu id {gpu}",
                    "GPUs are numbered from 0",
                    ("instance_group", index, "gpus", position),
                )


@rule("instance-gpu-repeated", "warning")
def _gpu_repeated(model: Model) -> Iterator[Problem]:
    for index, group in enumerate(model.config.instance_group):
        repeated = sorted({gpu for gpu in group.gpus if list(group.gpus).count(gpu) > 1})
        if repeated:
            yield Problem(
                f"{model.group_label(index)} names gpu id {repeated[0]} more than once",
                "name it once, and raise 'count' for more instances on it",
                ("instance_group", index, "gpus"),
            )


@rule("instance-kind-unknown", "error")
def _kind(model: Model) -> Iterator[Problem]:
    for index, group in enumerate(model.config.instance_group):
        if group.kind not in type(group).Kind.DESCRIPTOR.values_by_number:
            yield Problem(
                f"{model.group_label(index)} has unexpected kind {group.kind}",
                "give KIND_GPU, KIND_CPU, KIND_MODEL or KIND_AUTO",
                ("instance_group", index, "kind"),
            )


@rule("profile-platform", "error")
def _profile(model: Model) -> Iterator[Problem]:
    for index, group in enumerate(model.config.instance_group):
        if group.profile and model.platform != "tensorrt_plan":
            yield Problem(
                f"{model.group_label(index)}{f' and platform {model.platform}' if model.platform else ''} specifies profile "
                "field which is only supported for TensorRT models",
                "remove 'profile'",
                ("instance_group", index, "profile"),
            )


@rule("profile-number", "error")
def _profile_number(model: Model) -> Iterator[Problem]:
    if model.platform != "tensorrt_plan":
        return
    for index, group in enumerate(model.config.instance_group):
        for position, profile in enumerate(group.profile):
            if not (profile.isascii() and profile.isdigit()):
                yield Problem(
                    f"{model.group_label(index)} and platform tensorrt_plan specifies invalid profile {profile}. The "
                    "field should contain the string representation of a non-negative integer.",
                    'give the number of one of the engine\'s optimization profiles, for example "0"',
                    ("instance_group", index, "profile", position),
                )


@rule("tensorrt-copies", "warning")
def _copies(model: Model) -> Iterator[Problem]:
    dynamic = model.config.max_batch_size > 0 or any(ANY in tensor.dims for _, _, tensor in model.tensors())
    if model.backend != "tensorrt" or not dynamic:
        return
    for index, group in enumerate(model.config.instance_group):
        if group.count > 1:
            yield Problem(
                f"{model.group_label(index)} has count {group.count}: an engine with a dynamic dimension is not shared, "
                "so each instance holds its own copy of the weights",
                "give count 1, or make sure that the GPU's memory is enough",
                ("instance_group", index, "count"),
            )


RULES = (_count, _gpus_kind, _gpu_id, _gpu_repeated, _kind, _profile, _profile_number, _copies)
