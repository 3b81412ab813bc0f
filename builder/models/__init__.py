"""Find a model from what the user typed."""

from __future__ import annotations

__all__ = ["FORMS"]

FORMS = (
    "MODEL is the name of a spec in examples/, a spec file (model.toml), package.module:callable, "
    "path/file.py:callable, an exported program (model.pt2), hf:ID_OR_DIR, torchvision:NAME or timm:NAME"
)
