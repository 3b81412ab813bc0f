"""The canonical form of an ONNX model: everything that does not change what it computes is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

__all__ = ["canonicalise"]


def canonicalise(model: ir.Model, origin: Callable[[ir.Node], str | None]) -> Mapping[str, str]:
    """Rename nodes, values, weights and symbolic sizes by their place; drop traces, docs and producer.

    Inputs and outputs keep their names. Works in place.

    Args:
        model: in topological order.
        origin: what a node was made for, read before its metadata goes.
    Returns: {new node name: origin} for each node that has one.
    """
    graph = model.graph
    origins: dict[str, str] = {}
    _rename_values(graph)
    sizes: dict[str, str] = {}
    for index, node in enumerate(graph.all_nodes()):
        found = origin(node)
        node.name = f"n{index}"
        if found is not None:
            origins[node.name] = found
        node.metadata_props.clear()
        node.doc_string = None
    for value in _values(graph):
        value.metadata_props.clear()
        value.doc_string = None
        value.shape = _neutral_shape(value.shape, sizes)
    for function in model.functions.values():
        for node in function.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
    graph.name = "segment"
    graph.doc_string = None
    graph.metadata_props.clear()
    model.metadata_props.clear()
    model.doc_string = None
    model.producer_name = None
    model.producer_version = None
    model.domain = None
    return origins


def _rename_values(graph: ir.Graph) -> None:
    fixed = {id(v) for v in (*graph.inputs, *graph.outputs)}
    # Two steps, since a new name may be the old name of a value that is still to be renamed.
    renamed = [v for v in _values(graph) if id(v) not in fixed]
    for index, value in enumerate(renamed):
        value.name = f"__renaming_{index}"
    weights = {id(v) for v in graph.initializers.values()}
    counts = {"w": 0, "v": 0}
    for value in renamed:
        kind = "w" if id(value) in weights else "v"
        value.name = f"{kind}{counts[kind]}"
        counts[kind] += 1
    for value in graph.initializers.values():
        if value.const_value is not None:
            value.const_value.name = value.name
    _sort_initializers(graph)


def _sort_initializers(graph: ir.Graph) -> None:
    """Weights in order of first use, whatever order the model registers its parameters in."""
    values = list(graph.initializers.values())
    graph.initializers.clear()
    for value in sorted(values, key=lambda v: (len(v.name or ""), v.name or "")):
        graph.initializers[value.name or ""] = value


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every value once, in order of first use."""
    seen: set[int] = set()
    for value in _all_values(graph):
        if id(value) not in seen:
            seen.add(id(value))
            yield value


def _all_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph.all_nodes():
        yield from (v for v in node.inputs if v is not None)
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                yield from attribute.as_graph().inputs
    yield from graph.outputs
    yield from graph.initializers.values()


def _neutral_shape(shape: ir.Shape | None, names: dict[str, str]) -> ir.Shape | None:
    if shape is None:
        return None
    dims: list[int | str | None] = []
    for dim in shape:
        if isinstance(dim, int):
            dims.append(dim)
        elif dim.value is None:
            dims.append(None)
        else:
            dims.append(names.setdefault(str(dim.value), f"d{len(names)}"))
    return ir.Shape(dims)
