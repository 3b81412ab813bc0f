"""A segment as ONNX: one graph file without names or weights, and one file of weights.

The exporter's optimiser never sees a weight: with them it folds, merges equal ones and fuses batch
normalisation into convolutions, so that two checkpoints of one model would be two graphs.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch
from torch.export.graph_signature import InputKind

from builder.errors import CompileError
from builder.hashing import file_digest
from builder.lowering.canonical import canonicalise
from builder.lowering.precision import ORIGIN
from builder.lowering.structure import structural_weights
from builder.lowering.torch_onnx import OPSET, one_registry
from builder.lowering.weights import FixedWeight, WeightSpec, dtype_name, refusal
from builder.partition.assign import is_compute
from builder.partition.plan import Segment
from builder.recurrence import whole_recurrent_layers
from builder.shape_env import SizesNarrowed, sizes_kept
from builder.tracing import own_name, quiet_torch

__all__ = ["GRAPH_FILE", "WEIGHTS_FILE", "LoweredSegment", "LoweringFailure", "external_weights", "lower_to_onnx"]

GRAPH_FILE = "model.onnx"
WEIGHTS_FILE = "weights.bin"

_SEGMENT_NODE = "builder.segment_node"
_WEIGHT = "builder.weight"
_DTYPE_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}


@dataclass(frozen=True, slots=True)
class LoweredSegment:
    """A segment in ONNX, on disk.

    Its inputs are named `input_0`, `input_1`, ... and its outputs `output_0`, ... in the segment's
    order. No name, path or trace of the model is in the graph file, and of the weights only dtypes and
    shapes: two segments that compute the same for the same weights have the same graph digest.

    Args:
        segment: that it was made of.
        directory: holds the graph file and the weights file beside it.
        graph_digest: sha256 of the graph file.
        weights: what the weights file holds, in order.
        fixed: tensors of the model that are in the graph by value.
        origins: the segment's node that each ONNX node was made for, by ONNX node name.
    """

    segment: Segment
    directory: Path
    graph_digest: str
    weights: tuple[WeightSpec, ...]
    fixed: tuple[FixedWeight, ...]
    origins: Mapping[str, str]

    @property
    def graph(self) -> Path:
        return self.directory / GRAPH_FILE

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(p for p in (self.graph, self.directory / WEIGHTS_FILE) if p.exists())

    def text(self) -> str:
        """The graph for people to read, without the values of weights."""
        model = ir.load(self.graph)
        for value in model.graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = None
        return str(model)


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
        with (
            quiet_torch(),
            torch.no_grad(),
            _tagged(segment),
            whole_recurrent_layers(),
            sizes_kept(segment.program),
            one_registry(),
        ):
            exported = torch.onnx.export(
                segment.program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[f"input_{i}" for i in range(len(segment.inputs))],
                output_names=[f"output_{i}" for i in range(len(segment.outputs))],
                verbose=False,
                optimize=False,
            )
            assert exported is not None
            fixed = _optimise(exported, segment)
    except SizesNarrowed as error:
        operators = [n.name for n in segment.program.graph.nodes if is_compute(n)]
        raise LoweringFailure(
            dict.fromkeys(operators, f"torch.onnx cannot translate it for all sizes: {error}")
        ) from error
    except Exception as error:
        raise LoweringFailure(_blame(segment, error)) from error
    finally:
        _forget_unbacked(segment)
    model = exported.model
    names = [v.name for v in model.graph.inputs], [v.name for v in model.graph.outputs]
    if (len(names[0]), len(names[1])) != (len(segment.inputs), len(segment.outputs)):
        raise CompileError(f"the ONNX translation of {segment.name} has inputs and outputs {names}")
    weights = [v for v in model.graph.initializers.values() if _WEIGHT in v.metadata_props]
    still_there = {n: v for n, v in model.graph.initializers.items() if n in fixed}
    origins = canonicalise(model, _origin)
    # In the order in which the graph first uses them, which is that of their new names.
    weights.sort(key=lambda v: int((v.name or "")[1:]))
    _write_weights(weights, directory)
    ir.save(model, directory / GRAPH_FILE)
    return LoweredSegment(
        segment=segment,
        directory=directory,
        graph_digest=file_digest(directory / GRAPH_FILE),
        weights=tuple(WeightSpec(*_described(v)) for v in weights),
        fixed=tuple(_fixed(segment, origin, still_there.get(origin), reason) for origin, reason in fixed.items()),
        origins=origins,
    )


def external_weights(graph: Path) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """Name, dtype, shape, offset and length (bytes) of each weight that a graph file takes from a weights file."""
    values = ir.load(graph).graph.initializers.values()
    return [
        (*_described(v), v.const_value.offset or 0, v.const_value.length or 0)
        for v in values
        if isinstance(v.const_value, ir.ExternalTensor)
    ]


def _optimise(exported: torch.onnx.ONNXProgram, segment: Segment) -> dict[str, str]:
    """Have the exporter optimise its graph with all weights out of sight.

    Marks each weight that is left with `_WEIGHT`.
    Returns: {initializer: reason} for the model's tensors that stay in the graph by value.
    """
    graph = exported.model.graph
    fixed = {name: reason for name, reason in _by_value(segment).items() if name in graph.initializers}
    candidates = {
        str(s.target) for s in segment.program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT
    } - fixed.keys()
    fixed.update(structural_weights(graph, candidates))
    inputs = len(graph.inputs)
    hidden: dict[ir.Value, ir.TensorProtocol | None] = {}
    for name in [n for n in graph.initializers if n in candidates and n not in fixed]:
        value = graph.initializers.pop(name)
        hidden[value], value.const_value = value.const_value, None
        graph.inputs.append(value)
    exported.optimize()
    del graph.inputs[inputs:]
    for value, tensor in hidden.items():
        if value.uses() or value.is_graph_output():
            value.const_value = tensor
            value.metadata_props[_WEIGHT] = "1"
            graph.initializers.add(value)
    return fixed


def _by_value(segment: Segment) -> dict[str, str]:
    """{tensor: why the graph keeps its values}, told by the tensor alone."""
    program = segment.program
    reasons = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            continue
        name = str(spec.target)
        tensor = {**program.constants, **program.state_dict}[name]
        if spec.kind is InputKind.CONSTANT_TENSOR:
            reasons[name] = "it is a constant of the model's code"
        elif isinstance(tensor, torch.Tensor) and (reason := refusal(tensor)):
            reasons[name] = reason
    return reasons


def _fixed(segment: Segment, origin: str, value: ir.Value | None, reason: str) -> FixedWeight:
    program = segment.program
    tensor = program.state_dict.get(origin, program.constants.get(origin))
    # Constants are folded into what is made of them.
    name = (value.name if value is not None else None) or ""
    return FixedWeight(name, own_name(origin), dtype_name(tensor.dtype), tuple(tensor.shape), reason)


def _described(value: ir.Value) -> tuple[str, str, tuple[int, ...]]:
    tensor = value.const_value
    assert tensor is not None
    return value.name or "", _DTYPE_NAMES.get(tensor.dtype.name, tensor.dtype.name.lower()), tuple(tensor.shape.numpy())


def _write_weights(weights: list[ir.Value], directory: Path) -> None:
    """Move weights to their own file."""
    tensors = [v.const_value for v in weights if v.const_value is not None]
    moved = ir.external_data.convert_tensors_to_external(tensors, directory, WEIGHTS_FILE)
    for value, tensor in zip(weights, moved, strict=True):
        value.const_value = tensor


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
                _SEGMENT_NODE: (f"{_SEGMENT_NODE}={node.meta.get(ORIGIN, node.name)}", "node"),
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
