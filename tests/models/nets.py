"""Small real networks that tests build. Seeded, so that every process has the same weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


class ConvNet(nn.Module):
    """Convolutions with dynamic batch, height and width; two outputs, one of them strided."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        stem = torch.relu(self.norm(self.stem(image)))
        features = stem + torch.relu(self.body(stem))
        return {"logits": self.head(features.mean((2, 3))), "features": features}


class Hybrid(nn.Module):
    """Two linear blocks around an operator that ONNX does not have; reshapes need sizes on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.second = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        hidden = torch.special.bessel_j0(self.norm(torch.relu(self.first(x))))
        return self.second(hidden.reshape(batch * length, 32)).reshape(batch, length, 8).softmax(-1)


class TwoInputs(nn.Module):
    """A sum of two inputs of one shape."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class MultipleOfFour(nn.Module):
    """Takes batches in fours."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 4, 16).sum(1)


class UNet(nn.Module):
    """Halves height and width twice and doubles them again, which works for multiples of four."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 3, 2, 2))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        down = self.down(image)
        return self.up(down) + image


class AtMost(nn.Module):
    """Positions up to 128."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(128, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.positions.weight[: x.shape[1]]


class Specialised(nn.Module):
    """A linear layer over a flattened shape, which fixes the length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


class DataDependent(nn.Module):
    """Branches on a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class Stateful(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls


def convnet() -> nn.Module:
    """With statistics that batch normalisation has not at the start."""
    torch.manual_seed(0)
    net = ConvNet()
    nn.init.normal_(net.norm.running_mean)
    nn.init.uniform_(net.norm.running_var, 0.5, 2.0)
    return net.eval()


def hybrid() -> nn.Module:
    torch.manual_seed(0)
    return Hybrid().eval()


def reseeded_hybrid() -> nn.Module:
    """The same architecture with other weights."""
    torch.manual_seed(1)
    return Hybrid().eval()


def first_half() -> nn.Module:
    """Only operators that every compiler takes."""
    torch.manual_seed(0)
    return FirstHalf().eval()


class FirstHalf(Hybrid):
    """`Hybrid` up to the operator that ONNX does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.first(x)))


def data_dependent() -> nn.Module:
    return DataDependent().eval()


class Permute(nn.Module):
    """Moves elements without arithmetic, so that it takes every dtype; one input and output is a scalar."""

    def forward(self, x: torch.Tensor, scalar: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([x.transpose(0, 1), x.transpose(0, 1)], dim=0), scalar.reshape(1).reshape(())


class Noise(nn.Module):
    """Gives another output every time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class Spectrum(nn.Module):
    """Complex values inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x * 2).abs() + 1


class Positive(nn.Module):
    """As many rows as there are positive elements."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0) * 2


class Resize(nn.Module):
    """Doubles height and width in two ways."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bilinear = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
        nearest = nn.functional.interpolate(x, size=(x.shape[2] * 2, x.shape[3] * 2), mode="nearest")
        return bilinear + nearest


class Lookup(nn.Module):
    """Knows ten ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class Transposed(nn.Module):
    """A transposed view in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.sin(x).transpose(1, 2)
        return torch.softmax(turned * 2 + torch.arange(x.shape[1]), -1)


class Block(nn.Module):
    """A transformer's block: attention over the length, and a small network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm_1(x)
        scores = self.query(y) @ self.key(y).transpose(1, 2) / self.query.out_features**0.5
        x = x + self.out(scores.softmax(-1) @ self.value(y))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Blocks(nn.Module):
    """Equal blocks with an operator between them that can be left to PyTorch."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(count))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = torch.special.bessel_j0(block(x))
        return self.head(x)


def four_blocks() -> nn.Module:
    torch.manual_seed(0)
    return Blocks(4, 16).eval()


class RenamedHybrid(nn.Module):
    """`Hybrid` as somebody else has written it."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = nn.LayerNorm(32)
        self.head = nn.Linear(32, 8)
        self.stem = nn.Linear(16, 32)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        rows, steps, _ = sequence.shape
        y = torch.special.bessel_j0(self.normalise(self.stem(sequence).relu()))
        return self.head(y.reshape(rows * steps, 32)).reshape(rows, steps, 8).softmax(-1)


def renamed_hybrid() -> nn.Module:
    torch.manual_seed(2)
    net = RenamedHybrid().eval()
    # What a constant folder, or one who merges equal weights, would stumble over.
    nn.init.zeros_(net.head.bias)
    nn.init.zeros_(net.stem.bias)
    nn.init.ones_(net.normalise.weight)
    return net


class Ordered(nn.Module):
    """Channels in the order of a weight: a compiler may fold its values into indices."""

    def __init__(self, *order: float) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, padding=1)
        self.register_buffer("positions", torch.arange(4))
        self.order = nn.Parameter(torch.tensor(order))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)[:, self.positions]
        return y[:, self.order.argsort()]


def ordered() -> nn.Module:
    torch.manual_seed(0)
    return Ordered(0.5, 0.1, 0.2, 0.4).eval()


def ordered_otherwise() -> nn.Module:
    torch.manual_seed(0)
    return Ordered(0.5, 0.2, 0.1, 0.4).eval()


def other_epsilon() -> nn.Module:
    """`hybrid` with another argument of one operator."""
    net = hybrid()
    net.norm.eps = 1e-3
    return net


class Recurrent(nn.Module):
    """A recurrent layer between others, over sequences of any length."""

    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(8, 12)
        self.layer = getattr(nn, kind)(12, 10, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(x).relu())[0])


def lstm() -> nn.Module:
    return Recurrent("LSTM")


class Viewed(nn.Module):
    """In eager PyTorch the reshape is a view, since relu gives the strides that it got; after an engine it is none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x.transpose(1, 2))
        return torch.special.bessel_j0(y.transpose(1, 2).reshape(x.shape[0], -1))


class Follows(nn.Module):
    """Sizes that follow from others: twice as long, one more."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.special.bessel_j0(x.repeat(1, 2) + y).cumsum(1), (m[:, :-1] * x).softmax(1)


@dataclass
class Batch:
    """Sequences and what is valid of them."""

    values: torch.Tensor
    mask: torch.Tensor | None = None


class Structured(nn.Module):
    """Takes a dataclass, a list, a Python int and options; gives a dict. Between linear layers is one that ONNX lacks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(
        self, batch: Batch, extra: list[torch.Tensor], copies: int, scale: float = 1.0, normalise: bool = False
    ) -> dict[str, torch.Tensor]:
        x = batch.values if batch.mask is None else batch.values * batch.mask.unsqueeze(-1)
        x = torch.special.bessel_j0(self.first(x + extra[0] - extra[1]) * scale)
        if normalise:
            x = x.softmax(-1)
        x = self.second(x).unsqueeze(1).expand(-1, copies, -1, -1)
        return {"copies": x + torch.arange(copies)[:, None, None], "mean": x.mean(1)}


def gru() -> nn.Module:
    return Recurrent("GRU")


def rnn() -> nn.Module:
    return Recurrent("RNN")
