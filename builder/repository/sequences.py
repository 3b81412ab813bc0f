"""Sequence batching: which tensors are states, and what config.pbtxt says of them.

Backends of the server's own keep states themselves ("implicit state"); the Python backend does not, so that our Python
model keeps them, told by control inputs which sequence a request belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builder.errors import SpecError, did_you_mean
from builder.model_config import type_number
from builder.repository.config import declared
from builder.triton_options import TritonOptions
from builder.types import TensorSpec

__all__ = ["control_inputs", "describe_states", "hand_over_states", "states"]

_WHERE = "[triton].sequence_batching.state"

# As `builder.runtime.sequences` reads them.
_CONTROLS = (
    ("START", "CONTROL_SEQUENCE_START", None),
    ("END", "CONTROL_SEQUENCE_END", None),
    ("CORRID", "CONTROL_SEQUENCE_CORRID", "TYPE_UINT64"),
)


def states(options: TritonOptions, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, str]:
    """The output that the next request of a sequence gets as an input, by that input.

    Raises:
        SpecError: when a state names no input or output, or two of different dtypes or shapes.
    """
    found: dict[str, str] = {}
    ins, outs = {t.name: t for t in inputs}, {t.name: t for t in outputs}
    for state in options.fields.get("sequence_batching", {}).get("state", ()):
        pair = []
        for key, known in (("input_name", ins), ("output_name", outs)):
            name = state.get(key, "")
            if name not in known:
                raise SpecError(
                    f"{key} = {name!r} is no {key.partition('_')[0]} of the model",
                    where=_WHERE,
                    fix=f"{did_you_mean(name, known)}there are {', '.join(known)}",
                )
            pair.append(known[name])
        one, two = pair
        if (one.dtype, [str(d) for d in one.dims]) != (two.dtype, [str(d) for d in two.dims]):
            raise SpecError(
                f"a state comes out as {two} and goes in as {one}",
                where=_WHERE,
                fix="name an output and an input of one dtype and shape",
            )
        varying = [d for d in one.dims[1:] if not d.is_static]
        if varying or (one.dims and not one.dims[0].is_static and one.dims[0].name not in _shared(inputs, options)):
            raise SpecError(
                f"the size of the state {one.name!r} varies: {one}",
                where=_WHERE,
                fix="give it fixed sizes, beside the batch that all inputs begin with",
            )
        found[one.name] = two.name
    return found


def _shared(inputs: Sequence[TensorSpec], options: TritonOptions) -> set[str]:
    """The sizes that inputs which are no states begin with."""
    own = {s.get("input_name") for s in options.fields.get("sequence_batching", {}).get("state", ())}
    return {t.dims[0].name or "" for t in inputs if t.name not in own and t.dims}


def control_inputs(options: TritonOptions) -> frozenset[str]:
    """Names of inputs that the server fills in by itself."""
    given = options.fields.get("sequence_batching", {}).get("control_input", ())
    return frozenset(c.get("name", "") for c in given)


def describe_states(config: Any, inputs: Sequence[TensorSpec], *, batched: bool) -> None:
    """Give each state its dtype and dims, and zeros to begin with, where the user has not."""
    known = {t.name: t for t in inputs}
    for state in config.sequence_batching.state:
        tensor = declared(known[state.input_name], batched=batched)
        if not state.data_type:
            state.data_type = type_number(tensor.data_type)
        if not state.dims:
            state.dims.extend(tensor.dims)
        if not state.initial_state and all(d > 0 for d in tensor.dims):
            state.initial_state.add(name="zeros", data_type=state.data_type, dims=state.dims, zero_data=True)


def hand_over_states(config: Any) -> None:
    """Have the server tell our Python model which sequence a request is of, instead of keeping states itself."""
    sequences = config.sequence_batching
    sequences.ClearField("state")
    named = {c.name for c in sequences.control_input}
    for name, kind, data_type in _CONTROLS:
        if name in named:
            continue
        control = sequences.control_input.add(name=name).control.add()
        control.kind = type(control).Kind.Value(kind)
        if data_type is None:
            control.fp32_false_true.extend([0.0, 1.0])
        else:
            control.data_type = type_number(data_type)
