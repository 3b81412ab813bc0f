"""A plan as a picture: SVG, or an HTML page with the picture and why each operator falls back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.errors import SpecError
from builder.partition.plan import PartitionPlan, Segment
from builder.repository.templates import render

__all__ = ["check_drawing", "write_drawing"]

# Pixels.
_WIDTH = 460
_MARGIN = 24
_LINE = 16
_PADDING = 10
_LANE = 36
_CHARACTER = 6.7

# How many operators a box names.
_NAMED = 6


@dataclass(frozen=True, slots=True)
class _Box:
    """A segment, or the model's inputs or outputs."""

    kind: str
    title: str
    lines: tuple[str, ...]
    y: int

    @property
    def height(self) -> int:
        return 2 * _PADDING + _LINE * (1 + len(self.lines))

    @property
    def bottom(self) -> int:
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class _Edge:
    """Tensors that go from one box to a later one; `lane` 0 is the straight way down."""

    source: _Box
    target: _Box
    labels: tuple[str, ...]
    lane: int


def check_drawing(path: Path) -> None:
    """Refuse a file that could not be written, before any work is done.

    Raises:
        SpecError: for another ending than .svg and .html, or a directory that is not there.
    """
    if path.suffix not in (".svg", ".html"):
        raise SpecError(f"cannot draw a plan as {path.name!r}", where="--graph", fix="end its name with .svg or .html")
    if not path.parent.is_dir():
        raise SpecError(f"there is no directory {path.parent}", where="--graph", fix="make it, or choose another")


def write_drawing(plan: PartitionPlan, path: Path, title: str) -> None:
    """Write the graph of segments.

    Args:
        plan: a dry run.
        path: ends with .svg or .html.
        title: of the page.
    Raises:
        SpecError: when it cannot be written.
    """
    boxes, edges = _layout(plan)
    lanes = max((e.lane for e in edges), default=0)
    longest = max((len(t) for e in edges for t in e.labels), default=0)
    inside = max((len(t) for b in boxes for t in b.lines), default=0)
    box_width = max(_WIDTH, round(inside * _CHARACTER) + 2 * _PADDING)
    text = render(
        f"plan{path.suffix}.j2",
        title=title,
        plan=plan,
        boxes=boxes,
        edges=edges,
        margin=_MARGIN,
        box_width=box_width,
        line=_LINE,
        padding=_PADDING,
        lane=_LANE,
        width=_MARGIN * 2 + box_width + lanes * _LANE + round(longest * _CHARACTER),
        height=boxes[-1].bottom + _MARGIN,
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"the graph cannot be written: {error.strerror}", where=str(path)) from error


def _layout(plan: PartitionPlan) -> tuple[list[_Box], list[_Edge]]:
    """Boxes from top to bottom in the order in which they run, and the tensors between them."""
    inputs = _Box("edge", "inputs", tuple(map(str, plan.inputs)), _MARGIN)
    boxes = [inputs]
    made_by = {t.name: inputs for t in plan.inputs}
    taken: dict[tuple[int, int], list[str]] = {}

    def place(kind: str, title: str, lines: tuple[str, ...], needs: Iterator[tuple[str, str]]) -> _Box:
        labels: dict[int, list[str]] = {}
        for name, label in needs:
            source = boxes.index(made_by[name])
            labels.setdefault(source, []).append(label)
        straight = labels.get(len(boxes) - 1, [])
        box = _Box(kind, title, lines, boxes[-1].bottom + _LINE * (len(straight) + 1) + _MARGIN)
        for source, texts in labels.items():
            taken[source, len(boxes)] = texts
        boxes.append(box)
        return box

    for segment in plan.segments:
        box = place(segment.kind, segment.name, _described(segment), ((t.name, str(t)) for t in segment.inputs))
        made_by.update((t.name, box) for t in segment.outputs)
    place(
        "edge",
        "outputs",
        tuple(str(o.tensor) for o in plan.outputs),
        ((o.value, o.tensor.name) for o in plan.outputs),
    )
    return boxes, _edges(boxes, taken)


def _edges(boxes: list[_Box], taken: dict[tuple[int, int], list[str]]) -> list[_Edge]:
    """Edges to the next box go straight down; each other has a lane beside the boxes, the shortest nearest."""
    edges = []
    busy: list[list[tuple[int, int]]] = []
    for (source, target), labels in sorted(taken.items(), key=lambda e: (e[0][1] - e[0][0], e[0])):
        lane = 0
        if target - source > 1:
            free = (i for i, spans in enumerate(busy) if all(target <= a or b <= source for a, b in spans))
            lane = next(free, len(busy))
            if lane == len(busy):
                busy.append([])
            busy[lane].append((source, target))
            lane += 1
        edges.append(_Edge(boxes[source], boxes[target], tuple(labels), lane))
    return edges


def _described(segment: Segment) -> tuple[str, ...]:
    counts = sorted(segment.operators.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{name} x{count}" if count > 1 else name for name, count in counts[:_NAMED]]
    if len(counts) > _NAMED:
        named.append(f"and {len(counts) - _NAMED} more")
    parameters = f", parameters: {segment.parameter_count:,}" if segment.parameter_count else ""
    return (f"{segment.kind}, operators: {segment.operator_count}{parameters}", *named)
