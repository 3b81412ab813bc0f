"""A function before a model: words to ids, by a vocabulary beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

VOCABULARY = {word: i + 1 for i, word in enumerate((Path(__file__).parent / "words.txt").read_text().split())}


def encode(text: np.ndarray) -> dict[str, np.ndarray]:
    """Texts, [B] of bytes, to ids and a mask, int64 [B, T]."""
    if any(not item for item in text):
        raise ValueError("a text is empty")
    words = [item.decode().split() for item in text]
    ids = np.zeros((len(words), max(2, max(map(len, words)))), np.int64)
    for row, found in enumerate(words):
        ids[row, : len(found)] = [VOCABULARY.get(word, 99) for word in found]
    return {"ids": ids, "mask": (ids > 0).astype(np.int64)}
