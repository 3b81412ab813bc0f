"""Compare the outputs of a compiled model with those of eager PyTorch, over the whole range."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from builder.errors import BuilderError, DataError, SpecError, VerificationError
from builder.export import EagerModel
from builder.runtime.values import Value, to_numpy, to_torch
from builder.settings import Settings
from builder.types import DTYPES
from builder.verify.samples import Point, make_tensors, points

__all__ = [
    "Difference",
    "OutputError",
    "VerificationReport",
    "compare_outputs",
    "compare_tensors",
    "keep_worst",
    "request_of",
    "tolerances",
    "verify_model",
]

# Relative to the largest magnitude of an output. float32 leaves room for another order of summation.
_RTOL = {"float64": 1e-6, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}
_ATOL = {"float64": 1e-9, "float32": 1e-6, "float16": 1e-4, "bfloat16": 1e-3}

# tf32 has the mantissa of float16.
_COMPUTED = {"tf32": "float16", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one tensor is from another.

    Args:
        absolute: largest absolute difference.
        relative: the same, divided by the largest magnitude of the reference.
        problem: why it is too far, empty when it is not.
    """

    absolute: float
    relative: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OutputError:
    """The worst difference of one output over all points, and where it was."""

    output: str
    absolute: float
    relative: float
    point: str


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What was compared, and the worst of it.

    Args:
        verified: whether the compiled model ran and was compared; False with a reason where it cannot run here.
        points: how many sets of sizes were tried.
        outputs: the worst error of each output.
        reason: why it was not verified.
    """

    verified: bool
    points: int = 0
    outputs: tuple[OutputError, ...] = ()
    reason: str = ""

    @property
    def worst(self) -> OutputError | None:
        """The output with the largest relative error."""
        return max(self.outputs, key=lambda o: o.relative, default=None)

    def as_json(self) -> dict[str, Any]:
        """As it is kept in the manifest."""
        return {**dataclasses.asdict(self), "outputs": [dataclasses.asdict(o) for o in self.outputs]}


def verify_model(
    model: EagerModel,
    compiled: Callable[[dict[str, Value]], Mapping[str, Value]],
    settings: Settings,
    on_point: Callable[[int, Point], None] = lambda count, point: None,
) -> VerificationReport:
    """Run both at all corners of the ranges and at random points; with several profiles, at those of each.

    Args:
        model: the reference.
        compiled: takes tensors by input name, gives tensors by output name; in-process or served.
        settings: precision, tolerances, number of points and seed.
        on_point: told before each point.
    Raises:
        VerificationError: at the first point at which an output is too far off; names the output,
            the sizes and the error.
        SpecError: when eager PyTorch itself fails inside the declared range.
    """
    worst: dict[str, OutputError] = {}
    count = 0
    out_of_bounds: DataError | None = None
    verify = settings.verify
    for inputs, point in points(
        model.profiles, max_corners=verify.max_corners, random_count=verify.random_points, seed=verify.seed
    ):
        tensors = make_tensors(inputs, point, verify.seed + count)
        on_point(count, point)
        expected = _eager(model, tensors, point)
        try:
            actual = _compiled(compiled, request_of(model, tensors), point)
        except DataError as error:
            # Values are made up here; real ones keep to the bounds that the user knows of.
            out_of_bounds = error
            continue
        try:
            differences = compare_outputs(expected, actual, settings, str(point))
        except VerificationError:
            _check_repeats(model, tensors, expected, settings, point)
            raise
        keep_worst(worst, differences, str(point))
        count += 1
    if not count and out_of_bounds is not None:
        raise VerificationError(
            f"nothing could be compared, since made-up values break a bound everywhere: {out_of_bounds.what}",
            where="bounds",
            fix="widen the bound, or give the inputs a value range (in LOW..HIGH) that keeps to it",
        )
    return VerificationReport(True, count, tuple(worst.values()))


def keep_worst(worst: dict[str, OutputError], differences: Mapping[str, Difference], where: str) -> None:
    """Note the differences that are at least as large as those noted before."""
    for name, difference in differences.items():
        if name not in worst or difference.relative >= worst[name].relative:
            worst[name] = OutputError(name, difference.absolute, difference.relative, where)


def request_of(model: EagerModel, tensors: Sequence[torch.Tensor]) -> dict[str, Value]:
    """Tensors as the runtime takes them: by name, numpy where numpy has the dtype."""
    return {
        item.name or "": to_numpy(t) if DTYPES[item.dtype].numpy else t
        for item, t in zip(model.inputs, tensors, strict=True)
    }


def _eager(model: EagerModel, tensors: Sequence[torch.Tensor], point: Point) -> dict[str, torch.Tensor]:
    try:
        return model(tensors)
    except Exception as error:
        raise SpecError(
            f"eager PyTorch fails inside the declared range: {type(error).__name__}: {error}",
            where=f"at {point}",
            fix="narrow the range, or give the inputs a value range (in LOW..HIGH) that the model takes",
        ) from error


def _check_repeats(
    model: EagerModel,
    tensors: Sequence[torch.Tensor],
    first: Mapping[str, torch.Tensor],
    settings: Settings,
    point: Point,
) -> None:
    """A model that draws random numbers differs from itself; that is not the compiler's fault."""
    second = _eager(model, tensors, point)
    for name, tensor in first.items():
        if compare_tensors(tensor, second[name], settings).problem:
            raise VerificationError(
                f"the model is random: eager PyTorch gives another output {name!r} for the same inputs",
                where=f"at {point}",
                fix="make it deterministic in eval mode; random numbers can be an input of the model",
            )


def _compiled(
    compiled: Callable[[dict[str, Value]], Mapping[str, Value]], request: dict[str, Value], point: Point
) -> Mapping[str, Value]:
    try:
        return compiled(request)
    except BuilderError:
        raise
    except Exception as error:
        raise VerificationError(
            f"the compiled model fails inside the declared range: {type(error).__name__}: {str(error)[:400]}",
            where=f"at {point}",
            fix="exclude the operator with torch_executed_ops, or narrow the range to sizes that work",
        ) from error


def compare_outputs(
    expected: Mapping[str, torch.Tensor], actual: Mapping[str, Value], settings: Settings, where: str
) -> dict[str, Difference]:
    """The difference of each output.

    Args:
        expected, actual: by output name.
        settings: the tolerances.
        where: the sizes, for the error.
    Raises:
        VerificationError: when a tolerance is exceeded, or a shape or dtype differs.
    """
    differences = {}
    for name, reference in expected.items():
        difference = compare_tensors(reference, to_torch(actual[name]), settings)
        if difference.problem:
            raise VerificationError(
                f"output {name!r} differs from eager PyTorch: {difference.problem}",
                where=f"at {where}",
                fix="exclude a suspect operator with torch_executed_ops, or, if the error is acceptable, "
                "raise rtol under [settings.verify]",
            )
        differences[name] = difference
    return differences


def compare_tensors(expected: torch.Tensor, actual: torch.Tensor, settings: Settings) -> Difference:
    """The difference of two tensors by the tolerance for their dtype; integers and booleans must be equal.

    An infinity or NaN must stand at the same place in both.
    """
    actual = actual.cpu()
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return Difference(
            math.inf,
            math.inf,
            f"it is {_described(actual)}, eager PyTorch gives {_described(expected)}",
        )
    if not expected.dtype.is_floating_point:
        unequal = int((expected != actual).sum())
        return Difference(float(unequal), float(unequal), f"{unequal} elements are not equal" if unequal else "")
    dtype = str(expected.dtype).removeprefix("torch.")
    rtol, atol = tolerances(dtype, settings)
    reference, value = expected.double(), actual.double()
    finite = reference.isfinite()
    same_odd = torch.equal(finite, value.isfinite()) and torch.equal(
        reference[~finite].nan_to_num(), value[~finite].nan_to_num()
    )
    if not same_odd:
        return Difference(math.inf, math.inf, "infinities or NaNs stand at other places")
    if not finite.any():
        return Difference(0.0, 0.0)
    absolute = float((reference[finite] - value[finite]).abs().max())
    magnitude = float(reference[finite].abs().max())
    relative = absolute / magnitude if magnitude else (math.inf if absolute else 0.0)
    if absolute > atol + rtol * magnitude:
        return Difference(
            absolute, relative, f"relative error {relative:.2e} (absolute {absolute:.2e}), allowed {rtol:.0e}"
        )
    return Difference(absolute, relative if math.isfinite(relative) else 0.0)


def tolerances(dtype: str, settings: Settings) -> tuple[float, float]:
    """(relative, absolute): what the user says, else those for the output's dtype or for what engines compute in, whichever is coarser."""
    verify = settings.verify
    computed = _COMPUTED.get(settings.precision, dtype)
    rtol = max(_RTOL[dtype], _RTOL[computed]) if verify.rtol is None else verify.rtol
    atol = max(_ATOL[dtype], _ATOL[computed]) if verify.atol is None else verify.atol
    return rtol, atol


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
