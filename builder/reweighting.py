"""Exported programs with other tensors as their weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from builder.tracing import own_name

__all__ = ["reweighted", "uses"]


def uses(program: torch.export.ExportedProgram, new: Mapping[str, torch.Tensor]) -> bool:
    """Whether a program has weights of these names."""
    return any(own_name(name) in new for name in (*program.state_dict, *program.constants))


def reweighted(program: torch.export.ExportedProgram, new: Mapping[str, torch.Tensor]) -> torch.export.ExportedProgram:
    """The same program with other tensors as its weights; the first one keeps its own."""
    other = copy.copy(program)
    other._state_dict = {n: _instead(t, new.get(own_name(n), t)) for n, t in program.state_dict.items()}
    other._constants = {n: _instead(t, new.get(own_name(n), t)) for n, t in program.constants.items()}
    return other


def _instead(old: Any, new: Any) -> Any:
    """A weight in the place of another, on the host; torch asks for a parameter where it had one."""
    if not isinstance(new, torch.Tensor):
        return new
    tensor = new if new.device.type == "cpu" else new.detach().cpu()
    if isinstance(old, torch.nn.Parameter) and not isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor.detach(), requires_grad=old.requires_grad)
    return tensor
