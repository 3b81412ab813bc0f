"""Real architectures, built from their configurations with random weights; sources for `triton-repo build`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["INPUTS"]

# What each takes. Ranges are as wide as two cores can verify in seconds.
INPUTS: dict[str, tuple[str, ...]] = {
    "resnet": ("pixel_values=float32[B=1:2:4, 3, H=64:96:160%32, W=64:96:160%32]",),
    "convnext": ("pixel_values=float32[B=1:2:4, 3, H=64:96:160%32, W=64:96:160%32]",),
    "vit": ("pixel_values=float32[B=1:2:4, 3, 224, 224]",),
    "bert": ("input_ids=int64[B=1:2:4, T=8:32:128] in 0..30521", "attention_mask=int64[B, T] in 0..1"),
    "gpt2": ("input_ids=int64[B=1:2:4, T=2:32:128] in 0..50256",),
    "t5_encoder": ("input_ids=int64[B=1:2:4, T=2:32:128] in 0..32127", "attention_mask=int64[B, T] in 0..1"),
    "whisper_encoder": ("input_features=float32[B=1:1:2, 80, 3000]",),
    "unet": ("x=float32[B=1:2:4, 3, H=32:64:96%16, W=32:64:96%16]",),
    "detr": ("pixel_values=float32[B=1:1:2, 3, H=64:96:160, W=64:96:160]",),
    "lstm": ("ids=int64[B=1:4:16, T=1:32:128] in 0..999",),
    "mtcnn_proposals": ("x=float32[B=1:2:4, 3, H=12:48:96%2, W=12:48:96%2]",),
    "mtcnn_refinement": ("x=float32[N=1:16:64, 3, 24, 24]",),
    "minilm": ("input_ids=int64[B=1:8:32, T=8:64:256] in 0..30521", "attention_mask=int64[B, T] in 0..1"),
}


def _made(architecture: str, config: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, architecture)(config).eval()


def resnet() -> nn.Module:
    """ResNet-50."""
    from transformers import ResNetConfig

    return _made("ResNetForImageClassification", ResNetConfig(num_labels=1000))


def convnext() -> nn.Module:
    """ConvNeXt-T."""
    from transformers import ConvNextConfig

    return _made("ConvNextForImageClassification", ConvNextConfig(num_labels=1000))


def vit() -> nn.Module:
    """ViT-B/16."""
    from transformers import ViTConfig

    return _made("ViTForImageClassification", ViTConfig(num_labels=1000))


def bert() -> nn.Module:
    """BERT base."""
    from transformers import BertConfig

    return _made("BertModel", BertConfig())


def gpt2() -> nn.Module:
    """GPT-2 small, without a cache."""
    from transformers import GPT2Config

    return _made("GPT2Model", GPT2Config(use_cache=False))


def t5_encoder() -> nn.Module:
    """The encoder of T5 small."""
    from transformers import T5Config

    return _made("T5EncoderModel", T5Config(use_cache=False))


def whisper_encoder() -> nn.Module:
    """The encoder of Whisper tiny."""
    from transformers import WhisperConfig

    config = WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return _made("WhisperModel", config).get_encoder()


def detr() -> nn.Module:
    """DETR with a ResNet-50."""
    from transformers import DetrConfig, ResNetConfig

    backbone = ResNetConfig(out_features=["stage4"])
    config = DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone)
    return _made("DetrForObjectDetection", config)


class _Double(nn.Sequential):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )


class UNet(nn.Module):
    """Ronneberger et al. 2015, four levels, with padding."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(5)]
        self.down = nn.ModuleList(_Double(3 if i == 0 else widths[i - 1], w) for i, w in enumerate(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(_Double(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            if block is not self.down[-1]:
                x = nn.functional.max_pool2d(x, 2)
        for up, merge, skip in zip(self.up, self.merge, reversed(kept[:-1]), strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.head(x)


def unet() -> nn.Module:
    """U-Net."""
    torch.manual_seed(0)
    return UNet().eval()


class Tagger(nn.Module):
    """A bidirectional LSTM that tags each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 128, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(256, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(ids))[0]).log_softmax(-1)


def lstm() -> nn.Module:
    """A tagger."""
    torch.manual_seed(0)
    return Tagger().eval()


class Proposals(nn.Module):
    """The first net of MTCNN (Zhang et al. 2016): faces in an image of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 10, 3),
            nn.PReLU(10),
            nn.MaxPool2d(2, 2, ceil_mode=True),
            nn.Conv2d(10, 16, 3),
            nn.PReLU(16),
            nn.Conv2d(16, 32, 3),
            nn.PReLU(32),
        )
        self.face, self.box = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        return self.box(x), self.face(x).softmax(1)


def mtcnn_proposals() -> nn.Module:
    """P-Net."""
    torch.manual_seed(0)
    return Proposals().eval()


class Refinement(nn.Module):
    """The second net of MTCNN: which of the proposals are faces."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 28, 3),
            nn.PReLU(28),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(28, 48, 3),
            nn.PReLU(48),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(48, 64, 2),
            nn.PReLU(64),
        )
        self.dense, self.act = nn.Linear(576, 128), nn.PReLU(128)
        self.face, self.box = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x).permute(0, 3, 2, 1)
        x = self.act(self.dense(x.reshape(x.shape[0], -1)))
        return self.box(x), self.face(x).softmax(1)


def mtcnn_refinement() -> nn.Module:
    """R-Net."""
    torch.manual_seed(0)
    return Refinement().eval()


def minilm() -> nn.Module:
    """The sentence encoder of examples/, with its real weights."""
    from examples.minilm import load

    return load()


class _Hybrid(nn.Module):
    """A small BERT between whose halves stands an operator that no compiler has."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig

        config = BertConfig(
            vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
        )
        bert = _made("BertModel", config)
        self.embeddings = bert.embeddings
        self.first, self.second = nn.ModuleList(bert.encoder.layer[:2]), nn.ModuleList(bert.encoder.layer[2:])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(input_ids)
        for layer in self.first:
            x = _tensor(layer(x))
        x = torch.special.bessel_j0(x)
        for layer in self.second:
            x = _tensor(layer(x))
        return x


def _tensor(output: Any) -> torch.Tensor:
    """A layer's tensor: some releases of transformers return a tuple."""
    return output[0] if isinstance(output, tuple) else output


def hybrid() -> nn.Module:
    """Two engine segments around one that PyTorch runs."""
    return _Hybrid().eval()
