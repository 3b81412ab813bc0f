"""Rules: sequence batching, its control tensors and its states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from builder.model_config import enum_name, type_name
from builder.repository.lint.model import Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `ValidateModelConfig`, `GetBooleanSequenceControlProperties` and
# `GetTypedSequenceControlProperties` in triton-inference-server/core, model_config_utils.cc; "Implicit State
# Management" in Triton's guide to models.

_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRELATION = "CONTROL_SEQUENCE_CORRID"


@rule("sequence-preferred-size", "error")
def _preferred(model: Model) -> Iterator[Problem]:
    for index, size in enumerate(model.config.sequence_batching.oldest.preferred_batch_size):
        place = ("sequence_batching", "oldest", "preferred_batch_size", index)
        largest = model.config.max_batch_size
        if size <= 0:
            yield Problem(
                f"sequence batching preferred batch size must be positive for {model.name}", f"it is {size}", place
            )
        elif size > largest:
            yield Problem(
                f"sequence batching preferred batch size must be <= max batch size for {model.name}",
                f"it is {size}, and max_batch_size is {largest}",
                place,
            )


@rule("sequence-slots", "error")
def _slots(model: Model) -> Iterator[Problem]:
    used = model.config.sequence_batching.direct.minimum_slot_utilization
    if not 0 <= used <= 1:
        yield Problem(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {model.name}",
            f"it is {used:g}",
            ("sequence_batching", "direct", "minimum_slot_utilization"),
        )


@rule("sequence-control", "error")
def _controls(model: Model) -> Iterator[Problem]:
    inputs = model.config.sequence_batching.control_input
    fix = "give each control tensor one name, and each kind of control one tensor"
    names = Counter(control_input.name for control_input in inputs)
    kinds: Counter[str] = Counter()
    for index, control_input in enumerate(inputs):
        place = ("sequence_batching", "control_input", index)
        name = control_input.name
        if not name:
            yield Problem(f"sequence batching control tensor must have a name for {model.name}", fix, place)
        elif names[name] > 1:
            yield Problem(
                f"sequence batching control tensor '{name}' is specified for multiple control kinds for {model.name}",
                fix,
                place,
            )
        for position, control in enumerate(control_input.control):
            kind = enum_name(type(control).Kind.DESCRIPTOR, control.kind)
            kinds[kind] += 1
            here = (*place, "control", position)
            if kinds[kind] == 2:
                message = f"sequence batching specifies multiple {kind} tensors for {model.name}"
                yield Problem(message, fix, here)
            fault = _control_fault(control, kind)
            if fault:
                yield Problem(f"{fault} for {model.name}", "see control_input in Triton's guide", here)


def _control_fault(control: Any, kind: str) -> str | None:
    given = [field for field in _VALUES if getattr(control, field)]
    if kind == _CORRELATION:
        if given:
            return f"sequence batching must not specify either {_either()} for {kind}"
        if type_name(control.data_type) not in _CORRELATION_TYPES:
            allowed = f"{', '.join(_CORRELATION_TYPES[:-1])} and {_CORRELATION_TYPES[-1]}"
            return f"unexpected data type for control {kind}. Allowed data types are {allowed}"
        return None
    if not given:
        return f"sequence batching must specify either {_either()} for {kind}"
    if len(given) > 1:
        return f"sequence batching specifies more than one from {_either().replace(' or ', ' and ')} for {kind}"
    if len(getattr(control, given[0])) != 2:
        return f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind}"
    return None


def _either() -> str:
    return f"'{_VALUES[0]}', '{_VALUES[1]}' or '{_VALUES[2]}'"


@rule("sequence-state", "error")
def _states(model: Model) -> Iterator[Problem]:
    for index, state in enumerate(model.config.sequence_batching.state):
        place = ("sequence_batching", "state", index)
        for field in ("input_name", "output_name", "data_type", "dims"):
            if not getattr(state, field):
                yield Problem(f"sequence state {index} of {model.name} must specify '{field}'", f"give {field}", place)
        for position, initial in enumerate(state.initial_state):
            fault = _initial_fault(state, initial)
            if fault:
                here = (*place, "initial_state", position)
                message = f"initial_state of the state '{state.input_name}' of {model.name} {fault}"
                yield Problem(message, "make it agree with its state", here)


def _initial_fault(state: Any, initial: Any) -> str | None:
    if not initial.name:
        return "must specify 'name'"
    if initial.data_type != state.data_type:
        return f"has data type {type_name(initial.data_type)}, and the state {type_name(state.data_type)}"
    if any(dim < 1 for dim in initial.dims):
        return "must give every dimension a size"
    if initial.WhichOneof("state_data") is None:
        return "must specify 'zero_data' or 'data_file'"
    return None


@rule("initial-state-file", "error")
def _state_file(model: Model) -> Iterator[Problem]:
    if model.folder is None:
        return
    for index, state in enumerate(model.config.sequence_batching.state):
        for position, initial in enumerate(state.initial_state):
            name = initial.data_file
            if name and not model.folder.is_file("initial_state", name):
                yield Problem(
                    f"there is no file '{name}' in {model.file('initial_state')}, which a state of {model.name} names",
                    "write it there, or use zero_data",
                    ("sequence_batching", "state", index, "initial_state", position, "data_file"),
                )


RULES = (_preferred, _slots, _controls, _states, _state_file)
