"""Turn a PyTorch model into a complete Triton Inference Server model repository."""

from __future__ import annotations

from builder.errors import BuilderError
from builder.inputs import Input
from builder.types import Range

__all__ = ["BuilderError", "Input", "Range"]
