"""A lowered segment in TensorRT's own network, its weights where they lie on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from builder.compilers.tensorrt.config import load_plugins
from builder.compilers.tensorrt.flavour import Flavour
from builder.compilers.tensorrt.logger import capturing_logger, said
from builder.lowering.onnx import WEIGHTS_FILE, LoweredSegment

__all__ = ["ParsedNetwork", "WeightlessGraph", "empty_network", "name_tensors", "parse_network"]


@dataclass(slots=True)
class WeightlessGraph:
    """An ONNX graph without its weights, and where they are in memory: mapped from the file, read when they are used.

    A protobuf holds at most 2 GB, and one with weights would be copied; this one is small.

    Args:
        model: the graph, serialised.
        weights: (name, address, bytes) of each weight.
        nodes: names of its nodes, in order.
        names: what a refit gives: all initializers, and the outputs of Constant nodes.
        unranked: inputs whose number of dimensions is not known.
    """

    model: bytes
    weights: list[tuple[str, int, int]]
    nodes: list[str]
    names: frozenset[str]
    unranked: list[str]
    _mapped: Any = field(repr=False)

    @classmethod
    def read(cls, lowered: LoweredSegment) -> WeightlessGraph:
        model = onnx.load(lowered.graph, load_external_data=False)
        path = lowered.directory / WEIGHTS_FILE
        mapped = np.memmap(path, np.uint8, "r") if path.exists() and path.stat().st_size else None
        weights = []
        for initializer in model.graph.initializer:
            if initializer.data_location != onnx.TensorProto.EXTERNAL:
                continue
            place = {e.key: e.value for e in initializer.external_data}
            assert mapped is not None
            weights.append((initializer.name, mapped.ctypes.data + int(place.get("offset", 0)), int(place["length"])))
            initializer.ClearField("external_data")
            initializer.ClearField("data_location")
        unranked = [i.name for i in model.graph.input if not i.type.tensor_type.HasField("shape")]
        return cls(
            model.SerializeToString(),
            weights,
            [n.name for n in model.graph.node],
            frozenset(_given(model.graph)),
            unranked,
            mapped,
        )

    def load(self, parser: Any) -> bool:
        """Hand it to a parser or a parser's refitter."""
        return bool(parser.load_model_proto(self.model)) and all(
            parser.load_initializer(name, address, size) for name, address, size in self.weights
        )


def _given(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of initializers and constants, branches and loop bodies included."""
    yield from (i.name for i in graph.initializer)
    for node in graph.node:
        if node.op_type == "Constant":
            yield from node.output
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _given(attribute.g)


@dataclass(slots=True)
class ParsedNetwork:
    """A network that can be built, as often as one likes; holds what must outlive it."""

    builder: Any
    network: Any
    logger: Any
    _parser: Any = field(repr=False)
    _graph: WeightlessGraph = field(repr=False)


def empty_network(trt: Any) -> tuple[Any, Any, Any]:
    """(logger, builder, network). Strongly typed: precision is in the graph."""
    logger = capturing_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    return logger, builder, network


def parse_network(
    trt: Any, flavour: Flavour, lowered: LoweredSegment, plugins: tuple[str, ...]
) -> tuple[ParsedNetwork | None, dict[str | None, str]]:
    """The network of a segment; or None and what the parser refuses, by ONNX node, None for the whole graph."""
    logger, builder, network = empty_network(trt)
    load_plugins(flavour, builder, plugins)
    graph = WeightlessGraph.read(lowered)
    if graph.unranked:
        # It would be parsed as a scalar, without a word.
        return None, {None: f"{flavour.library}: the rank of {', '.join(graph.unranked)} is not known"}
    parser = trt.OnnxParser(network, logger)
    if graph.load(parser) and parser.parse_model_proto():
        return ParsedNetwork(builder, network, logger, parser, graph), {}
    return None, _unsupported(trt, flavour, lowered, graph.nodes, plugins)


def name_tensors(network: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give the network's inputs and outputs the names that others see, instead of `input_0` and `output_0`."""
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        tensor.name = inputs[int(tensor.name.rpartition("_")[2])]
    for index, name in enumerate(outputs):
        network.get_output(index).name = name


def _unsupported(
    trt: Any, flavour: Flavour, lowered: LoweredSegment, nodes: list[str], plugins: tuple[str, ...]
) -> dict[str | None, str]:
    """Everything that the parser's support query objects to.

    It stops at no error, but what it says of the nodes between two errors is "unknown": the partitioner asks about those again, in a
    segment of their own. The query fills its network, so it gets one that is thrown away.
    """
    logger, builder, network = empty_network(trt)
    load_plugins(flavour, builder, plugins)
    parser = trt.OnnxParser(network, logger)
    parser.supports_model_v2(lowered.graph.read_bytes(), str(lowered.graph))
    found: dict[str | None, str] = {}
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        node = error.node()
        name = nodes[node] if 0 <= node < len(nodes) else None
        text = " ".join(str(error.desc()).split())
        found.setdefault(name, f"{flavour.library}: {error.node_operator() or 'graph'}: {text[:300]}")
    return found or {None: said(flavour.library, logger, "the parser refuses the graph")}
