"""What clients send to a model with a function before it, in config.pbtxt and as warm-up."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from builder.preprocess import BYTES, Preprocessing, bytes_of
from builder.repository.config import ConfigSample, ConfigTensor
from builder.types import DTYPES

__all__ = ["example_samples", "seen_inputs"]


def seen_inputs(preprocessing: Preprocessing, *, batched: bool) -> Iterator[ConfigTensor]:
    """The inputs that config.pbtxt declares; in a batch without their first dimension."""
    for name, dtype, dims in preprocessing.spec.inputs:
        own = dims[1:] if batched else dims
        yield ConfigTensor(name, _data_type(dtype), own or (1,), reshaped=not own)


def example_samples(
    preprocessing: Preprocessing, max_batch_size: int
) -> Iterator[tuple[ConfigSample, dict[str, bytes]]]:
    """Each example as a warm-up request, and the files that it needs by name; its first row where requests are joined."""
    for index, example in enumerate(preprocessing.examples):
        name, size = f"example_{index}", 1
        tensors, files = [], {}
        for given, dtype, _ in preprocessing.spec.inputs:
            array = example[given]
            if max_batch_size:
                size = min(len(array), max_batch_size)
                array = array[0:1].reshape(array.shape[1:])
            data = bytes_of(array)
            # A name is never used for two contents.
            file = f"{name}@{hashlib.sha256(f'{given} {array.shape} '.encode() + data).hexdigest()[:16]}"
            files[file] = data
            tensors.append((given, _data_type(dtype), array.shape or (1,), file))
        yield ConfigSample(name, size, tuple(tensors)), files


def _data_type(dtype: str) -> str:
    return "TYPE_STRING" if dtype == BYTES else DTYPES[dtype].triton
