"""Warm-up requests: real samples, in files that the server reads when it loads a model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from builder.errors import RepositoryError
from builder.types import DTYPES, canonical_dtype

if TYPE_CHECKING:
    import numpy as np

__all__ = ["WARMUP_DIRECTORY", "WarmupSample", "WarmupTensor", "item_size"]

# Where the server looks, below the model's directory.
WARMUP_DIRECTORY = "warmup"


@dataclass(frozen=True, slots=True)
class WarmupTensor:
    """One input of a warm-up request, as bytes, since numpy has no bfloat16.

    Args:
        dtype: PyTorch's name ("int64", "bfloat16").
        shape: the shape that the model takes; () for a scalar.
        data: the elements, row-major and little-endian.
    Raises:
        RepositoryError: when the dtype is unknown or the size does not fit dtype and shape.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise RepositoryError(f"a warm-up tensor has the unknown dtype {self.dtype!r}")
        expected = prod(self.shape) * item_size(self.dtype)
        if len(self.data) != expected:
            raise RepositoryError(
                f"a warm-up tensor {self.dtype}{list(self.shape)} needs {expected} bytes, got {len(self.data)}"
            )

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any]) -> WarmupTensor:
        """The array's dtype, shape and elements.

        Raises:
            RepositoryError: when Triton has no such dtype.
        """
        # By name: the text of a dtype in the other byte order is ">i4".
        dtype = canonical_dtype(array.dtype.name)
        if dtype is None:
            raise RepositoryError(f"a warm-up array has the unknown dtype {array.dtype}")
        return cls(dtype, array.shape, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One request that the server runs when it loads the model: a tensor for every input, by name.

    The server makes a batch by repeating a request: `batch_size` says how often.
    """

    name: str
    tensors: Mapping[str, WarmupTensor]
    batch_size: int = 1

    def as_batch(self, limit: int) -> WarmupSample:
        """The same sizes as a batch of the first row, of `limit` rows at most."""
        rows = {}
        for name, tensor in self.tensors.items():
            size, shape = tensor.shape[0], tensor.shape[1:]
            rows[name] = WarmupTensor(tensor.dtype, shape, tensor.data[: len(tensor.data) // size])
        return WarmupSample(self.name, rows, min(size, limit))

    def file_name(self, input_name: str) -> str:
        """The file under `warmup/` with the data of one input.

        A digest is part of the name: a config.pbtxt, old or new, then never finds other data under it, so that files can be
        added before the config that names them, and an older version can be served again.
        """
        tensor = self.tensors[input_name]
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        digest = hashlib.sha256(f"{tensor.dtype} ".encode() + tensor.data).hexdigest()[:8]
        return f"{quote(self.name, safe='')}@{quote(input_name, safe='')}@{shape}@{digest}"


def item_size(dtype: str) -> int:
    """Bytes of one element."""
    bits = re.search(r"\d+$", dtype)
    return int(bits[0]) // 8 if bits else 1
