"""A traced program made functional, without the second trace that `run_decompositions` makes where nothing needs one.

`torch.export` gives a program in which operators may write into their inputs, and composite ones stand for others.
`run_decompositions({})` traces it again to get rid of both, which takes as long as the export. Most programs hold no
operator that writes, and of the composite ones only some whose decomposition is one other operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

__all__ = ["functional"]

aten = torch.ops.aten

_ON_SIZES = frozenset(
    {operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.getitem}
)

# Not composite and without effect on their inputs, but left to torch, which treats them in ways of its own.
_LEFT = frozenset({"detach", "alias", "lift", "lift_fresh", "lift_fresh_copy", "native_batch_norm"})

# Makes the operator that takes a node's place, or gives the tensor that the node returns unchanged.
_Exchange: TypeAlias = "Callable[[Graph, Node], Node]"


def functional(program: ExportedProgram) -> ExportedProgram:
    """The program without operators that write into tensors, and without composite ones that may return their input.

    Args:
        program: as `torch.export.export` gives it; may be changed.
    """
    if not _exchanged(program.graph_module.graph):
        decomposed: ExportedProgram = program.run_decompositions({})
        return decomposed
    from torch._export.verifier import load_verifier

    # Told to be what it has become, and held to it.
    return ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=[load_verifier("ATEN")],
    )


def _exchanged(graph: Graph) -> bool:
    """Make a graph functional by exchanging operators; False where that does not do, and nothing is changed."""
    planned: list[tuple[Node, _Exchange]] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        plan = _PLANS.get(node.target)
        if node.op != "call_function" or (plan is None and not _stays(node.target)):
            return False
        if free_unbacked_symbols(node.meta.get("val")):
            return False
        if plan is None:
            continue
        exchange = plan(node)
        if exchange is None or any(user.op == "output" for user in node.users):
            # The signature has the names of outputs.
            return False
        planned.append((node, exchange))
    for node, exchange in planned:
        with graph.inserting_before(node):
            new = exchange(graph, node)
        if not new.meta:
            new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    assert graph.owning_module is not None
    graph.owning_module.recompile()
    return True


def _stays(target: object) -> bool:
    """Whether `run_decompositions({})` leaves an operator as it is."""
    if target in _ON_SIZES:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return False
    if target._schema.name.removeprefix("aten::") in _LEFT:
        return False
    from torch._export.utils import _is_cia_op, _is_preservable_cia_op

    return not _is_cia_op(target) or _is_preservable_cia_op(target) or target is aten.reshape.default


def _dropout(node: Node) -> _Exchange | None:
    if len(node.args) < 3 or node.args[2] is not False:
        return None
    return lambda graph, node: node.args[0]  # type: ignore[return-value]


def _to(node: Node) -> _Exchange | None:
    source = node.args[0]
    assert isinstance(source, Node)
    before, after = source.meta["val"], node.meta["val"]
    given = {a.name for a, _ in zip(node.target._schema.arguments, node.args, strict=False)} | set(node.kwargs)  # type: ignore[union-attr]
    if given & {"copy", "memory_format"} or before.device != after.device or before.layout != after.layout:
        return None
    # Arguments may be exchanged themselves by then.
    if before.dtype == after.dtype:
        return lambda graph, node: node.args[0]  # type: ignore[return-value]
    return lambda graph, node: graph.call_function(aten._to_copy.default, (node.args[0],), {"dtype": after.dtype})


def _contiguous(node: Node) -> _Exchange | None:
    if len(node.args) > 1 or node.kwargs:
        return None
    return lambda graph, node: graph.call_function(
        aten.clone.default, (node.args[0],), {"memory_format": torch.contiguous_format}
    )


def _resized(operator: object, source: Callable[[Node], object]) -> Callable[[Node], _Exchange | None]:
    """An operator that is another with the sizes of its output, where they are those of a tensor that is there."""

    def plan(node: Node) -> _Exchange | None:
        found = source(node)
        assert isinstance(found, Node)
        sizes = _places(node.meta["val"].shape, found.meta["val"].shape)
        if sizes is None:
            return None

        def exchange(graph: Graph, node: Node) -> Node:
            given = source(node)
            assert isinstance(given, Node)
            return graph.call_function(operator, (node.args[0], [_size(graph, node, given, s) for s in sizes]))  # type: ignore[arg-type]

        return exchange

    return plan


def _places(wanted: Sequence[int | torch.SymInt], found: Sequence[int | torch.SymInt]) -> list[int | str] | None:
    """Each size as a number, or as the axis ("0") of a tensor that has it; None where none has."""
    axes = {str(size): str(axis) for axis, size in reversed([*enumerate(found)]) if isinstance(size, torch.SymInt)}
    sizes = [axes.get(str(s)) if isinstance(s, torch.SymInt) else s for s in wanted]
    return None if None in sizes else sizes  # type: ignore[return-value]


def _size(graph: Graph, node: Node, tensor: Node, place: int | str) -> int | Node:
    if isinstance(place, int):
        return place
    size = graph.call_function(aten.sym_size.int, (tensor, int(place)))
    size.meta = {**node.meta, "val": tensor.meta["val"].shape[int(place)]}
    return size


_PLANS: dict[object, Callable[[Node], _Exchange | None]] = {
    aten.dropout.default: _dropout,
    aten.to.dtype: _to,
    aten.to.device: _to,
    aten.to.dtype_layout: _to,
    aten.contiguous.default: _contiguous,
    aten.expand_as.default: _resized(aten.expand.default, lambda node: node.args[1]),
    aten.flatten.using_ints: _resized(aten.reshape.default, lambda node: node.args[0]),
}
