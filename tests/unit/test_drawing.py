"""Pictures of plans."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

import pytest
import torch

from builder.drawing import check_drawing, write_drawing
from builder.errors import SpecError
from builder.partition.partitioner import partition
from builder.partition.plan import PartitionPlan
from builder.settings import Settings
from tests.unit.test_partition import Oracle, exported

SVG = "{http://www.w3.org/2000/svg}"


class Skips(torch.nn.Module):
    """Values that pass one or more segments by."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.special.bessel_j0(x + 1)
        b = torch.special.bessel_j0(torch.sin(a) + x)
        return torch.cos(b) * a * x, a


@pytest.fixture(scope="module")
def plan() -> PartitionPlan:
    return partition(exported(Skips(), "x=float32[B=1:2:4, 3]"), Oracle(["bessel"]), Settings())


def texts(root: xml.etree.ElementTree.Element) -> list[str]:
    return [t.text or "" for t in root.iter(f"{SVG}text")]


def test_every_segment_and_every_boundary_tensor_is_drawn(plan: PartitionPlan, tmp_path: Path) -> None:
    write_drawing(plan, tmp_path / "p.svg", "a <title> & more")
    root = xml.etree.ElementTree.fromstring((tmp_path / "p.svg").read_text())
    assert root[0].text == "a <title> & more"
    boxes = [r for r in root.iter(f"{SVG}rect") if r.get("rx")]
    assert len(boxes) == len(plan.segments) + 2 == 7
    given = texts(root)
    assert {s.name for s in plan.segments} <= set(given)
    for tensor in {t for s in plan.segments for t in s.inputs}:
        # Once for each segment that takes it; the model's inputs are listed in a box too.
        takers = sum(tensor in s.inputs for s in plan.segments) + (tensor in plan.inputs)
        assert given.count(str(tensor)) == takers
    edges = [p for p in root.iter(f"{SVG}path") if p.get("marker-end")]
    pairs = {(t.name, s.name) for s in plan.segments for t in s.inputs}
    assert len(pairs) >= len(edges) - 2 >= len(plan.segments)
    tops = [int(b.get("y", "")) for b in boxes]
    bottoms = [top + int(b.get("height", "")) for top, b in zip(tops, boxes, strict=True)]
    assert all(bottom < top for bottom, top in zip(bottoms, tops[1:], strict=False)), "no box covers another"


def test_edges_that_run_side_by_side_have_lanes_of_their_own(plan: PartitionPlan, tmp_path: Path) -> None:
    write_drawing(plan, tmp_path / "p.svg", "p")
    root = xml.etree.ElementTree.fromstring((tmp_path / "p.svg").read_text())
    spans: dict[str, list[tuple[int, int]]] = {}
    for path in root.iter(f"{SVG}path"):
        way = path.get("d", "")
        if path.get("marker-end") and "H" in way:
            start, lane, end = (
                way.split("H")[0].split()[1],
                way.split("H")[1].split("V")[0],
                way.split("V")[1].split("H")[0],
            )
            assert all(int(end) <= a or b <= int(start) for a, b in spans.get(lane, [])), "two edges lie on each other"
            spans.setdefault(lane, []).append((int(start), int(end)))
    assert len(spans) >= 2


def test_the_page_says_why(plan: PartitionPlan, tmp_path: Path) -> None:
    write_drawing(plan, tmp_path / "p.html", "a <b>")
    page = (tmp_path / "p.html").read_text()
    assert "<h1>a &lt;b&gt;</h1>" in page and "<svg" in page
    assert page.count("<td>no bessel") == 2 and "test_drawing.py" in page
    assert "3 engine segments hold" in page


@pytest.mark.parametrize(
    ("name", "said"), [("p.png", "cannot draw"), ("p", "cannot draw"), ("no/p.svg", "no directory")]
)
def test_what_cannot_be_drawn(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check_drawing(tmp_path / name)
