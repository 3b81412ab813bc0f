"""Models of the benchmarks, each with a fine-tuned twin: the same architecture with other weights."""

from __future__ import annotations

import torch
from torch import nn

from tests.models.nets import Block

WIDTH = 128


class Transformer(nn.Module):
    """Twelve blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH) for _ in range(12)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.embed(x))


def _tuned(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1e-3 * torch.randn(parameter.shape, generator=generator))
    return model


def minilm() -> nn.Module:
    """The sentence encoder of examples/."""
    from examples.minilm import load

    return load()


def minilm_tuned() -> nn.Module:
    """The same, fine-tuned."""
    return _tuned(minilm())


def transformer() -> nn.Module:
    """Twelve blocks."""
    torch.manual_seed(0)
    return Transformer().eval()


def transformer_tuned() -> nn.Module:
    """The same, fine-tuned."""
    return _tuned(transformer())


class Separated(nn.Module):
    """Twelve equal blocks with an operator between them that is left to PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(64) for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.special.bessel_j0(block(x))
        return x


def separated() -> nn.Module:
    """Twelve equal blocks."""
    torch.manual_seed(0)
    return Separated().eval()
