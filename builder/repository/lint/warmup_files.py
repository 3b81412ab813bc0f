"""Rules: the files of warm-up samples, which hold the bytes of one tensor each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.model_config import type_name
from builder.repository.lint.model import Model
from builder.repository.lint.positions import Field
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: "Model Warmup" in Triton's model configuration guide.

_SIZES = {
    "TYPE_BOOL": 1,
    "TYPE_UINT8": 1,
    "TYPE_UINT16": 2,
    "TYPE_UINT32": 4,
    "TYPE_UINT64": 8,
    "TYPE_INT8": 1,
    "TYPE_INT16": 2,
    "TYPE_INT32": 4,
    "TYPE_INT64": 8,
    "TYPE_FP16": 2,
    "TYPE_BF16": 2,
    "TYPE_FP32": 4,
    "TYPE_FP64": 8,
}
_LAYOUT = "row by row, without the batch dimension"
# Bytes before each string, little-endian.
_PREFIX = 4
# A file of strings is read; a larger one than this is taken on trust.
_READ_AT_MOST = 64 << 20


@dataclass(frozen=True, slots=True)
class _File:
    """The file that an input of a sample names: its path and size, and the bytes that its tensor needs, where known."""

    path: Path
    place: Field
    size: int | None
    needed: int | None
    strings: int | None


def _files(model: Model) -> Iterator[_File]:
    if model.folder is None:
        return
    for index, sample in enumerate(model.config.model_warmup):
        for name in sorted(sample.inputs):
            given = sample.inputs[name]
            if not given.input_data_file:
                continue
            data_type, count = type_name(given.data_type), math.prod(given.dims)
            known = all(dim > 0 for dim in given.dims)
            yield _File(
                model.file("warmup", given.input_data_file),
                ("model_warmup", index, "inputs", name, "input_data_file"),
                model.folder.size("warmup", given.input_data_file),
                count * _SIZES[data_type] if known and data_type in _SIZES else None,
                count if known and data_type == "TYPE_STRING" else None,
            )


@rule("warmup-file-missing", "error")
def _missing(model: Model) -> Iterator[Problem]:
    for file in _files(model):
        if file.size is None:
            yield Problem(
                f"failed to open text file for read {file.path}: No such file or directory",
                f"write the tensor's bytes there, {_LAYOUT}, or use zero_data",
                file.place,
            )


@rule("warmup-file-size", "error")
def _short(model: Model) -> Iterator[Problem]:
    for file in _files(model):
        fault = None
        if file.size is not None and file.needed is not None and file.size < file.needed:
            fault = (
                f"warmup setting expects {file.needed} bytes, but the data provided from {file.path} has "
                f"{file.size} bytes"
            )
        elif file.size is not None and file.strings is not None:
            fault = _string_fault(file.path, file.strings)
        if fault:
            yield Problem(fault, f"write the tensor's bytes again, {_LAYOUT}", file.place)


@rule("warmup-file-long", "warning")
def _long(model: Model) -> Iterator[Problem]:
    for file in _files(model):
        if file.size is not None and file.needed is not None and file.size > file.needed:
            yield Problem(
                f"the warm-up file {file.path} of {model.name} has {file.size} bytes, of which the server uses "
                f"{file.needed}: it was written for other dims or another data type",
                f"write the tensor's bytes again, {_LAYOUT}",
                file.place,
            )


def _string_fault(path: Path, wanted: int) -> str | None:
    """What is wrong with a file of `wanted` strings, each after its length."""
    try:
        if path.stat().st_size > _READ_AT_MOST:
            return None
        data = path.read_bytes()
    except OSError as error:
        return f"the warm-up file {path} cannot be read: {error.strerror or error}"
    found = place = 0
    while place + _PREFIX <= len(data):
        place += _PREFIX + int.from_bytes(data[place : place + _PREFIX], "little")
        found += 1
    if place != len(data):
        return f"the warm-up file {path} does not end where its last string ends: each has its length before it, in 4 bytes"
    return None if found == wanted else f"the warm-up file {path} holds {found} strings, and its dims need {wanted}"


RULES = (_missing, _short, _long)
