"""Rules: what can be said of an ensemble from its own configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from builder.releases import first_release
from builder.repository.lint.model import Model
from builder.repository.lint.positions import Field
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `ValidateEnsembleSchedulingConfig` and `BuildEnsembleGraph` in
# triton-inference-server/core, model_config_utils.cc.


def _maps(model: Model, field: str) -> Iterator[tuple[Field, str]]:
    """Place and ensemble tensor of each entry of every step's input or output map."""
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        entries = getattr(step, field)
        for key in sorted(entries):
            yield ("ensemble_scheduling", "step", index, field, key), entries[key]


@rule("ensemble-platform", "error")
def _platform(model: Model) -> Iterator[Problem]:
    config = model.config
    if config.HasField("ensemble_scheduling") and config.platform != "ensemble":
        message = f"ensemble scheduling cannot be set for model '{model.name}' whose platform is not ensemble"
        yield Problem(message, 'write platform: "ensemble"', ("ensemble_scheduling",))
    elif config.platform == "ensemble" and not config.HasField("ensemble_scheduling"):
        message = f"ensemble scheduling must be set for ensemble {model.name} whose platform is ensemble"
        yield Problem(message, "give ensemble_scheduling with the steps", ("platform",))
    if config.platform == "ensemble" and config.backend:
        message = f"Ensemble model '{model.name}' must have platform type 'ensemble' and empty backend type"
        yield Problem(message, "remove 'backend'", ("backend",))


@rule("ensemble-field", "error")
def _fields(model: Model) -> Iterator[Problem]:
    if not model.config.HasField("ensemble_scheduling"):
        return
    for field, words in (
        ("instance_group", "instance group should not"),
        ("optimization", "optimization should not"),
        ("model_warmup", "model_warmup can not"),
    ):
        given = model.config.HasField(field) if field == "optimization" else len(getattr(model.config, field))
        if given:
            yield Problem(
                f"{words} be specified for ensemble '{model.name}'", "give it to the models that it calls", (field,)
            )


@rule("ensemble-step", "error")
def _steps(model: Model) -> Iterator[Problem]:
    scheduling = model.config.ensemble_scheduling
    if model.config.HasField("ensemble_scheduling") and not scheduling.step:
        yield Problem(f"must specify 'step' for ensemble '{model.name}'", "give its steps", ("ensemble_scheduling",))
    for index, step in enumerate(scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                yield Problem(
                    f"must specify '{field}' in step {index} of ensemble '{model.name}'",
                    f"give {field}",
                    ("ensemble_scheduling", "step", index),
                )


@rule("ensemble-tensor-written-twice", "error")
def _written_twice(model: Model) -> Iterator[Problem]:
    counts: Counter[str] = Counter()
    for place, tensor in _maps(model, "output_map"):
        counts[tensor] += 1
        if counts[tensor] == 2:
            yield Problem(
                f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{model.name}' "
                f"step {place[2]}",
                "give one of them another name",
                place,
            )


@rule("ensemble-input-unused", "error")
def _unused_input(model: Model) -> Iterator[Problem]:
    known = {tensor for field in ("input_map", "output_map") for _, tensor in _maps(model, field)}
    for index, tensor in enumerate(model.config.input if known else ()):
        if tensor.name not in known:
            yield Problem(
                f"ensemble input '{tensor.name}' for ensemble {model.name}' is not used",
                "map it to a step's input, or remove it",
                ("input", index),
            )


@rule("ensemble-output-unused", "error")
def _unused_output(model: Model) -> Iterator[Problem]:
    known = {tensor for field in ("input_map", "output_map") for _, tensor in _maps(model, field)}
    for index, tensor in enumerate(model.config.output if known else ()):
        if tensor.name not in known:
            yield Problem(
                f"ensemble output '{tensor.name}' for ensemble {model.name}' is not used",
                "map a step's output to it, or remove it",
                ("output", index),
            )


@rule("ensemble-output-unwritten", "error")
def _unwritten(model: Model) -> Iterator[Problem]:
    ready, needs = _data_flow(model)
    for index, tensor in enumerate(model.config.output):
        if tensor.name in ready or tensor.name not in needs:
            continue
        source = _unready_source(tensor.name, ready, needs)
        reason = f": at least one of its depending tensors, '{source}', is not connected" if source else ""
        yield Problem(
            f"output '{tensor.name}' for ensemble '{model.name}' is not written{reason}",
            "every tensor must follow from the ensemble's inputs, without a cycle",
            ("output", index),
        )


@rule("ensemble-tensor-unused", "error")
def _unused(model: Model) -> Iterator[Problem]:
    ready, _ = _data_flow(model)
    outputs = {tensor.name for tensor in model.config.output}
    read = {tensor for _, tensor in _maps(model, "input_map")}
    seen: set[str] = set()
    for field in ("output_map", "input_map"):
        for place, tensor in _maps(model, field):
            if tensor in outputs or tensor in seen:
                continue
            seen.add(tensor)
            if tensor not in ready or tensor not in read:
                why = "no step reads it: do not map it" if tensor in ready else "nothing writes it, or a cycle does"
                yield Problem(f"ensemble tensor '{tensor}' is unused in ensemble '{model.name}'", why, place)


@rule("ensemble-reshape", "warning")
def _reshape(model: Model) -> Iterator[Problem]:
    if not model.is_ensemble:
        return
    for kind, place, tensor in model.tensors():
        if tensor.HasField("reshape"):
            yield Problem(
                f"{kind} '{tensor.name}' of ensemble {model.name} has a reshape: the server compares its shape with the "
                "dims of the members, not with their reshapes",
                "reshape inside a member",
                (*place, "reshape"),
            )


@rule("ensemble-inflight", "error")
def _inflight(model: Model) -> Iterator[Problem]:
    wanted = model.config.ensemble_scheduling.max_inflight_requests
    if wanted and model.release is not None and not model.release.can("max_inflight_requests"):
        yield Problem(
            f"Could not determine backend for model '{model.name}': Triton {model.release.name} does not know "
            "max_inflight_requests and refuses the whole configuration",
            f"remove it, or serve with {first_release('max_inflight_requests')} or newer",
            ("ensemble_scheduling", "max_inflight_requests"),
        )


def _data_flow(model: Model) -> tuple[set[str], dict[str, list[str]]]:
    """The tensors that follow from the ensemble's inputs, and for every tensor those that it is made from."""
    needs: dict[str, list[str]] = {}
    for step in model.config.ensemble_scheduling.step:
        for tensor in step.input_map.values():
            needs.setdefault(tensor, [])
        for tensor in step.output_map.values():
            needs.setdefault(tensor, []).extend(step.input_map.values())
    ready = {tensor.name for tensor in model.config.input}
    written = {tensor for _, tensor in _maps(model, "output_map")}
    while True:
        more = {tensor for tensor in written - ready if ready.issuperset(needs[tensor])}
        if not more:
            return ready, needs
        ready |= more


def _unready_source(name: str, ready: set[str], needs: dict[str, list[str]]) -> str | None:
    """The last tensor on the way back from one that is not ready, as the server names it."""
    seen, last = {name}, name
    while True:
        step = next((need for need in needs.get(last, ()) if need not in ready and need not in seen), None)
        if step is None:
            return last if last != name else None
        seen.add(step)
        last = step


RULES = (
    _platform,
    _fields,
    _steps,
    _written_twice,
    _unused_input,
    _unused_output,
    _unwritten,
    _unused,
    _reshape,
    _inflight,
)
