"""Engines have no backward pass: where gradients are wanted, PyTorch computes them again from the inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["wants_gradients", "with_gradients"]

Function = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], "list[torch.Tensor]"]


def wants_gradients(*groups: Sequence[torch.Tensor]) -> bool:
    """Whether any tensor takes gradients."""
    return any(tensor.requires_grad for group in groups for tensor in group)


def with_gradients(
    compiled: Function, reference: Function, tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The outputs of engines, with PyTorch's gradients.

    Args:
        compiled: gives outputs for tensors and weights.
        reference: the same in PyTorch; called once more in the backward pass, so that memory between the passes holds
            inputs alone.
        tensors, weights: of the call.
    """
    forward = functools.partial(compiled, tensors, weights)
    outputs: tuple[torch.Tensor, ...] = _Recomputed.apply(  # type: ignore[no-untyped-call]
        forward, reference, len(tensors), *tensors, *weights
    )
    return list(outputs)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, compiled: Callable[[], list[torch.Tensor]], reference: Function, count: int, *given: torch.Tensor
    ) -> Any:
        ctx.reference = reference
        ctx.count = count
        ctx.save_for_backward(*given)
        outputs = compiled()
        ctx.mark_non_differentiable(*(o for o in outputs if not o.is_floating_point()))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        given = ctx.saved_tensors
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in given]
        with torch.enable_grad():
            outputs = ctx.reference(inputs[: ctx.count], inputs[ctx.count :])
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad and g is not None]
        wanted = [t for t in inputs if t.requires_grad]
        found = torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
        results = iter(found)
        return (None, None, None, *(next(results) if t.requires_grad else None for t in inputs))
