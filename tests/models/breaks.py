"""Models for `torch.compile`: without and with graph breaks of every kind."""

from __future__ import annotations

from typing import Any

import torch


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Hybrid(torch.nn.Module):
    """PyTorch in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.Linear(16, 16)
        self.after = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.special.bessel_j0(torch.relu(self.before(x))))


class Broken(Hybrid):
    """A graph break in the middle, and a size that is used behind it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.before(x))
        torch._dynamo.graph_break()
        return self.after(y) * x.shape[1]


@torch._dynamo.disable
def _in_numpy(y: torch.Tensor) -> Any:
    return y.numpy() * 2


class ThroughNumpy(Hybrid):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.from_numpy(_in_numpy(torch.relu(self.before(x)))))


@torch._dynamo.disable
def _untraced(y: torch.Tensor) -> torch.Tensor:
    return torch.cat([y, y], dim=1)


class ThroughPython(Hybrid):
    """What comes out of the break has another size than what went in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(_untraced(torch.relu(self.before(x))))
