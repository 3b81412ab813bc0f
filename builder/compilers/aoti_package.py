"""Take the weights out of an AOTInductor package, and put others in.

A `.pt2` package is a zip archive without compression. With `package_constants_on_disk_format =
"binary_blob"` it holds `data/aotinductor/model/*.so`, the C++ source that the `.so` was made of, and one
file of weights. The source lists the weights in the order of that file, each one's bytes padded to 64
(not on CUDA alone); source: `AotCodeCompiler` in torch/_inductor/codecache.py, torch 2.11 to 2.14.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from builder.compilers.base import RefitError
from builder.errors import CompileError
from builder.hashing import is_dense, tensor_bytes
from builder.lowering.weights import dtype_name

__all__ = ["WEIGHTS_LIST", "PlacedWeight", "WeightsFile", "fill_package", "strip_package"]

WEIGHTS_LIST = "weights.json"

_ROOT = "model"

# Bytes at a time: what is written was just read for its checksum, and should still be in the processor's cache.
_CHUNK = 1 << 20
_WEIGHTS_SUFFIX = "_weights.blob"

# What an AOTInductor package consists of. Anything else could be a pickle, and is not passed on.
_MEMBERS = re.compile(
    r"(data/aotinductor/model/[\w.+-]+\.(so|cpp|json|cubin|hsaco|o|spv|ptx|fatbin)"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|\.format_version|\.storage_alignment)"
)


@dataclass(frozen=True, slots=True)
class PlacedWeight:
    """A weight and its place in the file of weights; offset and size in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    size: int

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has its dtype, shape and order of elements in memory."""
        return (
            dtype_name(tensor.dtype) == self.dtype
            and tuple(tensor.shape) == self.shape
            and tensor.stride() == self.strides
        )


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """The file of weights that was taken out of a package.

    Args:
        member: its name in the archive; empty where the package has none.
        size: in bytes.
        weights: what it holds, in order.
    """

    member: str
    size: int
    weights: tuple[PlacedWeight, ...]

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> WeightsFile:
        """From JSON.

        Raises:
            RefitError: when it is not what `write` writes.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            weights = tuple(
                PlacedWeight(**{**w, "shape": tuple(w["shape"]), "strides": tuple(w["strides"])})
                for w in data["weights"]
            )
            return cls(str(data["member"]), int(data["size"]), weights)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefitError(f"the engine's list of weights cannot be read: {error}", where=str(path)) from None


def strip_package(full: Path, package: Path, tensors: Mapping[str, torch.Tensor]) -> WeightsFile:
    """Write a package without its weights.

    Args:
        full: the package as AOTInductor wrote it.
        package: where it goes without weights.
        tensors: the weights that it was compiled with, by name.
    Raises:
        CompileError: when the weights are not where they should be.
    """
    with zipfile.ZipFile(full) as source, zipfile.ZipFile(package, "w") as target:
        members = {_inner(n): n for n in source.namelist()}
        blobs = [m for m in members if m.endswith(_WEIGHTS_SUFFIX)]
        for member, name in sorted(members.items()):
            if member not in blobs:
                _copy(source, name, target, member)
        if not blobs:
            return WeightsFile("", 0, ())
        code = "".join(source.read(n).decode() for m, n in members.items() if m.endswith(".wrapper.cpp"))
        size = source.getinfo(members[blobs[0]]).file_size
        placed = _placed(code, tensors, size)
        with source.open(members[blobs[0]]) as file:
            for weight in placed:
                file.seek(weight.offset)
                if file.read(weight.size) != tensor_bytes(tensors[weight.name]):
                    raise CompileError(
                        f"the weight {weight.name} is not where AOTInductor's package should have it",
                        fix="report this with the version of torch",
                    )
    return WeightsFile(blobs[0], size, placed)


def fill_package(package: Path, full: Path, contents: WeightsFile, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a package with weights.

    Args:
        package: without weights.
        full: where the complete one goes.
        contents: what `strip_package` returned for it.
        tensors: the weights by name.
    Raises:
        RefitError: when a weight is missing or has another dtype, shape or order in memory, or the
            package is none.
    """
    for weight in contents.weights:
        tensor = tensors.get(weight.name)
        if tensor is None or not weight.takes(tensor):
            found = "none" if tensor is None else f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
            raise RefitError(
                f"the engine wants a weight {weight.name} of {weight.dtype}{list(weight.shape)}, and there is {found}"
            )
    try:
        with zipfile.ZipFile(package) as source, zipfile.ZipFile(full, "w") as target:
            for name in source.namelist():
                _copy(source, name, target, _inner(name))
            if contents.member:
                with target.open(_entry(contents.member), "w", force_zip64=True) as file:
                    written = 0
                    for weight in contents.weights:
                        file.write(b"\0" * (weight.offset - written))
                        data = tensor_bytes(tensors[weight.name])
                        for start in range(0, len(data), _CHUNK):
                            file.write(data[start : start + _CHUNK])
                        written = weight.offset + len(data)
                    file.write(b"\0" * (contents.size - written))
    except zipfile.BadZipFile as error:
        raise RefitError(f"the engine is no AOTInductor package: {error}", where=str(package)) from None


def _placed(code: str, tensors: Mapping[str, torch.Tensor], total: int) -> tuple[PlacedWeight, ...]:
    names = dict(re.findall(r'constants_info_\[(\d+)\]\.original_fqn = "([^"]*)"', code))
    sizes = dict(re.findall(r"constants_info_\[(\d+)\]\.data_size = (\d+)", code))
    placed: list[PlacedWeight] = []
    offset = 0
    for index in sorted(names, key=int):
        tensor = tensors.get(names[index])
        if tensor is None or not is_dense(tensor):
            raise CompileError(f"AOTInductor's package has a weight {names[index]!r} that the segment has not")
        used = tensor.numel() * tensor.element_size()
        placed.append(
            PlacedWeight(
                names[index], dtype_name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), offset, used
            )
        )
        offset += int(sizes[index])
    if offset != total:
        raise CompileError(f"AOTInductor's package has {total} bytes of weights, and lists {offset}")
    return tuple(placed)


def _inner(name: str) -> str:
    """A member's name without the archive's root directory.

    Raises:
        RefitError: when a package of code has no such member.
    """
    inner = "/".join(PurePosixPath(name).parts[1:])
    if not _MEMBERS.fullmatch(inner) and not inner.endswith(_WEIGHTS_SUFFIX):
        raise RefitError(f"the package holds {name!r}, which has no place in one")
    return inner


def _copy(source: zipfile.ZipFile, name: str, target: zipfile.ZipFile, member: str) -> None:
    with source.open(name) as read, target.open(_entry(member), "w", force_zip64=True) as write:
        while chunk := read.read(_CHUNK):
            write.write(chunk)


def _entry(member: str) -> zipfile.ZipInfo:
    # Without a date, the same package is the same bytes.
    return zipfile.ZipInfo(f"{_ROOT}/{member}")
