"""A segment as ONNX: one graph file without names or weights, and one file of weights."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch

from builder.errors import CompileError
from builder.files import file_digest
from builder.lowering.canonical import canonicalise
from builder.lowering.torch_onnx import OPSET
from builder.partition.assign import is_compute
from builder.partition.plan import Segment
from builder.tracing import quiet_torch

__all__ = ["GRAPH_FILE", "WEIGHTS_FILE", "LoweredSegment", "LoweringFailure", "lower_to_onnx"]

GRAPH_FILE = "model.onnx"
WEIGHTS_FILE = "weights.bin"

# Bytes.
_SMALLEST_WEIGHT = 256

_SEGMENT_NODE = "builder.segment_node"


@dataclass(frozen=True, slots=True)
class LoweredSegment:
    """A segment in ONNX, on disk.

    Its inputs are named `input_0`, `input_1`, ... and its outputs `output_0`, ... in the segment's
    order. No name, path or trace of the model is in the graph file, and no weight but small ones: two
    segments that compute the same have the same graph digest.

    Args:
        segment: that it was made of.
        directory: holds the graph file and the weights file beside it.
        graph_digest, weights_digest: sha256 of the two files.
        origins: the segment's node that each ONNX node was made for, by ONNX node name.
    """

    segment: Segment
    directory: Path
    graph_digest: str
    weights_digest: str
    origins: Mapping[str, str]

    @property
    def graph(self) -> Path:
        return self.directory / GRAPH_FILE

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(p for p in (self.graph, self.directory / WEIGHTS_FILE) if p.exists())


class LoweringFailure(Exception):
    """The exporter could not translate a segment. `reasons` is {node: reason}."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(next(iter(reasons.values()), "unknown"))
        self.reasons = dict(reasons)


def lower_to_onnx(segment: Segment, directory: Path) -> LoweredSegment:
    """Translate a segment with torch's exporter and write it.

    Args:
        segment: of operators that `decompose_for_onnx` has prepared.
        directory: an empty directory that keeps the files.
    Raises:
        LoweringFailure: when the exporter refuses; names the nodes.
        CompileError: when the translation has other inputs or outputs than the segment.
    """
    try:
        with quiet_torch(), _tagged(segment):
            exported = torch.onnx.export(
                segment.program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[f"input_{i}" for i in range(len(segment.inputs))],
                output_names=[f"output_{i}" for i in range(len(segment.outputs))],
                verbose=False,
            )
    except Exception as error:
        raise LoweringFailure(_blame(segment, error)) from error
    finally:
        _forget_unbacked(segment)
    assert exported is not None
    model = exported.model
    names = [v.name for v in model.graph.inputs], [v.name for v in model.graph.outputs]
    if (len(names[0]), len(names[1])) != (len(segment.inputs), len(segment.outputs)):
        raise CompileError(f"the ONNX translation of {segment.name} has inputs and outputs {names}")
    origins = canonicalise(model, _origin)
    _write_weights(model, directory)
    ir.save(model, directory / GRAPH_FILE)
    weights = directory / WEIGHTS_FILE
    return LoweredSegment(
        segment=segment,
        directory=directory,
        graph_digest=file_digest(directory / GRAPH_FILE),
        weights_digest=file_digest(weights) if weights.exists() else "",
        origins=origins,
    )


def _write_weights(model: ir.Model, directory: Path) -> None:
    """Move weights to their own file.

    Integers and small tensors stay in the graph: they decide shapes (the scales of a Resize), and
    parsers need them while they infer those.
    """
    weights = [v for v in model.graph.initializers.values() if _is_weight(v.const_value)]
    tensors = [v.const_value for v in weights if v.const_value is not None]
    moved = ir.external_data.convert_tensors_to_external(tensors, directory, WEIGHTS_FILE)
    for value, tensor in zip(weights, moved, strict=True):
        value.const_value = tensor


def _is_weight(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.dtype.is_floating_point() and tensor.nbytes >= _SMALLEST_WEIGHT


@contextlib.contextmanager
def _tagged(segment: Segment) -> Iterator[None]:
    """Let each ONNX node carry the segment's node that it comes from.

    The exporter renames nodes, but writes the module stack of each into its metadata, and that
    travels through its decompositions and optimisations.
    """
    saved = {}
    for node in segment.program.graph.nodes:
        if node.op == "call_function":
            saved[node] = node.meta.get("nn_module_stack")
            node.meta["nn_module_stack"] = {
                **(saved[node] or {}),
                _SEGMENT_NODE: (f"{_SEGMENT_NODE}={node.name}", "node"),
            }
    try:
        yield
    finally:
        for node, stack in saved.items():
            node.meta["nn_module_stack"] = stack


def _forget_unbacked(segment: Segment) -> None:
    """Data-dependent sizes that the exporter's tracing made up would be missed by the next trace of this program."""
    for node in segment.program.graph.find_nodes(op="placeholder"):
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        pending = getattr(getattr(mode, "shape_env", None), "pending_fresh_unbacked_symbols", None)
        if pending:
            pending.clear()


def _origin(node: ir.Node) -> str | None:
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes")
    if not scopes:
        return None
    with contextlib.suppress(ValueError, SyntaxError):
        for scope in reversed(ast.literal_eval(scopes)):
            if scope.startswith(f"{_SEGMENT_NODE}="):
                return str(scope.partition("=")[2])
    return None


def _blame(segment: Segment, error: BaseException) -> dict[str, str]:
    """The nodes that an exporter's error is about: those of the operator that it names, else all."""
    causes = []
    cause: BaseException | None = error
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__
    text = " ".join(str(c) for c in causes)
    reason = f"torch.onnx cannot translate it: {_first_line(causes[-1])}"
    named = set(re.findall(r"target=(?:torch\.ops\.)?([\w.]+)\]", text))
    operators = [n for n in segment.program.graph.nodes if is_compute(n)]
    blamed = [n for n in operators if str(n.target).removeprefix("torch.ops.") in named] or operators
    return {n.name: reason for n in blamed}


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
