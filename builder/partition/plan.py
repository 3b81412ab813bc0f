"""The frozen values of the partition stage: segments, and the plan that they make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.export import ExportedProgram

from builder.types import OutputSpec, TensorSpec

__all__ = ["FallbackOperator", "PartitionPlan", "Segment", "SupportOracle"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A connected, acyclic part of the program, as a program of its own.

    Args:
        name: "segment_0", "segment_1", ... in an order in which they can run.
        kind: "engine" or "fallback".
        program: takes the boundary tensors of `inputs`, returns those of `outputs`; holds only
            the weights that it uses, without a copy.
        inputs, outputs: boundary tensors. A name is that of a value of the plan: a model input
            or the node that makes it.
        operators: how often each operator is in it.
        nodes: names of its nodes in the whole program.
        profiles: its inputs in each optimization profile of the model; at least one.
        float32_nodes: those of its nodes that stay in float32 whatever the precision.
        tensor_names: what an engine calls its inputs and its outputs, where others see them; None where nobody does,
            so that equal segments share an engine.
    """

    name: str
    kind: str
    program: ExportedProgram = field(repr=False, compare=False)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operators: Mapping[str, int]
    nodes: tuple[str, ...] = field(repr=False)
    profiles: tuple[tuple[TensorSpec, ...], ...] = field(repr=False)
    float32_nodes: frozenset[str] = field(default=frozenset(), repr=False)
    tensor_names: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    @property
    def engine_profiles(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """Those of the profiles that differ, in order: an engine needs no other."""
        return tuple(dict.fromkeys(self.profiles))

    @property
    def profile_indices(self) -> tuple[int, ...]:
        """For each profile of the model, which of `engine_profiles` it is here."""
        return tuple(map(self.engine_profiles.index, self.profiles))

    @property
    def operator_count(self) -> int:
        return sum(self.operators.values())

    @property
    def parameter_count(self) -> int:
        """Elements of all weights that it uses."""
        tensors = self.program.state_dict.values()
        return sum(t.numel() for t in tensors if isinstance(t, torch.Tensor))


@dataclass(frozen=True, slots=True)
class FallbackOperator:
    """An operator that PyTorch runs, and why.

    Args:
        node: its node in the program.
        operator: "aten.special_bessel_j0".
        reason: the compiler's own words, or the setting that excludes it.
        place: the line of the model that calls it, where known.
    """

    node: str
    operator: str
    reason: str
    place: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """How a model is split; can be printed before anything is compiled.

    Args:
        inputs: the model's inputs.
        outputs: the model's outputs.
        segments: in an order in which they can run.
        fallbacks: each operator that PyTorch runs.
        profiles: the model's inputs in each optimization profile; at least one.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[OutputSpec, ...]
    segments: tuple[Segment, ...]
    fallbacks: tuple[FallbackOperator, ...]
    profiles: tuple[tuple[TensorSpec, ...], ...]

    @property
    def coverage(self) -> float:
        """The share of operators that are in engine segments, from 0 to 1."""
        total = sum(s.operator_count for s in self.segments)
        engines = sum(s.operator_count for s in self.segments if s.kind == "engine")
        return engines / total if total else 1.0

    @property
    def parameter_coverage(self) -> float:
        """The share of weights, by their number of elements, that are in engine segments, from 0 to 1."""
        total = sum(s.parameter_count for s in self.segments)
        engines = sum(s.parameter_count for s in self.segments if s.kind == "engine")
        return engines / total if total else 1.0


class SupportOracle(Protocol):
    """What an engine compiler says of the operators of a program. Each answer is {node name: reason}."""

    def prepare(self, program: ExportedProgram) -> ExportedProgram:
        """The program in the operators that the compiler takes as they are."""
        ...

    def screen(self, program: ExportedProgram) -> Mapping[str, str]:
        """Nodes that cannot be taken, told by the operator alone: cheap, asked once."""
        ...

    def examine(self, segment: Segment) -> Mapping[str, str]:
        """Nodes of an engine segment that the compiler's own parser refuses; empty when it takes all."""
        ...
