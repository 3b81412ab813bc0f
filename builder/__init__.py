"""Turn a PyTorch model into a complete Triton Inference Server model repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.errors import BuilderError
from builder.inputs import Constant, Input
from builder.types import Range

if TYPE_CHECKING:
    from builder.library import build, compile, load, plan, publish, save
    from builder.settings import Settings

__all__ = [
    "BuilderError",
    "Constant",
    "Input",
    "Range",
    "Settings",
    "build",
    "compile",
    "load",
    "plan",
    "publish",
    "save",
]

_LIBRARY = frozenset({"build", "compile", "load", "plan", "publish", "save"})


def __getattr__(name: str) -> Any:
    """The rest needs torch or pydantic, which the command's `--help` must not wait for."""
    if name in _LIBRARY:
        from builder import library

        return getattr(library, name)
    if name == "Settings":
        from builder.settings import Settings

        return Settings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
