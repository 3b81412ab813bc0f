"""Are the rows of a batch independent of each other, and of what fills up the shorter ones? A server may only then join requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.errors import SpecError, VerificationError
from builder.export import EagerModel
from builder.inputs import Input
from builder.runtime.joining import Joiner, padded_sizes
from builder.runtime.manifest import Manifest
from builder.runtime.values import to_torch
from builder.settings import Settings
from builder.types import OutputSpec, SymbolName, TensorSpec
from builder.verify.compare import compare_tensors
from builder.verify.samples import Point, extreme_points, make_tensors, opt_point

__all__ = ["check_padding", "dependent_rows"]

# Rows that are compared at each point: enough that the first, a middle and the last differ.
_ROWS = 3


def dependent_rows(model: EagerModel, batch: SymbolName, settings: Settings) -> str:
    """How a row of a batch depends on the others in eager PyTorch; "" where it does not.

    A batch is compared with its rows one by one, with the other sizes at min and at opt.

    Args:
        batch: the name of the first dimension of all inputs and outputs.
    """
    for point in _points(model.inputs, batch):
        tensors = make_tensors(model.inputs, point, settings.verify.seed)
        whole = model(tensors)
        size = point.sizes[batch]
        for row in range(size):
            alone = model([t[row : row + 1] for t in tensors])
            for name, expected in alone.items():
                if len(whole[name]) != size:
                    return f"a batch of {size} gives {len(whole[name])} rows of the output {name!r}"
                problem = compare_tensors(expected, whole[name][row : row + 1], settings).problem
                if problem:
                    return f"row {row} of the output {name!r} is another in a batch of {size} than alone ({problem})"
    return ""


def _points(inputs: Sequence[Input], batch: SymbolName) -> list[Point]:
    largest = next(d.max for i in inputs for d in i.dims if d.name == batch)
    rows = min(_ROWS, largest or _ROWS)
    chosen = (Point({**p.sizes, batch: rows}) for p in (opt_point(inputs), extreme_points(inputs)["min"]))
    return list({tuple(p.sizes.items()): p for p in chosen}.values())


def check_padding(
    model: EagerModel,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[OutputSpec],
    padding: Mapping[str, float],
    settings: Settings,
) -> None:
    """Compare requests of different sizes in one padded batch with each of them alone, in eager PyTorch.

    Args:
        inputs, outputs: of the model, which is batched.
        padding: the value that fills up each input that may be padded.
    Raises:
        SpecError: when an input cannot be padded.
        VerificationError: when an answer changes.
    """
    sizes = padded_sizes(inputs, padding)
    _check_paddable(inputs, outputs, padding, sizes)
    joiner = Joiner(Manifest("", tuple(inputs), tuple(outputs), (), max_batch_size=1, padding=padding))
    points = [opt_point(model.inputs), *extreme_points(model.inputs).values()]
    batch = inputs[0].dims[0].name or ""
    requests = []
    for seed, point in enumerate(points):
        fixed = {n: s for n, s in points[0].sizes.items() if n not in sizes}
        tensors = make_tensors(model.inputs, Point({**point.sizes, **fixed, batch: 1}), settings.verify.seed + seed)
        requests.append({t.name: value for t, value in zip(inputs, tensors, strict=True)})
    joined = joiner.join(requests)
    answers = joiner.split(requests, model([to_torch(joined[t.name]) for t in inputs]))
    for request, answer in zip(requests, answers, strict=True):
        alone = model(list(request.values()))
        for name, expected in alone.items():
            problem = compare_tensors(expected, to_torch(answer[name]), settings).problem
            if problem:
                shapes = ", ".join(f"{n} {list(v.shape)}" for n, v in request.items())
                raise VerificationError(
                    f"filling up a request changes its output {name!r}: {problem}",
                    where=f"[triton].ragged, at {shapes}",
                    fix="fill with values that the model ignores (a mask of 0), or leave ragged out",
                )


def _check_paddable(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[OutputSpec],
    padding: Mapping[str, float],
    sizes: frozenset[SymbolName],
) -> None:
    where = "[triton].ragged"
    for spec in inputs:
        if spec.name in padding and not any(d.name in sizes for d in spec.dims[1:]):
            raise SpecError(
                f"the input {spec.name!r} has no size that varies from request to request",
                where=where,
                fix="leave it out there",
            )
        if spec.name not in padding and any(d.name in sizes for d in spec.dims[1:]):
            shared = next(d.name for d in spec.dims[1:] if d.name in sizes)
            raise SpecError(
                f"the input {spec.name!r} has the size {shared} too, and no value to be filled up with",
                where=where,
                fix=f"give one: ragged = {{ {spec.name} = 0, ... }}",
            )
    known = {d.name for t in inputs for d in t.dims}
    for output in outputs:
        for dim in output.tensor.dims[1:]:
            followed = dim.derived is not None and dim.derived.base in known
            if not dim.is_static and dim.name not in known and not followed:
                raise SpecError(
                    f"a size of the output {output.tensor.name!r} is computed, so that it is not known what of a filled up "
                    "answer belongs to a request",
                    where=where,
                    fix="leave ragged out",
                )
