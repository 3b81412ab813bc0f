"""Which node goes to which segment: the longest chain of switches between engine and PyTorch, no more.

Every operator has a colour, engine or fallback, and gets the lowest level that its inputs allow:
the level of an input of its own colour, one more than that of an input of the other colour.
Operators of one level and colour are one segment. An edge never goes to a lower level and levels
alternate colours, so segments cannot form a cycle; parallel branches share a segment, and their
number is the least that the longest chain of switches allows. One pass, linear in nodes and edges,
where `CapabilityBasedPartitioner` of torch.fx is more than quadratic.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

__all__ = ["assign_levels", "is_compute", "is_free", "operator_name"]

ENGINE, FALLBACK = 0, 1


@dataclass(frozen=True, slots=True)
class _Reach:
    """The lowest level at which a consumer of each colour can use a value."""

    engine: int
    fallback: int

    def at(self, colour: int) -> int:
        return self.engine if colour == ENGINE else self.fallback


def is_free(node: torch.fx.Node) -> bool:
    """Whether a node belongs to no segment: an input, a weight, or shape arithmetic that is copied to its users."""
    if node.op != "call_function":
        return True
    return not _holds_tensor(node.meta.get("val"))


def is_compute(node: torch.fx.Node) -> bool:
    """Whether a node counts as an operator of a segment."""
    return not is_free(node) and node.target is not operator.getitem


def operator_name(node: torch.fx.Node) -> str:
    """`aten.special_bessel_j0` for an ATen overload; a readable name for anything else."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._schema.name.split('::')[1]}"
    return getattr(target, "__name__", str(target))


def _holds_tensor(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, list | tuple) and any(_holds_tensor(v) for v in value)


def assign_levels(program: ExportedProgram, fallback: Set[str], min_block_size: int) -> dict[str, int]:
    """The level of each operator; engine segments have even levels, fallback segments odd ones.

    Args:
        program: whose graph is split.
        fallback: names of the nodes that PyTorch must run.
        min_block_size: engine levels with fewer operators become fallback.
    """
    nodes = list(program.graph.nodes)
    colours = _colours(nodes, fallback)
    while True:
        levels = _levels(nodes, colours)
        counts: dict[int, int] = {}
        for node in nodes:
            if is_compute(node) and colours[node] == ENGINE:
                counts[levels[node.name]] = counts.get(levels[node.name], 0) + 1
        small = {level for level, count in counts.items() if count < min_block_size}
        if not small:
            return levels
        for node in nodes:
            if not is_free(node) and colours[node] == ENGINE and levels[node.name] in small:
                colours[node] = FALLBACK


def _colours(nodes: list[torch.fx.Node], fallback: Set[str]) -> dict[torch.fx.Node, int]:
    colours: dict[torch.fx.Node, int] = {}
    for node in nodes:
        if is_free(node):
            continue
        if node.target is operator.getitem:
            # A tuple cannot cross a boundary, so its elements are taken where it is made.
            colours[node] = colours[node.all_input_nodes[0]]
        else:
            colours[node] = FALLBACK if node.name in fallback else ENGINE
    return colours


def _levels(nodes: list[torch.fx.Node], colours: Mapping[torch.fx.Node, int]) -> dict[str, int]:
    reach: dict[torch.fx.Node, _Reach] = {}
    levels: dict[str, int] = {}
    for node in nodes:
        inputs = [reach[i] for i in node.all_input_nodes if i in reach]
        engine = max((r.engine for r in inputs), default=0)
        other = max((r.fallback for r in inputs), default=1)
        if node not in colours:
            reach[node] = _Reach(engine, other)
        elif colours[node] == ENGINE:
            levels[node.name] = engine
            reach[node] = _Reach(engine, engine + 1)
        else:
            levels[node.name] = other
            reach[node] = _Reach(other + 1, other)
    return levels
