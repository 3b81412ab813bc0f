"""Which node goes to which segment: the longest chain of switches between engine and PyTorch, no more.

Every operator has a colour, engine or fallback, and gets the lowest level that its inputs allow:
the level of an input of its own colour, one more than that of an input of the other colour.
Operators of one level and colour are one segment. An edge never goes to a lower level and levels
alternate colours, so segments cannot form a cycle; parallel branches share a segment, and their
number is the least that the longest chain of switches allows. One pass, linear in nodes and edges,
where `CapabilityBasedPartitioner` of torch.fx is more than quadratic.

Two corrections follow. What is made of weights and constants alone goes to where it is first used.
And an engine level that computes nothing, or too little, is left to PyTorch.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

__all__ = ["Assignment", "assign_levels", "is_compute", "is_free", "operator_name"]

ENGINE, FALLBACK = 0, 1

# Operators that give elements as they are, in another order or shape, or numbers without any input.
_aten = torch.ops.aten
_MOVES_DATA = frozenset(
    {
        *(_aten.view, _aten._unsafe_view, _aten.reshape, _aten.permute, _aten.transpose, _aten.t, _aten.alias),
        *(_aten.squeeze, _aten.unsqueeze, _aten.expand, _aten.slice, _aten.select, _aten.unbind, _aten.split),
        *(_aten.split_with_sizes, _aten.detach, _aten.clone, _aten.lift_fresh_copy, _aten._to_copy, _aten.to),
        *(_aten.arange, _aten.full, _aten.zeros, _aten.ones, _aten.empty, _aten.scalar_tensor, _aten.eye),
        *(_aten.full_like, _aten.zeros_like, _aten.ones_like, _aten.empty_like, _aten.expand_as, _aten.view_as),
    }
)


@dataclass(frozen=True, slots=True)
class _Reach:
    """The lowest level at which a consumer of each colour can use a value."""

    engine: int
    fallback: int

    def at(self, colour: int) -> int:
        return self.engine if colour == ENGINE else self.fallback


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where each operator goes.

    Args:
        levels: by node name; even for engine segments, odd for fallback segments.
        left_out: {node: reason} for what the compiler takes and PyTorch runs nevertheless.
    """

    levels: Mapping[str, int]
    left_out: Mapping[str, str]


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


def assign_levels(program: ExportedProgram, fallback: Set[str], min_block_size: int) -> Assignment:
    """The level of each operator.

    Args:
        program: whose graph is split.
        fallback: names of the nodes that PyTorch must run.
        min_block_size: engine levels with fewer operators become fallback.
    """
    nodes = list(program.graph.nodes)
    colours = _colours(nodes, fallback)
    weights = {s.arg.name for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT}
    left_out: dict[str, str] = {}
    while True:
        levels = _levels(nodes, colours)
        _sink(nodes, weights, colours, levels)
        small = _too_small(nodes, colours, levels, min_block_size)
        if not small:
            return Assignment(levels, left_out)
        for node in nodes:
            if not is_free(node) and colours[node] == ENGINE and levels[node.name] in small:
                colours[node] = FALLBACK
                left_out[node.name] = small[levels[node.name]]


def _too_small(
    nodes: list[torch.fx.Node], colours: Mapping[torch.fx.Node, int], levels: Mapping[str, int], min_block_size: int
) -> dict[int, str]:
    """{engine level: why it is not worth a segment}."""
    members: dict[int, list[torch.fx.Node]] = {}
    for node in nodes:
        if is_compute(node) and colours[node] == ENGINE:
            members.setdefault(levels[node.name], []).append(node)
    mixed = FALLBACK in colours.values()
    found = {}
    for level, operators in members.items():
        if len(operators) < min_block_size:
            found[level] = f"its engine segment would have fewer than min_block_size = {min_block_size} operators"
        elif mixed and all(_moves_data(n) for n in operators):
            found[level] = "its engine segment would compute nothing, only move data"
    return found


def _moves_data(node: torch.fx.Node) -> bool:
    return getattr(node.target, "overloadpacket", None) in _MOVES_DATA


def _sink(
    nodes: list[torch.fx.Node],
    weights: Set[str],
    colours: Mapping[torch.fx.Node, int],
    levels: dict[str, int],
) -> None:
    """Move what depends on no input of the model to the first level that uses it. Works in place."""
    constant: set[torch.fx.Node] = set()
    for node in nodes:
        if node.op == "placeholder":
            made_of = node.name in weights
        else:
            # A size is no constant, but it is at hand wherever it is needed.
            made_of = is_free(node) or all(i in constant for i in node.all_input_nodes)
        if made_of:
            constant.add(node)
    for node in reversed(nodes):
        if node not in colours or node not in constant or not node.users:
            continue
        if all(user in colours for user in node.users):
            levels[node.name] = min(levels[user.name] - (colours[user] != colours[node]) for user in node.users)


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
