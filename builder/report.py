"""Results as JSON values: what `--json` prints, for programs to rely on."""

from __future__ import annotations

import dataclasses
from typing import Any

from builder.partition.plan import PartitionPlan, Segment
from builder.pipeline import BuildResult

__all__ = ["build_json", "plan_json"]


def build_json(result: BuildResult) -> dict[str, Any]:
    """The result of a build."""
    publication = result.publication
    return {
        "name": publication.name,
        "version": publication.version,
        "path": str(publication.path),
        "created": publication.created,
        "note": publication.note,
        "layout": {"name": result.placement.layout.layout, "reason": result.placement.layout.reason},
        "batching": dataclasses.asdict(result.placement.batching),
        "server_needs": list(result.placement.needs),
        "segments": [
            {
                **_segment(c.segment),
                "compiler": c.compiler,
                "seconds": round(c.seconds, 3),
                "size": c.size,
                "key": c.key,
                "cache": {True: "hit", False: "miss", None: None}[c.hit],
                "saved_seconds": c.saved_seconds,
            }
            for c in result.segments
        ],
        "fallbacks": [dataclasses.asdict(f) for f in result.plan.fallbacks],
        "verification": result.report.as_json(),
        "seconds": {stage: round(s, 3) for stage, s in result.seconds.items()},
    }


def plan_json(plan: PartitionPlan) -> dict[str, Any]:
    """A dry run."""
    return {
        "inputs": [dataclasses.asdict(t) for t in plan.inputs],
        "profiles": [[dataclasses.asdict(t) for t in inputs] for inputs in plan.profiles],
        "outputs": [dataclasses.asdict(o.tensor) for o in plan.outputs],
        "segments": [_segment(s) for s in plan.segments],
        "fallbacks": [dataclasses.asdict(f) for f in plan.fallbacks],
        "coverage": plan.coverage,
        "parameter_coverage": plan.parameter_coverage,
    }


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "name": segment.name,
        "kind": segment.kind,
        "operators": dict(segment.operators),
        "inputs": [dataclasses.asdict(t) for t in segment.inputs],
        "outputs": [dataclasses.asdict(t) for t in segment.outputs],
    }
