"""Exchanging operators gives what `run_decompositions` gives, and leaves to it whatever it should."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram

from builder import functional as functional_module
from builder.functional import functional
from builder.tracing import quiet_torch, reshape_instead_of_view

aten = torch.ops.aten


class Of(torch.nn.Module):
    """A function as a module, with a weight."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.randn(8, 8))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def exported(function: Callable[..., Any]) -> ExportedProgram:
    dims = {0: Dim("B", min=1, max=8), 1: Dim("T", min=2, max=16)}
    with quiet_torch(), torch.no_grad():
        return torch.export.export(
            Of(function).eval(), (torch.randn(3, 5, 8),), dynamic_shapes={"x": dims}, strict=False
        )


def operators(program: ExportedProgram) -> collections.Counter[str]:
    reshape_instead_of_view(program)
    return collections.Counter(str(n.target) for n in program.graph.nodes if n.op == "call_function")


EXCHANGED: dict[str, Callable[..., Any]] = {
    "nothing": lambda self, x: torch.relu(x @ self.weight),
    "linear and softmax": lambda self, x: torch.softmax(torch.nn.functional.linear(x, self.weight), -1),
    "attention": lambda self, x: torch.nn.functional.scaled_dot_product_attention(x, x, x) + 1,
    "dropout": lambda self, x: torch.nn.functional.dropout(x * 2, 0.1, training=False) + 1,
    "reshape": lambda self, x: x.reshape(x.shape[0], -1, 4, 2).transpose(1, 2).reshape(x.shape[0], -1) * 2,
    "flatten": lambda self, x: x.mean(1).unsqueeze(-1).flatten(1) * 2,
    "flatten of the last": lambda self, x: x.reshape(x.shape[0], x.shape[1], 4, 2).flatten(2) * 2,
    "to another dtype": lambda self, x: (x.to(torch.float64) * 2).to(torch.float32) + 1,
    "to the same dtype": lambda self, x: (x * 2).to(torch.float32) + 1,
    "to the same device": lambda self, x: (x * 2).to("cpu") + 1,
    "expand as": lambda self, x: x[:, :1].expand_as(x) * x,
    "contiguous": lambda self, x: x.transpose(0, 1).contiguous() * 2,
    "one after the other": lambda self, x: _chained(x * 2) + 1,
    "several views": lambda self, x: x.unsqueeze(1).permute(0, 2, 1, 3).squeeze(2)[..., 1:] * 2,
    "chunks of one": lambda self, x: torch.split(x, 4, dim=-1)[1] * 2,
    "a size": lambda self, x: x.sum(1) / x.shape[1] * (x.shape[0] * 2 + 1),
}

LEFT: dict[str, Callable[..., Any]] = {
    "in place": lambda self, x: (x * 2).add_(1) * 3,
    "in place, through a view": lambda self, x: _written(x * 2),
    "a buffer": lambda self, x: _counted(self, x),
    "batch norm": lambda self, x: torch.nn.functional.batch_norm(x.transpose(1, 2), self.weight[0], self.weight[1]),
    "a size that depends on data": lambda self, x: torch.nonzero(x > 0) * 2,
    "a branch": lambda self, x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
    "an output that is exchanged": lambda self, x: torch.nn.functional.dropout(x * 2, 0.1, training=False),
    "chunk": lambda self, x: torch.chunk(x, 2, dim=-1)[0] * 2,
    "detach": lambda self, x: (x * 2).detach() + 1,
    "a constant": lambda self, x: x + torch.tensor([1.0, 2.0] * 4),
    "a copy": lambda self, x: (x * 2).to(torch.float32, copy=True) + 1,
}


def _chained(x: torch.Tensor) -> torch.Tensor:
    """Each takes what another one gave that is exchanged too."""
    dropped = torch.nn.functional.dropout(x.to(torch.float32).to("cpu"), 0.1, training=False)
    wide = dropped.to(torch.float32).to(torch.float64).contiguous()
    other = wide[:, :1].contiguous().to(torch.float64).expand_as(wide.contiguous())
    return (wide + other).unsqueeze(-1).to(torch.float32).contiguous().flatten(2).to(torch.float32)


def _written(x: torch.Tensor) -> torch.Tensor:
    x[:, 0] = 0.0
    return x + 1


def _counted(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.count.add_(1)
    return x + self.count


@pytest.mark.parametrize("name", sorted(EXCHANGED))
def test_the_same_operators_and_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    program = exported(EXCHANGED[name])
    with quiet_torch(), torch.no_grad():
        expected = copy.deepcopy(program).run_decompositions({})
        monkeypatch.setattr(ExportedProgram, "run_decompositions", None)
        found = functional(program)
    assert found.dialect == expected.dialect == "ATEN"
    assert _on_tensors(found) == _on_tensors(expected)
    assert not {n.target for n in found.graph.nodes} & {aten.dropout.default, aten.to.dtype, aten.flatten.using_ints}
    for node in found.graph.nodes:
        assert node.op == "output" or "val" in node.meta
    x = torch.randn(7, 11, 8)
    with torch.no_grad():
        torch.testing.assert_close(found.module()(x), expected.module()(x), rtol=0, atol=0)


def _on_tensors(program: ExportedProgram) -> collections.Counter[str]:
    """Without what is computed of sizes, which may be read once or for each use, and without copies."""
    found = operators(program).items()
    return collections.Counter({k: v for k, v in found if "aten." in k and "sym_size" not in k and "clone" not in k})


@pytest.mark.parametrize("name", sorted(LEFT))
def test_what_needs_a_second_trace_gets_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = exported(LEFT[name])
    before = operators(copy.deepcopy(program))
    decomposed = []
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda self, table: decomposed.append(self) or self)
    assert functional(program) is program and decomposed == [program]
    assert operators(program) == before, "nothing was changed"


def test_every_plan_is_tried() -> None:
    targets = {n.target for f in EXCHANGED.values() for n in exported(f).graph.nodes}
    assert {t for t in functional_module._PLANS if t not in targets} <= {aten.to.device, aten.to.dtype_layout}
