"""The packages that build, by version."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform

import torch

__all__ = ["installed_versions", "tool_version"]

_RECORDED = ("triton-repo-builder", "onnx", "onnxscript", "onnxruntime", "tensorrt_rtx", "tensorrt", "numpy")


def installed_versions() -> dict[str, str]:
    """Versions of Python, torch and the packages that can decide what is built."""
    # torch's own version tells a CPU build from one for CUDA; its package's may not.
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in _RECORDED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def tool_version() -> str:
    """The version of this package."""
    return importlib.metadata.version("triton-repo-builder")
