"""Have weights changed since an engine took them?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["WeightWatch"]


class WeightWatch:
    """Remembers tensors by identity, version and place in memory.

    Every change in place that PyTorch knows of counts a version up: optimizers, `load_state_dict`, `copy_`. What goes
    through `.data` or `.detach()` has another counter or none, and cannot be seen.

    Args:
        tensors: as the engines have them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._seen = [(tensor, _version(tensor), tensor.data_ptr()) for tensor in tensors]
        self._counted = all(version >= 0 for _, version, _ in self._seen)

    def changed(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether any of them is another, or holds other values."""
        if not self._counted:
            return any(map(_differs, tensors, self._seen))
        # The same without calls: this is asked at every call of a model.
        for tensor, (seen, version, address) in zip(tensors, self._seen, strict=True):
            if tensor is not seen or tensor._version != version or tensor.data_ptr() != address:
                return True
        return False

    def changes(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Which of them may have changed: batch normalisation in training mode writes into buffers that no counter tells of."""
        return [
            index
            for index, (tensor, seen) in enumerate(zip(tensors, self._seen, strict=True))
            if _differs(tensor, seen) or not isinstance(tensor, torch.nn.Parameter)
        ]


def _version(tensor: torch.Tensor) -> int:
    """-1 for a tensor made under inference_mode, which has no counter."""
    return -1 if tensor.is_inference() else tensor._version


def _differs(tensor: torch.Tensor, seen: tuple[torch.Tensor, int, int]) -> bool:
    known, version, address = seen
    return tensor is not known or _version(tensor) != version or tensor.data_ptr() != address
