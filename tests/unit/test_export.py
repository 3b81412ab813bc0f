"""Export, and what is said when the model does not take what was asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from builder.errors import ExportError, SpecError
from builder.export import export_model
from builder.inputs import parse_input
from builder.shape_env import SizesNarrowed, sizes_kept
from builder.symbols import symbol_ranges
from tests.models import nets


def go(module: torch.nn.Module, *inputs: str) -> object:
    return export_model(module, [parse_input(i) for i in inputs])


@pytest.mark.parametrize(
    ("module", "inputs", "said", "works", "line"),
    [
        (
            nets.Specialised(),
            ["x=float32[B=1:4:8, T=1:2:16, 8]"],
            "dimension 1 of input 'x' (T=1:2:16) must be exactly 2",
            ["x=float32[B=1:4:8, 2, 8]"],
            "self.layer(x.flatten(1))",
        ),
        (
            nets.TwoInputs(),
            ["x=float32[B=1:4:8, 3]", "y=float32[C=1:4:8, 3]"],
            "dimension 0 of input 'y' (C=1:4:8) must equal dimension 0 of input 'x'",
            ["x=float32[B=1:4:8, 3]", "y=float32[B=1:4:8, 3]"],
            "return x + y",
        ),
        (
            nets.TwoInputs(),
            ["x=float32[1:4:8, 3]", "y=float32[1:4:8, 3]"],
            "dimension 0 of input 'y' (1:4:8) must equal dimension 0 of input 'x'",
            ["x=float32[x_0=1:4:8, 3]", "y=float32[x_0=1:4:8, 3]"],
            "return x + y",
        ),
        (
            nets.TwoInputs(),
            ["x=float32[B=1:4:8, 3]", "y=float32[C=2:3:16, 3]"],
            "dimension 0 of input 'y' (C=2:3:16) must equal dimension 0 of input 'x'",
            ["x=float32[B=2:4:8, 3]", "y=float32[B=2:4:8, 3]"],
            "return x + y",
        ),
        (
            nets.UNet(),
            ["image=float32[B=1:2:4, 3, H=16:32:64, W=18:30:66]"],
            "dimension 2 of input 'image' (H=16:32:64) must be a multiple of 4; "
            "dimension 3 of input 'image' (W=18:30:66) must be a multiple of 4",
            ["image=float32[B=1:2:4, 3, H=16:32:64%4, W=20:32:64%4]"],
            "self.up(down) + image",
        ),
        (
            nets.MultipleOfFour(),
            ["x=float32[B=1:6:30, 16]"],
            "dimension 0 of input 'x' (B=1:6:30) must be a multiple of 4",
            ["x=float32[B=4:8:28%4, 16]"],
            "x.view(-1, 4, 16)",
        ),
        (
            nets.AtMost(),
            ["x=float32[B=1:4:8, T=2:64:512, 16]"],
            "dimension 1 of input 'x' (T=2:64:512) must be at most 128",
            ["x=float32[B=1:4:8, T=2:64:128, 16]"],
            "self.positions.weight",
        ),
    ],
)
def test_forced_sizes_come_with_a_spec_that_works(
    module: torch.nn.Module, inputs: list[str], said: str, works: list[str], line: str
) -> None:
    with pytest.raises(ExportError) as caught:
        go(module, *inputs)
    assert said in caught.value.what
    assert "nets.py" in (caught.value.where or "") and line in (caught.value.where or "")
    for text in works:
        assert f"--input '{text}'" in (caught.value.fix or "")
    go(module, *works)


def test_data_dependent_branch() -> None:
    with pytest.raises(ExportError, match="data-dependent") as caught:
        go(nets.DataDependent(), "x=float32[1:4:8]")
    assert "nets.py" in (caught.value.where or "")
    assert "torch.where" in (caught.value.fix or "")


def test_mutated_buffers_are_refused_by_name() -> None:
    with pytest.raises(ExportError, match="changes its buffer 'calls'"):
        go(nets.Stateful(), "x=float32[4]")


def test_wrong_dtype() -> None:
    with pytest.raises(ExportError, match="must have the same dtype") as caught:
        go(nets.hybrid(), "x=int64[1:4:8, 5, 16]")
    assert "x=int64[1:4:8, 5, 16]" in (caught.value.fix or "")


def test_wrong_static_size() -> None:
    with pytest.raises(ExportError) as caught:
        go(nets.hybrid(), "x=float32[1:4:8, 5, 17]")
    assert "fails in eager PyTorch too" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (["x=float32[4]"], "no input is given for 'y'; given: 'x'"),
        (["x=float32[4]", "y=float32[4]", "float32[4]"], "3 inputs are given, but `forward` takes 2"),
        (["x=float32[4]", "x=float32[4]"], "the input 'x' is given twice"),
        (["x=float32[4]", "yy=float32[4]"], "`forward` has no parameter 'yy'"),
        (["x=float32[B, 4]", "y=float32[4]"], "'B' has no range"),
    ],
)
def test_inputs_must_match_forward(inputs: list[str], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        go(nets.TwoInputs(), *inputs)
    assert said in caught.value.what


def test_inputs_by_name_in_any_order_and_by_position() -> None:
    by_name = export_model(nets.TwoInputs(), [parse_input("y=float32[B=1:2:3, 4]"), parse_input("x=float32[B, 4]")])
    assert [i.name for i in by_name.inputs] == ["x", "y"]
    by_position = export_model(nets.TwoInputs(), [parse_input("float32[4]"), parse_input("float32[4]")])
    assert [i.name for i in by_position.inputs] == ["x", "y"]


def test_training_mode_is_ended_with_a_word() -> None:
    module = nets.ConvNet().train()
    exported = export_model(module, [parse_input("image=float32[1:2:4, 3, 16, 16]")])
    assert not module.training
    assert any("training mode" in note for note in exported.notes)


def test_unused_inputs_are_told() -> None:
    class Half(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 2

    exported = export_model(Half(), [parse_input("float32[4]"), parse_input("float32[4]")])
    assert "the model does not use its input 'y'" in exported.notes


def test_equal_opt_sizes_stay_different_dimensions() -> None:
    class Outer(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x[:, None] * y[None, :]

    exported = export_model(Outer(), [parse_input("x=float32[M=1:4:8]"), parse_input("y=float32[N=1:4:8]")])
    assert {r.name for r in symbol_ranges(exported.program, exported.inputs).values()} == {"M", "N"}


def test_output_names() -> None:
    class Nested(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return {"a": (x, x + 1), "b": x * 2}, x.sum()

    names = export_model(Nested(), [parse_input("x=float32[4]")]).output_names
    assert names == ("output_0.a.0", "output_0.a.1", "output_0.b", "output_1")
    with pytest.raises(SpecError, match="2 output names are given, but the model returns 4 tensors"):
        export_model(Nested(), [parse_input("x=float32[4]")], output_names=["p", "q"])
    single = export_model(
        nets.TwoInputs(), [parse_input("float32[4]"), parse_input("float32[4]")], output_names=["sum"]
    )
    assert single.output_names == ("sum",)


def test_outputs_must_be_tensors() -> None:
    class Number(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return x, 3

    with pytest.raises(ExportError, match="output 'output_1' is not a tensor"):
        go(Number(), "x=float32[4]")


class Recurrent(torch.nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, kind)(4, 6, 2, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "bidirectional": True}, {"bias": False}])
def test_recurrent_layers_take_any_length(kind: str, options: dict[str, bool]) -> None:
    net = Recurrent(kind, **options).eval()
    before = dict(getattr(torch.ops.aten, {"RNN": "rnn_tanh"}.get(kind, kind.lower())).input.py_kernels)
    model = export_model(net, [parse_input("x=float32[B=1:8:32, T=1:16:64, 4]")])
    assert sorted(r.name or "" for r in symbol_ranges(model.program, model.inputs).values()) == ["B", "T"]
    for shape in ((1, 2, 4), (32, 64, 4), (5, 17, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(model.program.module()(x=x), net(x))
    layer = getattr(torch.ops.aten, {"RNN": "rnn_tanh"}.get(kind, kind.lower())).input
    assert dict(layer.py_kernels) == before, "torch is left as it was"
    # Training goes through the tables that were replaced meanwhile.
    x = torch.randn(3, 5, 4, requires_grad=True)
    net(x).sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


def test_sizes_are_kept_as_they_were_declared() -> None:
    model = export_model(Recurrent("LSTM").eval(), [parse_input("x=float32[B=1:8:32, T=2:16:64, 4]")])
    value = next(n for n in model.program.graph.nodes if n.name == "x").meta["val"]
    with pytest.raises(SizesNarrowed, match="narrowed to"), sizes_kept(model.program):
        bool(value.shape[1] == 7)
        int(value.shape[1])
    assert isinstance(value.shape[1], torch.SymInt) and value.shape[1].node.expr.free_symbols
