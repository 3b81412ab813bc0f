"""What the compilers that read ONNX share: lower a segment once, ask their parser, answer in nodes."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from builder.compilers.base import CompiledArtifact
from builder.lowering.onnx import LoweredSegment, LoweringFailure, lower_to_onnx
from builder.lowering.torch_onnx import OPSET, decompose_for_onnx, untranslatable
from builder.partition.assign import is_compute
from builder.partition.plan import Segment

__all__ = ["OnnxSession"]


class OnnxSession(abc.ABC):
    """A build with a compiler whose parser takes ONNX.

    A segment is lowered when the partitioner first asks about it; what was accepted is compiled
    from the same files.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
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
        """Nodes that the exporter or the parser refuses, with its message."""
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

    def lowered(self, segment: Segment) -> LoweredSegment:
        """The segment in ONNX; lowered on the first call.

        Raises:
            LoweringFailure: when torch's exporter refuses it.
        """
        if segment.nodes not in self._lowered:
            directory = self._work / f"lowered_{len(self._lowered)}"
            directory.mkdir(exist_ok=True)
            self._lowered[segment.nodes] = lower_to_onnx(segment, directory)
        return self._lowered[segment.nodes]

    def fingerprint(self, segment: Segment) -> Mapping[str, Any]:
        """Digests of the graph and of all weights, by value."""
        lowered = self.lowered(segment)
        return {"ir": f"onnx opset {OPSET}", "graph": lowered.graph_digest, "weights": lowered.weights_digest}
