"""Segments in ONNX: nameless, traced back to their operators, with weights apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from builder.export import export_model
from builder.inputs import parse_input
from builder.lowering.onnx import WEIGHTS_FILE, LoweredSegment, LoweringFailure, lower_to_onnx
from builder.lowering.torch_onnx import decompose_for_onnx, one_registry, untranslatable
from builder.partition.partitioner import partition
from builder.partition.plan import Segment
from builder.settings import Settings


class Everything:
    """An oracle that takes all."""

    prepare = staticmethod(decompose_for_onnx)

    def screen(self, program: object) -> dict[str, str]:
        return {}

    def examine(self, segment: Segment) -> dict[str, str]:
        return {}


def segment_of(module: nn.Module, *inputs: str) -> Segment:
    model = export_model(module.eval(), [parse_input(i) for i in inputs])
    (segment,) = partition(model, Everything(), Settings()).segments
    return segment


def lowered(tmp_path: Path, module: nn.Module, text: str = "x=float32[B=1:2:4, 16]") -> LoweredSegment:
    directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    directory.mkdir()
    return lower_to_onnx(segment_of(module, text), directory)


class First(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Linear(16, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.norm(self.encoder(x)), -1)


class Renamed(nn.Module):
    """The same computation under other names, with parameters registered in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.LayerNorm(64)
        self.a = nn.Linear(16, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.a(tokens)
        return torch.softmax(self.b(hidden), -1)


def weights(segment: LoweredSegment) -> bytes:
    return (segment.directory / WEIGHTS_FILE).read_bytes()


def test_names_do_not_matter(tmp_path: Path) -> None:
    one = lowered(tmp_path, First())
    other = lowered(tmp_path, Renamed(), "tokens=float32[N=1:2:4, 16]")
    assert one.graph_digest == other.graph_digest
    assert weights(one) != weights(other)
    assert one.text() == other.text()
    text = one.graph.read_bytes()
    for trace in (b"encoder", b"nets", b"torch", b"site-packages", b"forward", str(Path.cwd()).encode()):
        assert trace not in text


def test_equal_weights_have_equal_digests(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one = lowered(tmp_path, First())
    torch.manual_seed(0)
    other = lowered(tmp_path, First())
    assert (one.graph_digest, weights(one)) == (other.graph_digest, weights(other))


def test_what_is_computed_does_matter(tmp_path: Path) -> None:
    class Variant(nn.Module):
        def __init__(self, kind: int) -> None:
            super().__init__()
            self.kind = kind

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(x)
            return [
                x - y,
                y - x,
                x.softmax(0),
                x.softmax(1),
                x * 2,
                x * 3,
                x.sum(0),
                x.sum(1),
                x.clamp(max=1),
                x.clamp(max=6),
            ][self.kind]

    digests = {lowered(tmp_path, Variant(kind)).graph_digest for kind in range(10)}
    assert len(digests) == 10


def test_ranges_share_a_graph_but_fixed_sizes_do_not(tmp_path: Path) -> None:
    assert lowered(tmp_path, First()).graph_digest == lowered(tmp_path, First(), "x=float32[B=1:2:9, 16]").graph_digest
    assert lowered(tmp_path, First()).graph_digest != lowered(tmp_path, First(), "x=float32[4, 16]").graph_digest


def test_inputs_and_outputs_are_named_by_position(tmp_path: Path) -> None:
    model = onnx.load(lowered(tmp_path, First()).graph)
    onnx.checker.check_model(model, full_check=True)
    assert [i.name for i in model.graph.input] == ["input_0"]
    assert [o.name for o in model.graph.output] == ["output_0"]
    assert [o.version for o in model.opset_import] == [18]


def test_nodes_are_traced_back(tmp_path: Path) -> None:
    result = lowered(tmp_path, First())
    names = {n.name for n in onnx.load(result.graph).graph.node}
    assert set(result.origins) <= names
    assert {"linear", "layer_norm", "softmax"} <= set(result.origins.values())
    assert set(result.origins.values()) <= set(result.segment.nodes)


def test_untranslatable_operators_stay_whole() -> None:
    class Special(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x) + torch.special.i0e(x)

    model = export_model(Special(), [parse_input("x=float32[4]")])
    program = decompose_for_onnx(model.program)
    refused = untranslatable(program)
    operators = {str(n.target) for n in program.graph.nodes if n.name in refused}
    assert "aten.special_bessel_j0.default" in operators
    assert not any(o.startswith("prims") for o in operators)


def test_branches_are_looked_into() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda t: torch.special.bessel_j0(t), lambda t: t - 1, (x,)) + 1

    model = export_model(Branches(), [parse_input("x=float32[4]")])
    (reason,) = untranslatable(decompose_for_onnx(model.program)).values()
    assert "aten.special_bessel_j0, which is inside it" in reason


def test_a_failed_translation_names_the_operator(tmp_path: Path) -> None:
    class Special(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(torch.relu(x))

    with pytest.raises(LoweringFailure) as caught:
        lowered(tmp_path, Special())
    assert "torch.onnx cannot translate it" in str(caught.value)
    assert set(caught.value.reasons) <= {"special_bessel_j0", "relu"}
    assert "special_bessel_j0" in caught.value.reasons


def test_an_export_of_another_thread_has_its_own_translations() -> None:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    usual = ONNXRegistry.__dict__["from_torchlib"]
    with ThreadPoolExecutor(1) as pool, one_registry():
        ours = ONNXRegistry.from_torchlib(opset_version=18)
        assert ONNXRegistry.from_torchlib(opset_version=18) is ours
        other = pool.submit(ONNXRegistry.from_torchlib, opset_version=20).result()
        assert other is not ours and (other.opset_version, ours.opset_version) == (20, 18)
    assert ONNXRegistry.__dict__["from_torchlib"] is usual
