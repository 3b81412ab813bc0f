"""What a configuration promises to others: to clients its tensors, to the server the versions and files it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from builder.errors import RepositoryError
from builder.model_config import parse_config, type_name
from builder.repository.plan import CONFIG_NAME

__all__ = [
    "called_models",
    "named_files",
    "parsed_config",
    "running_changes",
    "served",
    "signature",
    "signature_changes",
]


def parsed_config(text: str, where: str) -> Any:
    """The message that a config.pbtxt says.

    Raises:
        RepositoryError: with the line and column that are wrong.
    """
    from google.protobuf import text_format

    try:
        return parse_config(text)
    except text_format.ParseError as error:
        raise RepositoryError(
            f"{CONFIG_NAME} is not a model configuration: {error}",
            where=where,
            fix="correct it at the line and column given, or remove the file and publish again",
        ) from None


def signature(config: Any) -> frozenset[str]:
    """A line for each input and output, with its whole shape as a client sees it."""
    batch = [-1] if config.max_batch_size > 0 else []
    return frozenset(
        f"{kind} {tensor.name}: {type_name(tensor.data_type)} {[*batch, *tensor.dims]}{' optional' * _optional(tensor)}"
        for kind, tensors in (("input", config.input), ("output", config.output))
        for tensor in tensors
    )


def _optional(tensor: Any) -> bool:
    """Whether a request may leave it out; no output can be."""
    return bool(getattr(tensor, "optional", False))


def signature_changes(old: Any, new: Any) -> list[str]:
    """What differs between the signatures of two configurations, a line each; none where they are equal."""
    before, after = signature(old), signature(new)
    return [*(f"- {line}" for line in sorted(before - after)), *(f"+ {line}" for line in sorted(after - before))]


def running_changes(old: Any, new: Any) -> list[str]:
    """What of two configurations one version cannot share with the other: who runs it, in what batches, by which steps."""
    return [
        f"{field}: {_short(getattr(old, field))} -> {_short(getattr(new, field))}"
        for field in ("backend", "platform", "max_batch_size", "ensemble_scheduling", "sequence_batching")
        if _essence(old, field) != _essence(new, field)
    ]


def _essence(config: Any, field: str) -> object:
    value = getattr(config, field)
    if field == "ensemble_scheduling":
        return [step.SerializeToString(deterministic=True) for step in value.step]
    if field == "sequence_batching":
        return [
            part.SerializeToString(deterministic=True) for part in (*value.control_input, *value.state)
        ], config.HasField(field)
    return value


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:60] or "none"


def served(config: Any, versions: Iterable[int]) -> frozenset[int]:
    """The versions that a server loads, of those there are.

    Source: the documentation of `ModelVersionPolicy` in Triton's model_config.proto.
    """
    ordered = sorted(versions)
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return frozenset(ordered)
    if choice == "specific":
        return frozenset(ordered) & frozenset(policy.specific.versions)
    return frozenset(ordered[-max(policy.latest.num_versions, 1) :])


def named_files(config: Any) -> frozenset[str]:
    """The files in the model's directory that it refers to, relative to that directory."""
    return frozenset(_files(config))


def called_models(config: Any) -> frozenset[str]:
    """The models that an ensemble calls."""
    return frozenset(step.model_name for step in config.ensemble_scheduling.step)


def _files(config: Any) -> Iterator[str]:
    yield from (output.label_filename for output in config.output if output.label_filename)
    for sample in config.model_warmup:
        yield from (f"warmup/{i.input_data_file}" for i in sample.inputs.values() if i.input_data_file)
    for state in config.sequence_batching.state:
        yield from (f"initial_state/{i.data_file}" for i in state.initial_state if i.data_file)
