"""May a server join requests to one batch? Only where every tensor has the batch first, and rows do not know of each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from builder.errors import SpecError
from builder.types import SymbolName, TensorSpec

__all__ = ["Batching", "batch_symbol", "choose_batching", "unbatched_boundary"]


@dataclass(frozen=True, slots=True)
class Batching:
    """What `max_batch_size` says, and why.

    Args:
        max_batch_size: 0 where the server must take requests as they are.
        reason: a sentence without a full stop.
    """

    max_batch_size: int
    reason: str

    @property
    def batched(self) -> bool:
        return self.max_batch_size > 0


def batch_symbol(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    profiles: Sequence[Sequence[TensorSpec]] = (),
) -> tuple[SymbolName, str]:
    """The dimension that leads every input and output, and "" ; or "" and why there is none that can be a batch.

    Args:
        inputs, outputs: of the model.
        profiles: its inputs in each optimization profile.
    Source: "Maximum Batch Size" in Triton's model configuration guide.
    """
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for spec in tensors:
            if not spec.dims:
                return "", f"the {kind} {spec.name!r} is a scalar, which has no batch"
            if spec.dims[0].is_static:
                return "", f"the first dimension of the {kind} {spec.name!r} is always {spec.dims[0].min}"
            if spec.dims[0].name is None:
                return "", f"the first dimension of the {kind} {spec.name!r} is not one of the inputs' dimensions"
    if not inputs or not outputs:
        return "", "there is no input or no output"
    batch = inputs[0].dims[0]
    name = batch.name or ""
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for spec in tensors:
            if spec.dims[0].name != name:
                return "", f"the first dimension of the {kind} {spec.name!r} is {spec.dims[0].name}, not {name}"
            if any(dim.name == name for dim in spec.dims[1:]):
                return "", f"{name} is a dimension of {spec.name!r} twice"
            if any(dim.derived is not None and dim.derived.base == name for dim in spec.dims):
                return "", f"a dimension of {spec.name!r} follows from {name}"
    if batch.min > 1 or batch.multiple > 1 or batch.max is None:
        return "", f"a batch grows from 1, and {name} takes {batch}"
    for index, profile in enumerate(profiles):
        own = profile[0].dims[0]
        if (own.min, own.max) != (batch.min, batch.max):
            return "", f"profile {index} takes {name} from {own.min} to {own.max} only, and a batch may have any size"
    return name, ""


def unbatched_boundary(tensors: Iterable[TensorSpec], symbol: SymbolName) -> str:
    """Why the steps of an ensemble cannot take batches, told by the tensors between them; "" where they can."""
    for spec in tensors:
        if not spec.dims or spec.dims[0].name != symbol:
            return f"{spec.name!r}, between two segments, does not begin with {symbol}"
        if len(spec.dims) == 1:
            return f"{spec.name!r} has no dimension but {symbol}, which an ensemble cannot hand on"
    return ""


def choose_batching(limit: int, symbol: SymbolName, reason: str, wanted: int | None) -> Batching:
    """What `max_batch_size` is.

    Args:
        limit: the largest size of the batch dimension.
        symbol: of `batch_symbol`; "" where there is none, or rows were found to depend on each other.
        reason: why there is none.
        wanted: what the user asks for; None leaves it to us.
    Raises:
        SpecError: when more is wanted than can be.
    """
    where = "[triton].max_batch_size"
    if wanted is not None and wanted < 0:
        raise SpecError(f"max_batch_size = {wanted} is below 0", where=where, fix="give 0 for no batching")
    if wanted == 0:
        return Batching(0, "asked for")
    if not symbol:
        if wanted:
            raise SpecError(
                f"requests cannot be joined to batches: {reason}",
                where=where,
                fix="leave max_batch_size out, or change the model so that each input and output begins with the batch",
            )
        return Batching(0, reason)
    if wanted is not None and wanted > limit:
        raise SpecError(
            f"max_batch_size = {wanted}, but {symbol} is at most {limit}",
            where=where,
            fix=f"give {limit} or less, or declare a wider range for {symbol}",
        )
    return Batching(wanted or limit, f"{symbol} leads every input and output, and rows do not depend on each other")
