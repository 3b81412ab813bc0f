"""A level of the program as an exported program of its own.

Weights go with their users and sizes are recomputed inside, so that only tensors cross a boundary.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from builder.errors import PartitionError
from builder.partition.assign import is_free

__all__ = ["Extraction", "assemble"]


class Extraction:
    """Copies nodes into a new graph under their names; whatever they need from outside becomes a weight, an input or a size.

    Args:
        program: that the nodes are part of.
        nodes: the operators of one segment, in topological order.
    Raises:
        PartitionError: when a size that it needs can be computed from no tensor.
    """

    def __init__(self, program: ExportedProgram, nodes: Sequence[torch.fx.Node]) -> None:
        self.program = program
        self.nodes = nodes
        self.boundary: list[torch.fx.Node] = []
        self._body = torch.fx.Graph()
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self._weights: dict[torch.fx.Node, InputSpec] = {}
        self._tensors: dict[tuple[Any, ...], torch.fx.Node] = {}
        self._modules: dict[str, Any] = {}
        self._lifted = {
            s.arg.name: s for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT
        }
        inside = set(nodes)
        self._crossing = [
            i
            for i in dict.fromkeys(i for n in nodes for i in n.all_input_nodes)
            if i not in inside and self._crosses(i)
        ]
        # Placeholders must come first, whenever it turns out that one is needed.
        self._first = self._body.placeholder("_")
        for node in nodes:
            self._place(node)

    def _place(self, node: torch.fx.Node) -> torch.fx.Node:
        """Copy one operator of the segment."""
        copy = self._body.node_copy(node, self._outside_or_copy)
        copy.meta = dict(node.meta)
        self._copies[node] = copy
        return copy

    def _outside_or_copy(self, node: torch.fx.Node) -> torch.fx.Node:
        if node in self._copies:
            return self._copies[node]
        if node.op == "get_attr":
            return self._submodule(node)
        if node.op == "placeholder" and node.name in self._lifted:
            return self._weight(node)
        if self._crosses(node):
            self.boundary.append(node)
            copy = self._placeholder(node)
            # Runners hand over contiguous tensors, whatever strides eager PyTorch would have here.
            copy.meta["val"] = node.meta["val"].contiguous()
            return copy
        return self._size(node)

    def _crosses(self, node: torch.fx.Node) -> bool:
        """Whether a node outside is a tensor that has to be handed over."""
        if node.op == "placeholder":
            return node.name not in self._lifted
        return not is_free(node)

    def _weight(self, node: torch.fx.Node) -> torch.fx.Node:
        """The placeholder of a weight; tied weights are one, so that they stay tied in whatever is made of it."""
        spec = self._lifted[node.name]
        identity = _identity(self._value(spec)) or (node.name,)
        if identity in self._tensors:
            self._copies[node] = self._tensors[identity]
            return self._copies[node]
        self._weights[node] = spec
        self._tensors[identity] = self._placeholder(node)
        return self._tensors[identity]

    def _value(self, spec: InputSpec) -> Any:
        target = str(spec.target)
        return self.program.state_dict.get(target, self.program.constants.get(target))

    def _placeholder(self, node: torch.fx.Node) -> torch.fx.Node:
        with self._body.inserting_before(self._first):
            copy = self._body.placeholder(node.name)
        copy.meta = dict(node.meta)
        self._copies[node] = copy
        return copy

    def _submodule(self, node: torch.fx.Node) -> torch.fx.Node:
        target = str(node.target)
        self._modules[target] = getattr(self.program.graph_module, target)
        copy = self._body.get_attr(target)
        copy.meta = dict(node.meta)
        self._copies[node] = copy
        return copy

    def _size(self, node: torch.fx.Node) -> torch.fx.Node:
        """A size computed outside, recomputed here from tensors that are here, else from its own tensor."""
        value = node.meta.get("val")
        expression = value.node.expr if isinstance(value, torch.SymInt) else None
        if node.target is torch.ops.aten.sym_size.int and node.args[0] not in self._copies:
            held = self._holder(expression)
            if held is not None:
                copy = self._body.create_node("call_function", torch.ops.aten.sym_size.int, held, name=node.name)
                copy.meta = dict(node.meta)
                self._copies[node] = copy
                return copy
        if node.op != "call_function":
            raise PartitionError(
                f"the size {expression} is needed, but no tensor carries it",
                where=f"node {node.name}",
                fix="report this model: it is a fault of the partitioner",
            )
        return self._place(node)

    def _holder(self, expression: sympy.Expr | None) -> tuple[torch.fx.Node, int] | None:
        """A tensor that the segment has anyway with a dimension of exactly this size."""
        if expression is None:
            return None
        for original in itertools.chain(self._copies, self._crossing):
            value = original.meta.get("val")
            if not isinstance(value, torch.Tensor) or original in self._weights:
                continue
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr == expression:
                    return self._outside_or_copy(original), axis
        return None

    def finish(self, outputs: Sequence[torch.fx.Node]) -> ExportedProgram:
        """The program of what was placed, returning the given nodes."""
        body = self._ordered(outputs)
        weights = {n.name: n for n in self._weights}
        returned: Sequence[Any] = body.output_node().args[0]  # type: ignore[assignment]
        input_specs: list[InputSpec] = []
        state: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        for placeholder in body.find_nodes(op="placeholder"):
            argument = TensorArgument(name=placeholder.name)
            node = weights.get(str(placeholder.target))
            if node is None:
                input_specs.append(InputSpec(InputKind.USER_INPUT, argument, None))
                continue
            spec = self._weights[node]
            assert spec.target is not None
            input_specs.append(InputSpec(spec.kind, argument, spec.target, spec.persistent))
            if spec.target in self.program.state_dict:
                state[spec.target] = self.program.state_dict[spec.target]
            else:
                constants[spec.target] = self.program.constants[spec.target]
        return assemble(
            self.program,
            body,
            self._modules,
            input_specs,
            [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=n.name), None) for n in returned],
            state,
            constants,
        )

    def _ordered(self, outputs: Sequence[torch.fx.Node]) -> torch.fx.Graph:
        """The body with weights before boundary inputs, both in order of first use, as torch.export has them."""
        graph = torch.fx.Graph()
        order = [*self._weights, *self.boundary]
        known: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in order:
            placeholder = graph.placeholder(node.name)
            placeholder.meta = dict(self._copies[node].meta)
            known[self._copies[node]] = placeholder
        for copy in self._body.nodes:
            if copy.op != "placeholder":
                new = graph.node_copy(copy, known.__getitem__)
                known[copy] = new
        graph.output(tuple(known[self._copies[n]] for n in outputs))
        graph.lint()
        return graph


def _identity(value: Any) -> tuple[Any, ...] | None:
    """Equal for tensors that are the same memory seen the same way."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    start = value.untyped_storage().data_ptr()
    if start == 0:
        return None
    return (start, value.storage_offset(), tuple(value.shape), value.stride(), value.dtype, value.device)


def assemble(
    source: ExportedProgram,
    graph: torch.fx.Graph,
    modules: Mapping[str, Any],
    inputs: list[InputSpec],
    outputs: list[OutputSpec],
    state: dict[str, Any],
    constants: Mapping[str, Any],
) -> ExportedProgram:
    """An exported program of a graph that was made of another program's nodes.

    Args:
        source: the program whose sizes the graph speaks of.
        graph: weights first, then the tensors that a caller gives.
        modules: graphs that operators of the graph run, by attribute name.
        inputs, outputs: its signature.
        state, constants: weights by the targets in `inputs`.
    """
    root = torch.nn.Module()
    for target, module in modules.items():
        setattr(root, target, module)
    given = [s.arg.name for s in inputs if s.kind is InputKind.USER_INPUT]
    return ExportedProgram(
        root=root,
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, outputs),
        state_dict=state,
        range_constraints=source.range_constraints,
        module_call_graph=[_call(len(given), len(outputs), given)],
        example_inputs=None,
        constants=dict(constants),
        verifiers=source.verifiers,
    )


def _call(inputs: int, outputs: int, names: list[str]) -> ModuleCallEntry:
    return ModuleCallEntry(
        fqn="",
        signature=ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=pytree.tree_structure(((0,) * inputs, {})),
            out_spec=pytree.tree_structure((0,) * outputs),
            forward_arg_names=names,
        ),
    )
