"""What an engine is valid for."""

from __future__ import annotations

import hashlib
import importlib
import json
import platform
from collections.abc import Mapping
from typing import Any

import torch

from builder.compilers.tensorrt.flavour import Flavour
from builder.settings import TensorRTSettings

__all__ = ["device_digest", "engine_target", "runs_here"]

# Compute capabilities that TensorRT-RTX takes: Turing, Ampere, Ada and consumer Blackwell, not data-centre Hopper.
_RTX_CAPABILITIES = {(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (12, 0), (12, 1)}

# TensorRT compares the GPU that loads an engine with the one that built it in these, not in its name alone.
_PROPERTIES = (
    "name",
    "major",
    "minor",
    "multi_processor_count",
    "total_memory",
    "L2_cache_size",
    "memory_bus_width",
    "shared_memory_per_block",
    "shared_memory_per_block_optin",
    "shared_memory_per_multiprocessor",
    "regs_per_multiprocessor",
    "is_integrated",
)


def engine_target(flavour: Flavour, settings: TensorRTSettings) -> Mapping[str, Any]:
    """Version, CUDA and GPU that an engine is built for. Part of the engine key.

    TensorRT builds for the GPU at hand, or with `hardware_compatibility` for all of a family. TensorRT-RTX builds for the GPUs of
    `compute_capabilities`, or for all that its release knows, on any operating system.
    """
    if flavour.installed:
        # The library's own word for its version: a package can be newer than what it brings.
        importlib.import_module(flavour.name)
    base: dict[str, Any] = {"device": "cuda", flavour.name: flavour.version, "machine": platform.machine()}
    if flavour.is_rtx:
        return {
            **base,
            **(
                {"compute_capabilities": sorted(settings.compute_capabilities)} if settings.compute_capabilities else {}
            ),
        }
    return {**base, "os": platform.system(), "cuda": str(torch.version.cuda), "gpu": _gpu(settings)}


def _gpu(settings: TensorRTSettings) -> Mapping[str, Any]:
    if not torch.cuda.is_available():
        return {}
    if settings.hardware_compatibility == "ampere_plus":
        return {"family": "ampere_plus"}
    if settings.hardware_compatibility == "same_compute_capability":
        return {"compute_capability": ".".join(map(str, torch.cuda.get_device_capability()))}
    return device_properties()


def device_properties() -> dict[str, Any]:
    """Of the present GPU, as far as torch tells."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {name: getattr(properties, name) for name in _PROPERTIES if hasattr(properties, name)}


def device_digest(flavour: Flavour) -> str:
    """Names the files that are of use to one version on one kind of GPU."""
    told = {"version": flavour.version, "cuda": str(torch.version.cuda), "gpu": device_properties()}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def runs_here(flavour: Flavour) -> tuple[bool, str]:
    """Whether engines can run on this machine, and what is in the way if not."""
    does = "it builds here, but running needs" if flavour.is_rtx else "it needs"
    if not torch.cuda.is_available():
        return False, f"{does} an NVIDIA GPU, and torch sees none"
    capability = torch.cuda.get_device_capability()
    if flavour.is_rtx and capability not in _RTX_CAPABILITIES:
        major, minor = capability
        return (
            False,
            f"it builds here, but {flavour.library} does not run on a GPU of compute capability {major}.{minor}",
        )
    return True, ""
