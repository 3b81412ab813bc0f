"""What every source of a model gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from builder.inputs import Input

__all__ = ["LoadedModel"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A module, and the inputs that its source suggests where the user gives none.

    Args:
        module: to build.
        default_inputs: None where the source knows of none.
        notes: what the user should know of how it was loaded.
    """

    module: torch.nn.Module
    default_inputs: tuple[Input, ...] | None = None
    notes: tuple[str, ...] = ()
