"""Which optimization profile a request goes to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from builder.errors import RequestError
from builder.runtime.values import Value
from builder.types import TensorSpec

__all__ = ["ProfileChooser"]


class ProfileChooser:
    """Finds the tightest profile that holds a request: of those that do, the one whose largest inputs are smallest.

    Args:
        profiles: the model's inputs in each.
    """

    def __init__(self, profiles: Sequence[tuple[TensorSpec, ...]]) -> None:
        self._profiles = tuple(profiles)
        self._tightest_first = sorted(range(len(profiles)), key=lambda index: _largest(profiles[index]))

    def choose(self, request: Mapping[str, Value]) -> int:
        """The index of a profile.

        Args:
            request: inside the declared ranges, by input name.
        Raises:
            RequestError: when no profile holds it; lists the profiles.
        """
        if len(self._profiles) == 1:
            return 0
        for index in self._tightest_first:
            if all(_holds(spec, request[spec.name]) for spec in self._profiles[index]):
                return index
        sizes = ", ".join(f"{name} {list(value.shape)}" for name, value in request.items())
        listed = "; ".join(f"profile {i} ({_text(p)})" for i, p in enumerate(self._profiles))
        raise RequestError(
            f"no profile that the model was built for holds these sizes together: {sizes}",
            fix=f"send sizes of one of them: {listed}; or build again with a profile that holds these",
        )


def _holds(spec: TensorSpec, value: Value) -> bool:
    if spec.values is not None and not spec.values[0] <= int(value) <= spec.values[1]:
        return False
    return all(size in dim for size, dim in zip(value.shape, spec.dims, strict=True))


def _largest(profile: Sequence[TensorSpec]) -> tuple[int, int]:
    """Elements of all inputs at their largest, then what the whole numbers may count up to."""
    return (
        sum(math.prod(dim.max or 1 for dim in spec.dims) for spec in profile),
        sum(spec.values[1] for spec in profile if spec.values is not None),
    )


def _text(profile: Sequence[TensorSpec]) -> str:
    """A profile for people to read: the inputs that have a choice of sizes."""
    return ", ".join(str(spec) for spec in profile)
