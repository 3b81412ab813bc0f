"""Digests of files and tensors: blake3, which takes them at the speed of memory on all cores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import blake3

if TYPE_CHECKING:
    import torch

__all__ = ["CHUNK", "Digest", "file_digest", "is_dense", "tensor_bytes", "tensor_digest"]

# Bytes read at a time: enough for all cores, little beside a model.
CHUNK = 8 << 20


class Digest:
    """blake3 of bytes that arrive in parts."""

    def __init__(self) -> None:
        self._digest = blake3.blake3(max_threads=blake3.blake3.AUTO)

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._digest.update(data)

    def hexdigest(self) -> str:
        return str(self._digest.hexdigest())


def file_digest(path: Path) -> str:
    """blake3 of a file, as hexadecimal digits.

    Read, not mapped: a file that another process truncates meanwhile must not end this one.
    """
    digest = Digest()
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill one block of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of its elements in the order in which they lie in memory; without a copy where they lie together."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.numel() == 0:
        return memoryview(b"")
    if not is_dense(tensor):
        tensor = tensor.contiguous()
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def tensor_digest(tensor: torch.Tensor) -> str:
    """blake3 of the bytes of its elements in row-major order, as hexadecimal digits."""
    digest = Digest()
    digest.update(tensor_bytes(tensor.detach().contiguous()))
    return digest.hexdigest()
