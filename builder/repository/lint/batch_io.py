"""Rules: batch inputs and batch outputs, which describe a batch of ragged requests to the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from builder.model_config import enum_name, type_number
from builder.repository.lint.model import Model
from builder.repository.lint.positions import Field
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `ValidateBatchIO` in triton-inference-server/core, model_config_utils.cc.


@rule("batch-input", "error")
def _batch_input(model: Model) -> Iterator[Problem]:
    inputs = {tensor.name for tensor in model.config.input}
    for index, item in enumerate(model.config.batch_input):
        place = ("batch_input", index)
        yield from _kind(model, "batch input", item, place)
        if item.data_type not in (type_number("TYPE_INT32"), type_number("TYPE_FP32")):
            yield _fault(model, "batch input data type must be TYPE_INT32 or TYPE_FP32", (*place, "data_type"))
        yield from _sources(model, item, inputs, place)


@rule("batch-output", "error")
def _batch_output(model: Model) -> Iterator[Problem]:
    inputs = {tensor.name for tensor in model.config.input}
    outputs = {tensor.name for tensor in model.config.output}
    for index, item in enumerate(model.config.batch_output):
        place = ("batch_output", index)
        yield from _kind(model, "batch output", item, place)
        yield from _sources(model, item, inputs, place)
        seen: set[str] = set()
        for target in item.target_name:
            if target not in outputs:
                yield _fault(model, f"unknown target output name '{target}'", (*place, "target_name"))
            elif target in seen:
                message = f"target output name '{target}' can only be specified once"
                yield _fault(model, message, (*place, "target_name"))
            seen.add(target)


def _kind(model: Model, word: str, item: Any, place: Field) -> Iterator[Problem]:
    kinds = type(item).Kind.DESCRIPTOR
    kind = enum_name(kinds, item.kind)
    if item.kind not in kinds.values_by_number:
        yield _fault(model, f"unknown {word} kind '{kind}'", (*place, "kind"))
    elif len(item.source_input) != 1:
        yield _fault(model, f"{word} kind '{kind}' expects 1 source input, got {len(item.source_input)}", place)


def _sources(model: Model, item: Any, inputs: set[str], place: Field) -> Iterator[Problem]:
    for source in item.source_input:
        if source not in inputs:
            yield _fault(model, f"unknown source input name '{source}'", (*place, "source_input"))


def _fault(model: Model, message: str, place: tuple[str | int, ...]) -> Problem:
    return Problem(f"{message} for {model.name}", "correct it, or leave it out for a model without ragged input", place)


RULES = (_batch_input, _batch_output)
