"""What is to be published (`RepositoryPlan`), and what was (`Publication`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from builder.errors import RepositoryError
from builder.runtime.manifest import MANIFEST_NAME, Manifest
from builder.triton_options import TritonOptions
from builder.types import DTYPES, canonical_dtype

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CONFIG_NAME", "Publication", "RepositoryPlan", "WarmupSample", "WarmupTensor"]

CONFIG_NAME = "config.pbtxt"

# A leading dot hides the directory from people, not from the server. The Python backend of a server in
# the C locale cannot load a path that is not ASCII (seen on 2.51); the rest breaks URLs or paths.
_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


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
        expected = prod(self.shape) * _item_size(self.dtype)
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
    """One request that the server runs when it loads the model: a tensor for every input, by name."""

    name: str
    tensors: Mapping[str, WarmupTensor]

    def file_name(self, input_name: str) -> str:
        """The file under `warmup/` with the data of one input.

        The shape is part of the name: a config.pbtxt, old or new, then never finds a file of another
        size, so that files can be added before the config that names them.
        """
        shape = "x".join(map(str, self.tensors[input_name].shape)) or "scalar"
        return f"{quote(self.name, safe='')}@{quote(input_name, safe='')}@{shape}"


@dataclass(frozen=True, slots=True)
class RepositoryPlan:
    """A model, ready to be published.

    Args:
        manifest: of the new version; `files` is filled in when it is published.
        artifacts: existing source file per path relative to the version directory.
        texts: text content per path relative to the version directory ("model.py").
        triton: what the user set in config.pbtxt.
        warmup: samples, run in this order.
    Raises:
        RepositoryError: when the name cannot be a directory of a repository, or a path is taken twice,
            leaves the version directory, or is one that publishing writes itself.
    """

    manifest: Manifest
    artifacts: Mapping[str, Path]
    texts: Mapping[str, str]
    triton: TritonOptions = field(default_factory=TritonOptions)
    warmup: tuple[WarmupSample, ...] = ()

    def __post_init__(self) -> None:
        if not _MODEL_NAME.fullmatch(self.name):
            raise RepositoryError(
                f"{self.name!r} cannot be the name of a model: it is a directory and a part of a URL",
                fix="use letters, digits, '-', '_' and '.', not beginning with '.'",
            )
        _check_paths([*self.artifacts, *self.texts])

    @property
    def name(self) -> str:
        """The model's name, which is its directory in the repository."""
        return self.manifest.name

    @property
    def active_warmup(self) -> tuple[WarmupSample, ...]:
        """The samples to write; none when the user turned the warm-up off."""
        return self.warmup if self.triton.model_warmup else ()


@dataclass(frozen=True, slots=True)
class Publication:
    """A version in the repository.

    Args:
        name: the model's name.
        version: its number.
        path: its directory.
        created: False when the newest version already had this content and nothing was added.
        manifest: as it stands in the version directory.
        note: what the user should know (an edited config.pbtxt was kept); empty for nothing.
    """

    name: str
    version: int
    path: Path
    created: bool
    manifest: Manifest
    note: str = ""


def _item_size(dtype: str) -> int:
    bits = re.search(r"\d+$", dtype)
    return int(bits[0]) // 8 if bits else 1


def _check_paths(paths: Iterable[str]) -> None:
    taken = {CONFIG_NAME, MANIFEST_NAME}
    for text in paths:
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or not path.parts or path.as_posix() != text:
            raise RepositoryError(f"{text!r} is not a plain path relative to the version directory")
        if text in taken:
            raise RepositoryError(f"the version directory would hold {text!r} twice")
        taken.add(text)
