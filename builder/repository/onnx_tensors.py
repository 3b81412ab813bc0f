"""The edge of an ONNX graph: names and shapes of its inputs and outputs, as others are to see them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder.errors import RepositoryError
from builder.types import TensorSpec

__all__ = ["write_with_edge"]


def write_with_edge(
    source: Path,
    target: Path,
    inputs: Sequence[tuple[str, str, TensorSpec]],
    outputs: Sequence[tuple[str, str, TensorSpec]],
) -> tuple[str, ...]:
    """Write a graph again with other names at its edge, and with the sizes there that config.pbtxt declares.

    Triton's ONNX Runtime backend compares them: an output whose size varies must vary in the graph.

    Args:
        source: an ONNX file whose weights may be in files beside it; they are not read.
        inputs, outputs: (name in the graph, new name, tensor) of each.
    Returns: the new names of the inputs that the graph takes; one that it does not use it does not have.
    Raises:
        RepositoryError: when a new name is the graph's already, or an output is not there.
    """
    import onnx

    model = onnx.load(source, load_external_data=False)
    graph = model.graph
    renamed = {old: new for old, new, _ in (*inputs, *outputs)}
    inner = {name for node in graph.node for name in node.output} | {i.name for i in graph.initializer}
    for new in renamed.values():
        if new in inner - renamed.keys():
            raise RepositoryError(f"{new!r} is the name of a value inside of the graph", where=str(source))
    specs = {new: spec for _, new, spec in (*inputs, *outputs)}
    _rename(graph, renamed)
    for value in (*graph.input, *graph.output):
        if value.name in specs:
            _set_shape(value, specs[value.name])
    missing = {new for _, new, _ in outputs} - {v.name for v in graph.output}
    if missing:
        raise RepositoryError(f"the graph has no output {sorted(missing)[0]!r}", where=str(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, target)
    return tuple(v.name for v in graph.input if v.name in specs)


def _rename(graph: Any, names: dict[str, str]) -> None:
    """In nested graphs too, which see the names around them."""
    import onnx

    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                if name in names:
                    field[index] = names[name]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, names)


def _set_shape(value: Any, spec: TensorSpec) -> None:
    shape = value.type.tensor_type.shape
    known = [d.dim_param for d in shape.dim]
    shape.ClearField("dim")
    # A scalar has a shape without dimensions, which is not the same as no shape.
    shape.SetInParent()
    for axis, dim in enumerate(spec.dims):
        added = shape.dim.add()
        if dim.is_static:
            added.dim_value = dim.min
        else:
            old = known[axis] if axis < len(known) else ""
            added.dim_param = old or f"{value.name}_{axis}"
