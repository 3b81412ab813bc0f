"""Rules: an ensemble and the models that it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from builder.model_config import type_name
from builder.repository.lint.model import ANY, Model
from builder.repository.lint.positions import Field
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `ValidateEnsembleConfig`, `ValidateTensorMapping` and `ValidateTensorConsistency` in
# triton-inference-server/core, ensemble_utils.cc.


def _steps(model: Model) -> Iterator[tuple[Field, Any, Model]]:
    """Place and message of each step whose model can be read, and that model."""
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        member = model.others.get(step.model_name) if model.others is not None else None
        # A namespace names another repository, which is not known here.
        if member is not None and not step.model_namespace:
            yield ("ensemble_scheduling", "step", index), step, member


@rule("member-unknown", "error")
def _unknown(model: Model) -> Iterator[Problem]:
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        if model.others is None or not step.model_name or step.model_namespace or step.model_name in model.others:
            continue
        yield Problem(
            f"ensemble {model.name} contains models that are not available or ambiguous: {step.model_name}",
            "add the model to the repository, or correct its name",
            ("ensemble_scheduling", "step", index, "model_name"),
        )


@rule("member-cycle", "error")
def _cycle(model: Model) -> Iterator[Problem]:
    for place, step, member in _steps(model):
        if _reaches(member, model.name, set()):
            yield Problem(
                f"circular dependency between ensembles: {model.name} -> ... -> {step.model_name} -> {model.name}",
                "take one of the ensembles out of the circle",
                (*place, "model_name"),
            )


@rule("member-version", "error")
def _version(model: Model) -> Iterator[Problem]:
    for place, step, member in _steps(model):
        if step.model_version != ANY and step.model_version not in member.served:
            served = ", ".join(map(str, member.served)) or "none"
            yield Problem(
                f"ensemble '{model.name}' depends on '{step.model_name}' whose required version {step.model_version} is "
                "not loaded",
                f"write model_version: -1 for the newest, or one that is served ({served})",
                (*place, "model_version"),
            )


@rule("member-batch-size", "error")
def _batch_size(model: Model) -> Iterator[Problem]:
    wanted = model.config.max_batch_size
    for place, step, member in _steps(model):
        largest = member.config.max_batch_size
        if 0 < largest < wanted:
            yield Problem(
                f"ensemble {model.name} allows maximum batch size {wanted}, but it contains model {step.model_name} "
                f"which only allows maximum batch size to be {largest}",
                f"give the ensemble at most {largest}",
                (*place, "model_name"),
            )


@rule("member-input-unknown", "error")
def _unknown_input(model: Model) -> Iterator[Problem]:
    yield from _unknown_tensors(model, "input", "is mapping to non-existing input")


@rule("member-input-unmapped", "error")
def _unmapped_input(model: Model) -> Iterator[Problem]:
    for place, step, member in _steps(model):
        for tensor in member.config.input:
            if not tensor.optional and tensor.name not in step.input_map and step.input_map:
                yield Problem(
                    f"in ensemble {model.name}, input {tensor.name} in model {step.model_name} is not mapped to any "
                    "ensemble tensors",
                    "map it, or make it optional in the model",
                    (*place, "input_map"),
                )


@rule("member-output-unknown", "error")
def _unknown_output(model: Model) -> Iterator[Problem]:
    yield from _unknown_tensors(model, "output", "is mapped from non-existing output")


def _unknown_tensors(model: Model, kind: str, said: str) -> Iterator[Problem]:
    """Keys of a step's map of inputs or outputs that the member does not have."""
    for place, step, member in _steps(model):
        names, field = {tensor.name for tensor in getattr(member.config, kind)}, f"{kind}_map"
        given = getattr(step, field)
        for name in sorted(given.keys() - names) if names else ():
            yield Problem(
                f"in ensemble {model.name}, ensemble tensor {given[name]} {said} {name} in model {step.model_name}",
                f"its {kind}s are {', '.join(sorted(names))}",
                (*place, field, name),
            )


@dataclass(frozen=True, slots=True)
class _Node:
    """An ensemble tensor as the first model that names it sees it."""

    model: str
    data_type: int
    dims: tuple[int, ...]
    batched: bool

    @property
    def full(self) -> tuple[int, ...]:
        return (ANY, *self.dims) if self.batched else self.dims


def _comparisons(model: Model) -> Iterator[tuple[Field, str, _Node, _Node]]:
    """Place and name of each ensemble tensor that two models see, with what each of them sees."""
    nodes: dict[str, _Node] = {}
    for _, _, tensor in model.tensors():
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        nodes.setdefault(tensor.name, _Node(model.name, tensor.data_type, tuple(dims), model.config.max_batch_size > 0))
    for place, step, member in _steps(model):
        batched = member.config.max_batch_size > 0
        for field, tensors in (("input_map", member.config.input), ("output_map", member.config.output)):
            entries = getattr(step, field)
            for tensor in tensors:
                if tensor.name not in entries:
                    continue
                name = entries[tensor.name]
                seen = _Node(step.model_name, tensor.data_type, tuple(tensor.dims), batched)
                known = nodes.setdefault(name, seen)
                yield (*place, field, tensor.name), name, known, seen


@rule("member-data-type", "error")
def _data_type(model: Model) -> Iterator[Problem]:
    for place, name, known, seen in _comparisons(model):
        if known.data_type != seen.data_type:
            yield Problem(
                f"in ensemble {model.name}, ensemble tensor {name}: inconsistent data type: "
                f"{type_name(known.data_type)} is inferred from model {known.model} while {type_name(seen.data_type)} is "
                f"inferred from model {seen.model}",
                "the server casts nothing: cast inside one of the models",
                place,
            )


@rule("member-shape", "error")
def _shape(model: Model) -> Iterator[Problem]:
    for place, name, known, seen in _comparisons(model):
        if not _alike(known.dims, seen.dims) and not _alike(known.full, seen.full):
            yield Problem(
                f"in ensemble {model.name}, ensemble tensor {name}: inconsistent shape: {_shape_text(known.full)} is "
                f"inferred from model {known.model} while {_shape_text(seen.full)} is inferred from model {seen.model}",
                "make the dims equal, or -1 where they vary",
                place,
            )


@rule("member-fixed-batch", "warning")
def _fixed_batch(model: Model) -> Iterator[Problem]:
    for place, name, known, seen in _comparisons(model):
        fixed = next((node for node in (known, seen) if not node.batched and node.dims[:1] not in ((), (ANY,))), None)
        if known.batched == seen.batched or fixed is None or _alike(known.dims, seen.dims):
            continue
        if _alike(known.full, seen.full):
            yield Problem(
                f"in ensemble {model.name}, ensemble tensor {name}: {fixed.model} takes only a batch of {fixed.dims[0]}, "
                "so any other batch fails at the request",
                f"write -1 for the first of its dims, or give {fixed.model} a max_batch_size",
                place,
            )


def _alike(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or ANY in (a, b) for a, b in zip(one, other, strict=True))


def _shape_text(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _reaches(model: Model, name: str, seen: set[str]) -> bool:
    if model.name == name:
        return True
    if model.name in seen or model.others is None:
        return False
    seen.add(model.name)
    members = (model.others.get(step.model_name) for step in model.config.ensemble_scheduling.step)
    return any(_reaches(member, name, seen) for member in members if member is not None)


RULES = (
    _unknown,
    _cycle,
    _version,
    _batch_size,
    _unknown_input,
    _unmapped_input,
    _unknown_output,
    _data_type,
    _shape,
    _fixed_batch,
)
