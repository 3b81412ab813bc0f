"""A fallback segment as a `.pt2` file that PyTorch runs."""

from __future__ import annotations

from pathlib import Path

import torch

from builder.partition.plan import Segment
from builder.tracing import quiet_torch

__all__ = ["save_program"]


def save_program(segment: Segment, path: Path) -> None:
    """Write the segment's exported program.

    Traces of how each node was made go: they hold addresses of this process and paths of this
    machine, and without them the same segment is the same file.
    """
    for node in segment.program.graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key in ("val", "tensor_meta")}
    with quiet_torch():
        torch.export.save(segment.program, path)
