"""Rules: warm-up samples. A sample that fails is a model that does not load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from builder.model_config import type_name
from builder.repository.lint.model import Model, fits
from builder.repository.lint.positions import Field
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `GenerateWarmupData` in triton-inference-server/core, backend_model_instance.cc.


def _label(model: Model, index: int) -> str:
    return f"model_warmup '{model.config.model_warmup[index].name}' of {model.name}"


def _given(model: Model) -> Iterator[tuple[str, Field, str, Any, Any]]:
    """Label, place, name and message of each input of a sample, and the model's own input of that name."""
    declared = {tensor.name: tensor for tensor in model.config.input}
    for index, sample in enumerate(model.config.model_warmup):
        for name in sorted(sample.inputs):
            place = ("model_warmup", index, "inputs", name)
            yield _label(model, index), place, name, sample.inputs[name], declared.get(name)


@rule("warmup-name-missing", "warning")
def _name(model: Model) -> Iterator[Problem]:
    for index, sample in enumerate(model.config.model_warmup):
        if not sample.name:
            yield Problem(
                f"{_label(model, index)}: must specify 'name'", "name it: the log says it", ("model_warmup", index)
            )


@rule("warmup-name-repeated", "warning")
def _repeated(model: Model) -> Iterator[Problem]:
    seen: Counter[str] = Counter()
    for index, sample in enumerate(model.config.model_warmup):
        seen[sample.name] += 1
        if sample.name and seen[sample.name] == 2:
            yield Problem(
                f"model {model.name} declares the warm-up sample '{sample.name}' more than once",
                "rename one",
                ("model_warmup", index, "name"),
            )


@rule("warmup-skipped", "warning")
def _skipped(model: Model) -> Iterator[Problem]:
    for index, sample in enumerate(model.config.model_warmup):
        if not sample.batch_size:
            yield Problem(
                f"{_label(model, index)}: batch size 0 makes the server skip the sample",
                "give batch_size, 1 for a model without batching",
                ("model_warmup", index, "batch_size"),
            )


@rule("warmup-batch-size", "error")
def _batch_size(model: Model) -> Iterator[Problem]:
    largest = model.config.max_batch_size
    for index, sample in enumerate(model.config.model_warmup):
        if sample.batch_size > max(largest, 1):
            yield Problem(
                f"{_label(model, index)}: batch size {sample.batch_size} is too large, max allowed is {largest}",
                f"give at most {max(largest, 1)}",
                ("model_warmup", index, "batch_size"),
            )


@rule("warmup-input-unknown", "error")
def _unknown(model: Model) -> Iterator[Problem]:
    for label, place, name, _, declared in _given(model):
        if declared is None:
            allowed = ", ".join(tensor.name for tensor in model.config.input)
            yield Problem(
                f"{label}: unexpected inference input '{name}', allowed inputs are: {allowed}",
                "correct its name",
                place,
            )


@rule("warmup-input-missing", "error")
def _missing(model: Model) -> Iterator[Problem]:
    required = [tensor.name for tensor in model.config.input if not tensor.optional]
    for index, sample in enumerate(model.config.model_warmup):
        for name in required:
            if name not in sample.inputs:
                yield Problem(
                    f"{_label(model, index)}: expected {len(required)} inputs but got {len(sample.inputs)} inputs, "
                    f"without '{name}'",
                    f"give the sample the input '{name}'",
                    ("model_warmup", index),
                )


@rule("warmup-data-type", "error")
def _data_type(model: Model) -> Iterator[Problem]:
    for label, place, name, given, declared in _given(model):
        if declared is not None and given.data_type != declared.data_type:
            has, wants = (type_name(t.data_type).removeprefix("TYPE_") for t in (given, declared))
            yield Problem(
                f"{label}: inference input '{name}' data-type is '{has}', but model expects '{wants}'",
                f"write data_type: {type_name(declared.data_type)}",
                (*place, "data_type"),
            )


@rule("warmup-dims", "error")
def _dims(model: Model) -> Iterator[Problem]:
    for label, place, name, given, declared in _given(model):
        if any(dim < 1 for dim in given.dims):
            message = f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        elif declared is not None and not fits(given.dims, declared.dims):
            message = f"unexpected shape for input '{name}'. Expected {list(declared.dims)}, got {list(given.dims)}"
        else:
            continue
        fix = "give every dimension of the model's dims a size, without the batch dimension"
        yield Problem(f"{label}: {message}", fix, (*place, "dims"))


@rule("warmup-data-missing", "error")
def _no_data(model: Model) -> Iterator[Problem]:
    for label, place, name, given, _ in _given(model):
        if given.WhichOneof("input_data_type") is None:
            yield Problem(
                f"{label}: input '{name}' must specify one of 'zero_data' and 'input_data_file'",
                "write zero_data: true, or name a file of warmup/",
                place,
            )


@rule("warmup-random", "warning")
def _random(model: Model) -> Iterator[Problem]:
    for label, place, name, given, _ in _given(model):
        if given.random_data:
            yield Problem(
                f"{label}: input '{name}' has random_data, which is random bytes: NaN for floats, ids out of every "
                "vocabulary",
                "write zero_data: true, or name a file of warmup/ with real values",
                (*place, "random_data"),
            )


@rule("warmup-path", "warning")
def _path(model: Model) -> Iterator[Problem]:
    for label, place, name, given, _ in _given(model):
        path = given.input_data_file
        if given.WhichOneof("input_data_type") == "input_data_file" and not _is_plain_name(path):
            yield Problem(
                f"{label}: input '{name}' has the input_data_file '{path}', which is no file of warmup/",
                "name a file that stands in the model's directory warmup/",
                (*place, "input_data_file"),
            )


def _is_plain_name(text: str) -> bool:
    return bool(text) and "/" not in text and "\\" not in text and text not in (".", "..")


RULES = (
    _name,
    _repeated,
    _skipped,
    _batch_size,
    _unknown,
    _missing,
    _data_type,
    _dims,
    _no_data,
    _random,
    _path,
)
