"""The canonical form of a segment's exported program: a text that decides what it computes, and a program to match.

Two segments have the same text only if they compute the same function of inputs and weights over the
same sizes. No name of the model is in it, and nothing that differs between two processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from builder.hashing import is_dense, tensor_digest
from builder.lowering.weights import FixedWeight, WeightSpec, dtype_name, refusal
from builder.partition.extract import assemble
from builder.partition.plan import Segment
from builder.tracing import own_name

__all__ = ["CanonicalProgram", "canonical_program"]

# Operators that come with torch; what another one does is not told by its name.
_NAMESPACES = frozenset({"aten", "prims", "prim", "quantized", "quantized_decomposed"})

# Operators that run graphs that are their arguments, and do nothing else.
_GRAPH_OPERATORS = frozenset(
    {"cond", "while_loop", "map_impl", "scan", "associative_scan", "wrap_with_set_grad_enabled"}
)

# Elements of a constant that are spelt out, so that two texts can be compared by eye.
_SPELT_OUT = 16


@dataclass(frozen=True, slots=True)
class CanonicalProgram:
    """A segment without names.

    Args:
        text: its graph, one line per node; sizes, scalars and constants by value, weights by dtype,
            shape and strides.
        weights: what can be refitted, "w0", "w1", ... in order of first use.
        tensors: the segment's values of the weights.
        fixed: what is in the text by value.
        constants: values of `fixed`, by their names.
        unsure: operators and arguments that the text does not tell apart from others.
    """

    text: str
    weights: tuple[WeightSpec, ...]
    tensors: tuple[torch.Tensor, ...]
    fixed: tuple[FixedWeight, ...]
    constants: Mapping[str, Any]
    unsure: tuple[str, ...]
    _segment: Segment
    _names: Mapping[torch.fx.Node, str]

    def named(self, weights: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Weights and constants by name."""
        return {**dict(zip((w.name for w in self.weights), weights, strict=True)), **self.constants}

    def program(self, weights: Sequence[torch.Tensor]) -> ExportedProgram:
        """The segment's program under canonical names.

        Args:
            weights: the values to give it, each with the dtype, shape and strides of `tensors`.
        """
        source = self._segment.program
        body = torch.fx.Graph()
        known: dict[torch.fx.Node, torch.fx.Node] = {}
        modules: dict[str, Any] = {}
        specs: list[InputSpec] = []
        state = {w.name for w in self.weights}
        given = self.named(weights)
        for node in source.graph.nodes:
            name = self._names.get(node)
            if node.op == "placeholder":
                copy = body.placeholder(str(name))
                argument = TensorArgument(name=copy.name)
                if name in state:
                    specs.append(InputSpec(InputKind.PARAMETER, argument, name))
                elif name in self.constants:
                    specs.append(InputSpec(InputKind.BUFFER, argument, name, persistent=True))
                else:
                    specs.append(InputSpec(InputKind.USER_INPUT, argument, None))
            elif node.op == "get_attr":
                modules[str(name)] = getattr(source.graph_module, str(node.target))
                copy = body.get_attr(str(name))
            elif node.op == "output":
                copy = body.node_copy(node, known.__getitem__)
            else:
                copy = body.create_node(
                    node.op,
                    node.target,
                    torch.fx.node.map_arg(node.args, known.__getitem__),
                    torch.fx.node.map_arg(node.kwargs, known.__getitem__),
                    name=name,
                )
            copy.meta = {k: v for k, v in node.meta.items() if k in ("val", "tensor_meta", "unbacked_bindings")}
            lifted = given.get(str(name))
            if isinstance(lifted, torch.Tensor) and copy.meta["val"].stride() != lifted.stride():
                copy.meta["val"] = copy.meta["val"].contiguous()
            known[node] = copy
        returned = [n.name for n in body.output_node().all_input_nodes]
        return assemble(
            source,
            body,
            modules,
            specs,
            [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=n), None) for n in returned],
            {n: torch.nn.Parameter(t, requires_grad=False) if n in state else t for n, t in given.items()},
            {},
        )


def canonical_program(segment: Segment) -> CanonicalProgram:
    """The canonical form of a segment."""
    writer = _Writer(segment.program)
    lines = writer.graph(segment.program.graph, segment.program.graph_module)
    return CanonicalProgram(
        text="\n".join([*lines, *writer.ranges()]) + "\n",
        weights=tuple(writer.weights),
        tensors=tuple(writer.tensors),
        fixed=tuple(writer.fixed),
        constants=writer.constants,
        unsure=tuple(dict.fromkeys(writer.unsure)),
        _segment=segment,
        _names=writer.names,
    )


class _Writer:
    """Writes a program down, and remembers how it named what."""

    def __init__(self, program: ExportedProgram) -> None:
        self.weights: list[WeightSpec] = []
        self.tensors: list[torch.Tensor] = []
        self.fixed: list[FixedWeight] = []
        self.constants: dict[str, Any] = {}
        self.unsure: list[str] = []
        self.names: dict[torch.fx.Node, str] = {}
        self._program = program
        self._symbols: dict[sympy.Symbol, sympy.Symbol] = {}
        self._lifted: dict[str, InputSpec] = {
            s.arg.name: s for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT
        }

    def graph(self, graph: torch.fx.Graph, owner: torch.nn.Module, indent: str = "") -> list[str]:
        """One line per node, those of graphs inside it indented below."""
        lines: list[str] = []
        counts = {"x": 0, "n": 0, "g": 0}
        prefix = "" if not indent else f"{self.names_in_use()}_"
        for node in graph.nodes:
            if node.op == "placeholder" and not indent and node.name in self._lifted:
                lines.append(self._constant(node))
            elif node.op == "output":
                lines.append(f"{indent}return {self._argument(node.args[0])}")
            else:
                kind = {"placeholder": "x", "get_attr": "g"}.get(node.op, "n")
                name = self.names[node] = f"{prefix}{kind}{counts[kind]}"
                counts[kind] += 1
                lines += self._node(node, name, owner, indent)
        return lines

    def names_in_use(self) -> int:
        """How many nodes have a name: makes those of an inner graph unique."""
        return len(self.names)

    def _node(self, node: torch.fx.Node, name: str, owner: torch.nn.Module, indent: str) -> list[str]:
        value = self._value(node.meta.get("val"))
        if node.op == "placeholder":
            return [f"{indent}{name} = input : {value}"]
        if node.op == "get_attr":
            inner = getattr(owner, str(node.target), None)
            body = getattr(inner, "graph", None)
            if inner is None or body is None:
                self.unsure.append(f"the attribute {node.target}, a {type(inner).__name__}")
                return [f"{indent}{name} = attribute {type(inner).__name__}"]
            return [f"{indent}{name} = graph", *self.graph(body, inner, indent + "  ")]
        arguments = [self._argument(a) for a in node.args]
        arguments += [f"{key}={self._argument(node.kwargs[key])}" for key in sorted(node.kwargs)]
        return [f"{indent}{name} = {self._operator(node.target)}({', '.join(arguments)}) : {value}"]

    def _operator(self, target: Any) -> str:
        if isinstance(target, torch._ops.OpOverload):
            if target.namespace not in _NAMESPACES:
                self.unsure.append(f"the operator {target}, which is not torch's own")
            return str(target)
        if isinstance(target, torch._ops.HigherOrderOperator):
            if target.__name__ not in _GRAPH_OPERATORS:
                self.unsure.append(f"the operator {target.__name__}")
            return str(target.__name__)
        module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
        if module not in ("_operator", "math", "torch", "torch.sym_node", "builtins") or not name:
            self.unsure.append(f"the function {name or type(target).__name__}")
        return f"{module}.{name}"

    def _argument(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return self.names[value]
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._argument, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{k!r}: {self._argument(value[k])}' for k in sorted(value))}}}"
        if isinstance(value, slice):
            return f"slice({self._argument(value.start)}, {self._argument(value.stop)}, {self._argument(value.step)})"
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._expression(value.node.expr)
        # Exact types: a subclass may mean more than it prints.
        if value is None or type(value) in (bool, int, float, complex, str):
            return repr(value)
        if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            return str(value)
        if isinstance(value, torch._ops.OpOverload):
            return self._operator(value)
        self.unsure.append(f"an argument of type {type(value).__name__}")
        return f"<{type(value).__name__}>"

    def _value(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            sizes = ", ".join(map(self._size, value.shape))
            strides = ", ".join(map(self._size, value.stride())) if value.layout is torch.strided else value.layout
            return f"{dtype_name(value.dtype)}[{sizes}] strides [{strides}] on {value.device.type}"
        if isinstance(value, list | tuple):
            return f"({', '.join(map(self._value, value))})"
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return f"{type(value).__name__} {self._expression(value.node.expr)}"
        return (
            "" if value is None else f"{type(value).__name__} {value!r}" if type(value) in (int, bool, float) else "?"
        )

    def _size(self, size: int | torch.SymInt) -> str:
        return self._expression(size.node.expr) if isinstance(size, torch.SymInt) else str(size)

    def _expression(self, expression: Any) -> str:
        """With symbols named in order of appearance, and so printed in the same order in every process."""
        if not isinstance(expression, sympy.Basic):
            return str(expression)
        for symbol in sorted(expression.free_symbols - self._symbols.keys(), key=self._rank):
            assert isinstance(symbol, sympy.Symbol)
            unbacked = str(symbol).startswith(("u", "zuf"))
            named = sympy.Symbol(f"{'u' if unbacked else 's'}{len(self._symbols)}", **symbol.assumptions0)
            self._symbols[symbol] = named
        return str(expression.xreplace(self._symbols))

    def _rank(self, symbol: sympy.Basic) -> tuple[str, str]:
        """Orders symbols that appear together: by what they stand for, since their names are the tracer's."""
        return str(self._program.range_constraints.get(symbol)), str(symbol)

    def ranges(self) -> list[str]:
        """The bounds of every symbol that was named, and what else the tracer knows of them."""
        lines = []
        for symbol, named in self._symbols.items():
            bounds = self._program.range_constraints.get(symbol)
            lines.append(f"{named} in {f'[{bounds.lower}, {bounds.upper}]' if bounds is not None else 'any size'}")
        known = {str(e.xreplace(self._symbols)) for e in self._guards() if e.free_symbols <= self._symbols.keys()}
        return [*lines, *(f"known {fact}" for fact in sorted(known))]

    def _guards(self) -> list[sympy.Basic]:
        """What held for all sizes when the model was traced; a compiler may rely on it."""
        for node in self._program.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            for size in value.shape if isinstance(value, torch.Tensor) else ():
                if isinstance(size, torch.SymInt):
                    return [g.expr for g in size.node.shape_env.guards if g.expr.free_symbols]
        return []

    def _constant(self, node: torch.fx.Node) -> str:
        """A line for a weight, or for a constant with its value; remembers it."""
        spec = self._lifted[node.name]
        origin = str(spec.target)
        value = {**self._program.constants, **self._program.state_dict}[origin]
        if not isinstance(value, torch.Tensor):
            name = self.names[node] = f"c{len(self.constants)}"
            self.constants[name] = value
            self.unsure.append(f"the constant {origin}, a {type(value).__name__}")
            return f"{name} = constant {type(value).__name__}"
        value = value.detach()
        if value.layout is torch.strided and not is_dense(value):
            value = value.contiguous()
        reason = "it is a constant of the model's code" if spec.kind is InputKind.CONSTANT_TENSOR else refusal(value)
        dtype, shape = dtype_name(value.dtype), tuple(value.shape)
        if reason is None:
            name = self.names[node] = f"w{len(self.weights)}"
            self.weights.append(WeightSpec(name, dtype, shape))
            self.tensors.append(value)
            return f"{name} = weight : {dtype}{list(shape)} strides {list(value.stride())}"
        name = self.names[node] = f"c{len(self.constants)}"
        self.constants[name] = value
        self.fixed.append(FixedWeight(name, own_name(origin), dtype, shape, reason))
        if value.layout is not torch.strided:
            self.unsure.append(f"the constant {origin}, whose layout is {value.layout}")
            return f"{name} = constant : {dtype}{list(shape)} {value.layout}"
        content = f"= {value.tolist()}" if value.numel() <= _SPELT_OUT else f"blake3 {tensor_digest(value)}"
        return f"{name} = constant : {dtype}{list(shape)} strides {list(value.stride())} {content}"
