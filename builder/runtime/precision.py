"""The precision of float32 on a GPU."""

from __future__ import annotations

__all__ = ["keep_float32"]


def keep_float32() -> None:
    """Have cuDNN compute float32 convolutions and recurrent layers in float32, in this whole process.

    torch's default there is TF32, with errors near 1e-3, where the CPU that a model is compared with has
    1e-6. For matrix products torch's default is float32 already.
    """
    import torch

    torch.backends.cudnn.allow_tf32 = False
