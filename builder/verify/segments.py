"""Compare one engine with eager PyTorch: what is asked of an engine that was refitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from builder.errors import BuilderError
from builder.export import ExportedModel
from builder.partition.plan import PartitionPlan, Segment
from builder.runtime.manifest import SegmentSpec
from builder.runtime.runners import load_runner
from builder.runtime.values import to_torch
from builder.settings import Settings
from builder.verify.compare import compare_tensors
from builder.verify.samples import make_tensors, opt_point

__all__ = ["SegmentReference"]


class SegmentReference:
    """What each segment of a plan takes and gives in eager PyTorch, with every dimension at the opt of the first profile.

    Segments are run in order, as far as they are asked about.

    Args:
        model: the exported model.
        plan: its segments.
        settings: of the build: precision, tolerances and the seed of the inputs.
    """

    def __init__(self, model: ExportedModel, plan: PartitionPlan, settings: Settings) -> None:
        self._settings = settings
        self._build = settings.model_dump(mode="json")
        self._segments = plan.segments
        self._done = 0
        inputs = model.profiles[0]
        tensors = make_tensors(inputs, opt_point(inputs), settings.verify.seed)
        self._values = {i.name or "": t for i, t in zip(inputs, tensors, strict=True)}

    def problem(self, segment: Segment, spec: SegmentSpec, directory: Path, device: str) -> str:
        """What is wrong with an engine of a segment; empty when it gives what eager PyTorch gives.

        Args:
            spec: as in a manifest, its artifact relative to `directory`.
            device: where the engine runs.
        """
        wanted = [s.name for s in self._segments].index(segment.name)
        while self._done <= wanted:
            self._run(self._segments[self._done])
            self._done += 1
        try:
            given = load_runner(spec, directory, device=device, settings=self._build).run(
                [self._values[t.name] for t in segment.inputs]
            )
        except (BuilderError, RuntimeError, ValueError) as error:
            return f"it does not run: {' '.join(str(error).split())[:300]}"
        for tensor, value in zip(segment.outputs, given, strict=True):
            found = compare_tensors(self._values[tensor.name], to_torch(value), self._settings).problem
            if found:
                return f"after the refit {tensor.name!r} differs from eager PyTorch: {found}"
        return ""

    def _run(self, segment: Segment) -> None:
        outputs = _eager(segment, [self._values[t.name] for t in segment.inputs])
        self._values.update(zip((t.name for t in segment.outputs), outputs, strict=True))


def _eager(segment: Segment, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    program = segment.program
    lifted: dict[str, Any] = {**program.constants, **program.state_dict}
    weights = [lifted[str(s.target)] for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT]
    with torch.inference_mode():
        return list(program.graph_module(*weights, *(t.contiguous() for t in inputs)))
