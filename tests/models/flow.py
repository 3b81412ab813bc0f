"""What torch.export keeps of Python: branches, loops, updates in place, sizes that depend on the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.scan import scan


class Branches(nn.Module):
    """One of two layers, by the values of the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: self.one(t).relu(), lambda t: self.other(t) - 1, (x,)) + 1


class Loop(nn.Module):
    """The same, some times."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def more(count: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return count < 3

        def step(count: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return count + 1, torch.tanh(value) * 2

        count, value = while_loop(more, step, (torch.zeros((), dtype=torch.int64), x * 2))
        return value + count


class Scanned(nn.Module):
    """A recurrence that is written out."""

    def forward(self, x: torch.Tensor) -> Any:
        def step(state: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            state = torch.tanh(state + value)
            return state, state * 2

        return scan(step, torch.zeros_like(x[:, 0]), x, dim=1)


class InPlace(nn.Module):
    """Writes into what it has computed, and into a view of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[:, 0] = 0
        y.mul_(3)
        flat = y.view(-1)
        flat += 1
        return y


class Selected(nn.Module):
    """As many rows as there are with a positive sum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, 8)
        return rows[rows.sum(-1) > 0].sin() * 2


class Kept(nn.Module):
    """Sorted elements above zero, and where they are."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[x > 0].sort()[0], (x > 0).nonzero()


class Optional(nn.Module):
    """Can do without its second argument."""

    def forward(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return x.exp() if y is None else x + y


class Numbers(nn.Module):
    """A tensor without dimensions, and a number."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor, power: int) -> tuple[torch.Tensor, torch.Tensor]:
        return x**power * scale, scale + 1
