"""A network with an operator of its own, as extensions register them."""

from __future__ import annotations

import torch
from torch import nn


@torch.library.custom_op("triton_repo_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Net(nn.Module):
    """A linear layer around it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.triton_repo_tests.twice(self.layer(x)).relu()


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()
