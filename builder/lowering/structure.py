"""Weights whose values decide what an engine does, not only what it computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

__all__ = ["structural_weights"]

# Inputs that a compiler reads while it builds: they become shapes, or attributes of a layer that no refit reaches.
# Source: the ONNX operator reference, opset 18, for what each input means; TensorRT's operator support matrix for
# which must be known at build time.
_DECIDING: Mapping[str, frozenset[int]] = {
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
    "Range": frozenset({0, 1, 2}),
    "NonMaxSuppression": frozenset({3, 4}),
    "Clip": frozenset({1, 2}),
    "Pad": frozenset({2}),
    "OneHot": frozenset({2}),
    "Dropout": frozenset({1}),
    "QuantizeLinear": frozenset({1}),
    "DequantizeLinear": frozenset({1}),
}

# Operators that make indices or conditions of floating point numbers.
_COUNTING = frozenset(
    [
        "ArgMax",
        "ArgMin",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "NonZero",
        "TopK",
        "Unique",
    ]
)

# What they give does not depend on the values of their input.
_SHAPE_ONLY = frozenset({"Shape", "Size"})


def structural_weights(graph: ir.Graph, weights: Iterable[str]) -> dict[str, str]:
    """The weights that a compiler can fold into a shape, an index, a condition or an attribute.

    A value that depends on weights and constants alone is known when an engine is built. Where such a
    value is not floating point, or goes where a compiler needs to know it, the weights behind it decide
    the engine.

    Args:
        graph: in topological order, before anything was folded.
        weights: names of initializers.
    Returns: {weight: reason}.
    """
    known = set(weights)
    sources: dict[ir.Value, frozenset[str]] = {
        value: frozenset({name} & known) for name, value in graph.initializers.items()
    }
    found: dict[str, str] = {}

    def blame(value: ir.Value, reason: str) -> None:
        for name in sources.get(value, ()):
            found.setdefault(name, reason)

    for node in graph.all_nodes():
        given = [v for v in node.inputs if v is not None]
        for index in _DECIDING.get(node.op_type, ()):
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is not None:
                blame(value, f"{node.op_type} needs it when the engine is built")
        if not all(v in sources for v in given):
            continue
        if node.op_type in _SHAPE_ONLY:
            sources[node.outputs[0]] = frozenset()
            continue
        behind = frozenset().union(*(sources[v] for v in given))
        if node.op_type == "Cast" and not _casts_to_float(node):
            for value in given:
                blame(value, "its value becomes an index or a condition (Cast)")
        elif node.op_type in _COUNTING:
            for value in given:
                blame(value, f"its value becomes an index or a condition ({node.op_type})")
        for output in node.outputs:
            sources[output] = behind
    return found


def _casts_to_float(node: ir.Node) -> bool:
    return ir.DataType(node.attributes.get_int("to", 0)).is_floating_point()
