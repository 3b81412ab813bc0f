"""Arguments that hold tensors in lists, dicts and dataclasses, and arguments that are no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from builder.errors import SpecError
from builder.export import export_model
from builder.inputs import Constant, Input, parse_input
from builder.signature import match_inputs
from builder.symbols import symbol_ranges


@dataclass
class Batch:
    """What a tokenizer gives."""

    ids: torch.Tensor
    mask: torch.Tensor | None = None
    scale: float = 1.0


class Pair(NamedTuple):
    """Two tensors."""

    left: torch.Tensor
    right: torch.Tensor


class Nested(torch.nn.Module):
    def forward(
        self,
        batch: Batch,
        features: list[torch.Tensor],
        extra: dict[str, Pair],
        pair: tuple[torch.Tensor, float],
        causal: bool = False,
        unused: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        assert isinstance(batch, Batch) and isinstance(features, list) and isinstance(pair, tuple)
        x = batch.ids.float() * batch.scale + sum(features)
        if batch.mask is not None:
            x = x * batch.mask
        if causal:
            x = x.cumsum(1)
        return {"sum": x + extra["a"].left - extra["a"].right, "pair": pair[0] * pair[1]}


GIVEN = [
    "batch.ids=int64[B=1:2:4, T=2:5:9] in 0..9",
    "batch.scale=0.5",
    "features.1=float32[B, T]",
    "features.0=float32[B, T]",
    "extra.a.left=float32[B, T]",
    "extra.a.right=float32[B, T]",
    "pair.0=float32[3]",
    "pair.1=2.5",
    "causal=True",
]
NAMES = ["batch.ids", "features.0", "features.1", "extra.a.left", "extra.a.right", "pair.0"]


def test_parts_are_inputs_of_their_own() -> None:
    net = Nested().eval()
    model = export_model(net, [parse_input(t) for t in GIVEN])
    assert [i.name for i in model.inputs] == NAMES
    assert model.output_names == ("sum", "pair")
    assert {r.name for r in symbol_ranges(model.program, model.inputs).values()} == {"B", "T"}
    for b, t in ((1, 2), (4, 9), (3, 4)):
        ids, others = torch.randint(0, 9, (b, t)), [torch.randn(b, t) for _ in range(4)]
        pair = torch.randn(3)
        expected = net(Batch(ids, scale=0.5), others[:2], {"a": Pair(*others[2:])}, (pair, 2.5), causal=True)
        eager = model.eager([ids, *others, pair])
        traced = model.program.module()(ids, *others, pair)
        for name, value in expected.items():
            torch.testing.assert_close(eager[name], value)
            torch.testing.assert_close(traced[name], value)


@pytest.mark.parametrize(
    ("given", "said", "fix"),
    [
        (["batch.idz=int64[4, 5]"], "'batch' is a Batch, which has no field 'idz'", "did you mean 'batch.ids'?"),
        (["batch.mask=float32[4, 5]"], "nothing is given for 'ids'", "batch.ids=DTYPE"),
        (["batch=None", "batch.ids=int64[4, 5]"], "'batch' is given as a whole and in parts", "give it once"),
        (["features.0=float32[4]", "features.2=float32[4]"], "'features' has the elements 0, 2", "without a gap"),
        (["batch.ids=int64[4]", "batch.ids=int64[4]"], "'batch.ids' is given twice", "give it once"),
        (["bach.ids=int64[4]"], "`forward` has no parameter 'bach'", "did you mean 'batch'?"),
        (["batch.ids=int64[4]", "features.0=float32[4]"], "no input is given for 'extra', 'pair'", "extra=DTYPE"),
    ],
)
def test_what_does_not_fit(given: list[str], said: str, fix: str) -> None:
    begun = {t.partition(".")[0].partition("=")[0] for t in given}
    others = [t for t in GIVEN if t.partition(".")[0].partition("=")[0] not in begun]
    with pytest.raises(SpecError) as caught:
        match_inputs(Nested(), [parse_input(t) for t in (given if "for 'extra'" in said else given + others)])
    assert said in caught.value.what and fix in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flag=True", Constant(True, "flag")),
        ("flag=false", Constant(False, "flag")),
        ("mask=None", Constant(None, "mask")),
        ("scale=-0.5", Constant(-0.5, "scale")),
        ("options.count=3", Constant(3, "options.count")),
        ("mode='linear'", Constant("linear", "mode")),
        ("7", Constant(7)),
        ("steps=1:8:32", Input(integer=(1, 8, 32), name="steps")),
        ("0:0:4", Input(integer=(0, 0, 4))),
    ],
)
def test_scalars_as_text(text: str, expected: Input | Constant) -> None:
    assert parse_input(text) == expected
    assert parse_input(str(expected)) == expected


@pytest.mark.parametrize("text", ["steps=8:1:32", "steps=1:8", "mode=linear", "x=[1, 2]", "x=1:2:99999999999"])
def test_scalars_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SpecError):
        parse_input(text)


class Steps(torch.nn.Module):
    """A Python int decides a size."""

    def forward(self, x: torch.Tensor, steps: int, offset: float = 0.0) -> torch.Tensor:
        return x.unsqueeze(1).expand(-1, steps, -1) + torch.arange(steps)[None, :, None] + offset


def test_a_python_int_becomes_symbolic() -> None:
    net = Steps().eval()
    model = export_model(net, [parse_input("x=float32[B=1:2:4, 3]"), parse_input("steps=1:8:32")])
    assert {(r.name, r.min, r.opt, r.max) for r in symbol_ranges(model.program, model.inputs).values()} == {
        ("B", 1, 2, 4),
        ("steps", 1, 8, 32),
    }
    for steps in (1, 8, 32):
        x = torch.randn(2, 3)
        torch.testing.assert_close(model.program.module()(x, torch.tensor(steps)), net(x, steps))
        torch.testing.assert_close(model.eager([x, torch.tensor(steps)])["output"], net(x, steps))
