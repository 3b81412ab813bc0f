"""What the compilers that read ONNX share: lower a segment once, ask their parser, answer in nodes."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from torch.export import ExportedProgram

from builder.compilers.base import BuildContext, CompiledArtifact, Fingerprint
from builder.lowering.onnx import LoweredSegment, LoweringFailure, lower_to_onnx
from builder.lowering.precision import has_double, in_precision, without_double
from builder.lowering.torch_onnx import decompose_for_onnx, untranslatable
from builder.partition.assign import is_compute
from builder.partition.plan import Segment
from builder.types import DTYPES, TensorSpec

__all__ = ["OnnxSession"]


class OnnxSession(abc.ABC):
    """A build with a compiler whose parser takes ONNX.

    A segment is lowered when the partitioner first asks about it; what was accepted is compiled
    from the same files.

    Attributes:
        library: the compiler's name in messages.
        io_dtypes: what can cross an engine's boundary.
        only_float32: operators that it has no reduced precision for.
        bounded: whether each size at a boundary needs an upper bound.
    """

    library: str
    io_dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)
    only_float32: ClassVar[frozenset[str]] = frozenset()
    bounded: ClassVar[bool] = False

    def __init__(self, context: BuildContext) -> None:
        self.context = context
        self._lowered: dict[tuple[str, ...], LoweredSegment] = {}

    @abc.abstractmethod
    def parse(self, lowered: LoweredSegment) -> Mapping[str | None, str]:
        """Ask the compiler's parser: {ONNX node name, or None for the whole graph: its message}, empty if it takes all."""

    @abc.abstractmethod
    def compile(self, segment: Segment, directory: Path) -> CompiledArtifact:
        """Write the engine of a segment into an empty directory."""

    def prepare(self, program: ExportedProgram) -> ExportedProgram:
        """The program in operators that torch's exporter translates."""
        return decompose_for_onnx(program)

    def screen(self, program: ExportedProgram) -> Mapping[str, str]:
        """Nodes that torch's exporter has no translation for."""
        return untranslatable(program)

    def examine(self, segment: Segment) -> Mapping[str, str]:
        """Nodes that the exporter or the parser refuses, with its message; or that no boundary can stand at."""
        refused = self._refused_boundary(segment) or self._narrowed(segment)
        if refused:
            return refused
        try:
            lowered = self.lowered(segment)
        except LoweringFailure as failure:
            return failure.reasons
        reasons: dict[str, str] = {}
        for onnx_node, message in self.parse(lowered).items():
            origin = lowered.origins.get(onnx_node) if onnx_node else None
            blamed = [origin] if origin else [n.name for n in segment.program.graph.nodes if is_compute(n)]
            for node in blamed:
                reasons.setdefault(node, message)
        return reasons

    def _refused_boundary(self, segment: Segment) -> dict[str, str]:
        """Nodes beside a boundary tensor that the engine cannot have; the boundary moves past them."""
        graph = segment.program.graph
        placeholders = graph.find_nodes(op="placeholder")[-len(segment.inputs) :] if segment.inputs else []
        returned = graph.output_node().all_input_nodes
        refused: dict[str, str] = {}
        for spec, node in [
            *zip(segment.inputs, placeholders, strict=True),
            *zip(segment.outputs, returned, strict=True),
        ]:
            reason = self._refusal(spec)
            if reason:
                beside = [n for n in node.users if n.op == "call_function"] if node.op == "placeholder" else [node]
                refused.update((n.name, reason) for n in beside)
        return refused

    def _narrowed(self, segment: Segment) -> dict[str, str]:
        """Nodes that compute in float64 where the compiler would take float32 without a word."""
        if "float64" in self.io_dtypes or self.context.settings.truncate_double:
            return {}
        reason = f"{self.library} has no float64 and would compute it in float32; truncate_double asks for that"
        return {n.name: reason for n in segment.program.graph.nodes if is_compute(n) and has_double(n)}

    def _converted(self, segment: Segment) -> Segment:
        """The segment in the precision of the build."""
        settings = self.context.settings
        if settings.truncate_double and "float64" not in self.io_dtypes:
            segment = without_double(segment)
        return in_precision(segment, settings.precision, self.only_float32)

    def _refusal(self, tensor: TensorSpec) -> str | None:
        if tensor.dtype == "float64" and tensor.dtype not in self.io_dtypes:
            if self.context.settings.truncate_double:
                return None
            return (
                f"{self.library} has no float64 inputs and outputs, and {tensor.name!r} would be one; "
                "truncate_double lets it compute in float32"
            )
        if tensor.dtype not in self.io_dtypes:
            return f"{self.library} has no {tensor.dtype} inputs and outputs, and {tensor.name!r} would be one"
        if self.bounded and any(d.max is None for d in tensor.dims):
            return f"{self.library} needs an upper bound for each size, and {tensor.name!r} has none"
        return None

    def lowered(self, segment: Segment) -> LoweredSegment:
        """The segment in ONNX; lowered on the first call.

        Raises:
            LoweringFailure: when torch's exporter refuses it.
        """
        if segment.nodes not in self._lowered:
            directory = self.context.work / f"lowered_{len(self._lowered)}"
            directory.mkdir(exist_ok=True)
            self._lowered[segment.nodes] = lower_to_onnx(self._converted(segment), directory)
        return self._lowered[segment.nodes]

    @abc.abstractmethod
    def fingerprint(self, segment: Segment) -> Fingerprint:
        """What decides the engine of a segment."""

    @abc.abstractmethod
    def refit(self, segment: Segment, engine: Path, directory: Path) -> CompiledArtifact:
        """Write the engine with the segment's weights into an empty directory."""

    def without_refit(self, segment: Segment) -> bool:
        """Most compilers refit all or nothing."""
        return False
