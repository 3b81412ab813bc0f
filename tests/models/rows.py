"""Networks whose rows are independent, of the kinds that matter when requests are joined."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["Accumulator", "MaskedMean", "Scores"]


class Scores(nn.Module):
    """One number for each row, and one number from each: tensors with no dimension but the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.linear(x) * weight[:, None]
        return {"score": hidden.sum(1), "hidden": hidden}


class MaskedMean(nn.Module):
    """Rows of any length, whose filling a mask leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        weights = mask.unsqueeze(-1).float()
        embedded = self.embedding(ids) * weights
        return {"tokens": embedded, "mean": embedded.sum(1) / weights.sum(1).clamp(min=1)}


class Accumulator(nn.Module):
    """Carries a state from call to call."""

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> dict[str, torch.Tensor]:
        total = state + x
        return {"y": total * 2, "new_state": total}
