"""A segment's ranges as optimization profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.errors import CompileError
from builder.partition.plan import Segment
from builder.types import TensorSpec

__all__ = ["POINTS", "optimization_profiles"]

POINTS = ("min", "opt", "max")


def optimization_profiles(builder: Any, network: Any, segment: Segment) -> list[Any]:
    """One for each of the segment's engine profiles, in order; none where the network has no dynamic input.

    Ranges were solved by symbol, so that one dimension has one range in all inputs of a profile.

    Raises:
        CompileError: when the network takes the values of an input for a shape, and they have no range.
    """
    names = segment.tensor_names[0] if segment.tensor_names else [f"input_{i}" for i in range(len(segment.inputs))]
    profiles = [
        _profile(builder, network, dict(zip(names, inputs, strict=True)), segment.name)
        for inputs in segment.engine_profiles
    ]
    return [p for p in profiles if p is not None]


def _profile(builder: Any, network: Any, inputs: Mapping[str, TensorSpec], where: str) -> Any | None:
    profile = builder.create_optimization_profile()
    used = False
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        spec = inputs[tensor.name]
        if tensor.is_shape_tensor:
            profile.set_shape_input(tensor.name, *_values(spec, where))
            used = True
        if -1 in tuple(tensor.shape):
            profile.set_shape(tensor.name, *(spec.shape(p) for p in POINTS))
            used = True
    return profile if used else None


def _values(spec: TensorSpec, where: str) -> tuple[list[int], list[int], list[int]]:
    """What a shape tensor may hold; the largest is where it must be fast."""
    if spec.values is None or spec.dims:
        raise CompileError(
            f"TensorRT takes the values of {spec.name!r} for a shape, and the range of such values is not known",
            where=where,
            fix="declare it as a Python int with a range (NAME=MIN:OPT:MAX), or leave its users to PyTorch",
        )
    low, high = spec.values
    return [low], [high], [high]
