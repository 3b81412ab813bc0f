"""A graph of Dynamo as a module of its own: weights inside, tensors of the call outside, sizes taken from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from builder.dynamo.handed import Argument

__all__ = ["GraphModule", "size_outputs"]


class GraphModule(torch.nn.Module):
    """Gives the tensors that a graph returns, for its input and number arguments in order.

    Args:
        graph: of Dynamo, for the CPU.
        arguments: of the graph.
        positions: of the arguments that `forward` takes.
        tensors: which values that the graph returns are tensors.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        arguments: Sequence[Argument],
        positions: Sequence[int],
        tensors: Sequence[bool],
    ) -> None:
        super().__init__()
        self.graph = graph
        self.training = False
        self._arguments = [(a.kind, a.of, a.axis) for a in arguments]
        self._positions = tuple(positions)
        self._tensors = tuple(tensors)
        self._weights: dict[int, str] = {}
        taken = {"graph", "training"}
        for position, argument in enumerate(arguments):
            if argument.kind == "weight":
                name = "".join(c if c.isalnum() else "_" for c in argument.name)
                while name in taken or hasattr(self, name):
                    name += "_"
                taken.add(name)
                self._weights[position] = name
                self.register_buffer(name, argument.value.detach().cpu())

    @property
    def weight_names(self) -> tuple[str, ...]:
        """In the order of the graph's weight arguments."""
        return tuple(self._weights.values())

    def bind(self, weights: Sequence[torch.Tensor]) -> None:
        """Take other tensors as weights."""
        for name, weight in zip(self._weights.values(), weights, strict=True):
            setattr(self, name, weight.detach().cpu())

    def forward(self, *tensors: Any) -> Any:
        """A tuple of tensors."""
        weights = {position: getattr(self, name) for position, name in self._weights.items()}
        values = call_values(self._arguments, self._positions, tensors, weights)
        results = torch.fx.Interpreter(self.graph).run(*values)
        return tuple(r for r, is_tensor in zip(results, self._tensors, strict=True) if is_tensor)


def call_values(
    arguments: Sequence[tuple[str, int, int]],
    positions: Sequence[int],
    tensors: Sequence[Any],
    weights: dict[int, torch.Tensor],
) -> list[Any]:
    """All arguments of a graph, from its tensors and weights."""
    given = dict(zip(positions, tensors, strict=True))
    return [
        weights[i] if kind == "weight" else given[of].shape[axis] if kind == "size" else given[i]
        for i, (kind, of, axis) in enumerate(arguments)
    ]


def size_outputs(graph: torch.fx.GraphModule, tensors: Sequence[bool]) -> torch.fx.GraphModule | None:
    """A graph of the same arguments that returns only what is no tensor; None where that takes computing tensors."""
    copied = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    result = copied.graph_copy(graph.graph, mapping)
    assert isinstance(result, tuple | list)
    copied.output(tuple(r for r, is_tensor in zip(result, tensors, strict=True) if not is_tensor))
    for node in copied.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default):
        # What it asserts is asserted where the graph runs.
        copied.erase_node(node)
    copied.eliminate_dead_code()
    for node in copied.nodes:
        if node.op not in ("placeholder", "output") and isinstance(node.meta.get("example_value"), torch.Tensor):
            return None
    return torch.fx.GraphModule(graph, copied)
