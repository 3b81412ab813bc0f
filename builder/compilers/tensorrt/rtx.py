"""What only TensorRT-RTX has."""

from __future__ import annotations

from typing import Any

from builder.errors import SpecError

__all__ = ["set_compute_capabilities"]


def set_compute_capabilities(trt: Any, config: Any, names: tuple[str, ...]) -> None:
    """Build for GPUs of these compute capabilities alone.

    Args:
        names: "8.6", "12.0", ...
    Raises:
        SpecError: for one that this release does not know.
    """
    known = trt.ComputeCapability.__members__
    possible = {f"{member[2:-1]}.{member[-1]}": member for member in known if member.startswith("SM")}
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        if name not in possible or not config.set_compute_capability(known[possible[name]], index):
            raise SpecError(
                f"this TensorRT-RTX does not build for compute capability {name!r}",
                where="settings.tensorrt.compute_capabilities",
                fix=f"use those of {', '.join(possible)}, or leave it out to build for all that it runs on",
            )
