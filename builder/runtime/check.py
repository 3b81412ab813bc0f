"""Is a request inside the declared ranges? An engine would fail obscurely, or not at all and be wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from builder.errors import DataError, RequestError
from builder.runtime.values import Value, dtype_of
from builder.types import Range, TensorSpec

__all__ = ["SizeCheck", "check_request"]


def check_request(inputs: Sequence[TensorSpec], request: Mapping[str, Value]) -> None:
    """Check names, dtypes, ranks, sizes, and that dimensions of one name have one size.

    Raises:
        RequestError: naming the input, the dimension, the size and the range.
    """
    names = [spec.name for spec in inputs]
    missing = [n for n in names if n not in request]
    extra = [n for n in request if n not in names]
    if missing or extra:
        said = [f"{n!r} is missing" for n in missing] + [f"{n!r} is not an input" for n in extra]
        raise RequestError(f"{'; '.join(said)}", fix=f"the model takes {', '.join(map(str, inputs))}")
    sizes: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        value = request[spec.name]
        _check_tensor(spec, value)
        for axis, (size, dim) in enumerate(zip(value.shape, spec.dims, strict=True)):
            _check_size(spec, axis, int(size), dim)
            if dim.name is None:
                continue
            here = f"dimension {axis} of input {spec.name!r}"
            known, there = sizes.setdefault(dim.name, (int(size), here))
            if known != size:
                raise RequestError(
                    f"{here} is {size}, but {there} is {known}; both are {dim.name} and must be equal",
                )
    _check_derived(inputs, sizes)


def _check_derived(inputs: Sequence[TensorSpec], sizes: Mapping[str, tuple[int, str]]) -> None:
    for dim in (d for spec in inputs for d in spec.dims):
        if dim.derived is None or dim.derived.base not in sizes:
            continue
        size, here = sizes[dim.name or ""]
        base, there = sizes[dim.derived.base]
        if size != dim.derived.at(base):
            raise RequestError(
                f"{here} is {size}, but must be {dim.derived.at(base)}: it is {dim.derived}, and "
                f"{there} ({dim.derived.base}) is {base}",
            )


def _check_tensor(spec: TensorSpec, value: Value) -> None:
    if dtype_of(value) != spec.dtype:
        raise RequestError(f"input {spec.name!r} has dtype {dtype_of(value)}, the model takes {spec.dtype}")
    if len(value.shape) != len(spec.dims):
        raise RequestError(
            f"input {spec.name!r} has {len(value.shape)} dimensions (shape {list(value.shape)}), "
            f"the model takes {len(spec.dims)}: {spec}",
        )
    if spec.values is not None:
        low, high = spec.values
        number = int(value)
        if not low <= number <= high:
            raise RequestError(
                f"input {spec.name!r} is {number}, outside the range {low} to {high} that the model was built for",
                fix=f"send a number in the range, or build again with a wider range than {low}:...:{high}",
            )


def _check_size(spec: TensorSpec, axis: int, size: int, dim: Range) -> None:
    if size in dim:
        return
    label = f"dimension {axis} of input {spec.name!r}"
    if dim.is_static:
        raise RequestError(f"{label} is {size}, the model takes {dim.min}")
    named = f" ({dim.name})" if dim.name else ""
    if dim.multiple > 1 and dim.max is not None and dim.min <= size <= dim.max:
        raise RequestError(f"{label}{named} is {size}, the model takes multiples of {dim.multiple}")
    raise RequestError(
        f"{label}{named} is {size}, outside the range {dim.min} to {dim.max} that the model was built for",
        fix=f"send a size in the range, or build again with a wider range than {dim}",
    )


class SizeCheck:
    """Are the sizes that depend on the data what the segments after them were built for?

    Args:
        outputs: of a segment.
    """

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        self._checked = [
            (index, axis, dim, spec.name)
            for index, spec in enumerate(outputs)
            for axis, dim in enumerate(spec.dims)
            if dim.data_dependent and (dim.max is not None or dim.min > 0)
        ]

    def __call__(self, values: Sequence[Value]) -> None:
        """Check the values of a segment's outputs.

        Raises:
            DataError: naming the size and its range.
        """
        for index, axis, dim, name in self._checked:
            size = values[index].shape[axis]
            if size not in dim:
                raise DataError(
                    f"the data of this request make dimension {axis} of {name!r} ({dim.name}) {size}, "
                    f"outside the range {dim.min} to {'any size' if dim.max is None else dim.max}",
                    fix="send other data, or build again with a wider bound (torch._check in the model, or [bounds])",
                )
