"""Rules: batch inputs and batch outputs, which describe a batch of ragged requests to the model."""

from __future__ import annotations

from collections.abc import Iterator

from builder.repository.lint.model import Model, enum_name
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `ValidateBatchIO` in triton-inference-server/core, model_config_utils.cc.


@rule("batch-input", "error")
def _batch_input(model: Model) -> Iterator[Problem]:
    names = {tensor.name for tensor in model.config.input}
    for index, item in enumerate(model.config.batch_input):
        place = ("batch_input", index)
        kinds = type(item).Kind.DESCRIPTOR
        kind = enum_name(kinds, item.kind)
        if item.kind not in kinds.values_by_number:
            yield _fault(model, f"unknown batch input kind '{kind}'", (*place, "kind"))
        elif len(item.source_input) != 1:
            yield _fault(
                model, f"batch input kind '{kind}' expects 1 source input, got {len(item.source_input)}", place
            )
        if item.data_type not in (_number("TYPE_INT32"), _number("TYPE_FP32")):
            yield _fault(model, "batch input data type must be TYPE_INT32 or TYPE_FP32", (*place, "data_type"))
        for source in item.source_input:
            if source not in names:
                yield _fault(model, f"unknown source input name '{source}'", (*place, "source_input"))


@rule("batch-output", "error")
def _batch_output(model: Model) -> Iterator[Problem]:
    inputs = {tensor.name for tensor in model.config.input}
    outputs = {tensor.name for tensor in model.config.output}
    for index, item in enumerate(model.config.batch_output):
        place = ("batch_output", index)
        kinds = type(item).Kind.DESCRIPTOR
        kind = enum_name(kinds, item.kind)
        if item.kind not in kinds.values_by_number:
            yield _fault(model, f"unknown batch output kind '{kind}'", (*place, "kind"))
        elif len(item.source_input) != 1:
            yield _fault(
                model, f"batch output kind '{kind}' expects 1 source input, got {len(item.source_input)}", place
            )
        for source in item.source_input:
            if source not in inputs:
                yield _fault(model, f"unknown source input name '{source}'", (*place, "source_input"))
        seen: set[str] = set()
        for target in item.target_name:
            if target not in outputs:
                yield _fault(model, f"unknown target output name '{target}'", (*place, "target_name"))
            elif target in seen:
                message = f"target output name '{target}' can only be specified once"
                yield _fault(model, message, (*place, "target_name"))
            seen.add(target)


def _fault(model: Model, message: str, place: tuple[str | int, ...]) -> Problem:
    return Problem(f"{message} for {model.name}", "correct it, or leave it out for a model without ragged input", place)


def _number(name: str) -> int:
    from tritonclient.grpc import model_config_pb2

    return int(model_config_pb2.DataType.Value(name))


RULES = (_batch_input, _batch_output)
