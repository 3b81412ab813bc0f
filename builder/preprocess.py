"""The `[preprocess]` table of a spec: read, and tried with its examples before anything is compiled."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from builder.errors import BuilderError, SpecError
from builder.runtime.check import check_request
from builder.runtime.manifest import PreprocessSpec
from builder.runtime.preprocess import Preprocessor
from builder.runtime.values import Value
from builder.triton_options import PreprocessOptions
from builder.types import DTYPES, TensorSpec, canonical_dtype

__all__ = ["Preprocessing", "bytes_of", "prepare"]

BYTES = "bytes"

# Of the version directory, so that the function finds its files beside it.
_DIRECTORY = "preprocess"

_FORM = 'write DTYPE[DIM, ...], for example text = "bytes[B]"; a DIM is a number, a dimension of the model, or *'


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """A function that was tried.

    Args:
        spec: for the manifest.
        files: its own and those that it reads, by path relative to the version directory.
        examples: requests, as clients send them.
        requests: what it makes of each.
    """

    spec: PreprocessSpec
    files: Mapping[str, Path]
    examples: tuple[Mapping[str, np.ndarray[Any, Any]], ...]
    requests: tuple[Mapping[str, Value], ...]


def prepare(options: PreprocessOptions, base: Path, inputs: Sequence[TensorSpec]) -> Preprocessing:
    """Load the function and try it.

    Args:
        options: of the spec.
        base: the directory that its paths are relative to.
        inputs: of the model.
    Raises:
        SpecError: when it cannot be loaded, or what it makes of an example is not what the model takes.
    """
    text, _, function = options.source.rpartition(":")
    path = base / text
    if not text or not path.is_file():
        raise SpecError(
            f"there is no file {path if text else options.source}",
            where="[preprocess].source",
            fix="write file.py:function",
        )
    files = {f"{_DIRECTORY}/{path.name}": path}
    for name in options.files:
        if not (base / name).is_file():
            raise SpecError(f"there is no file {base / name}", where="[preprocess].files")
        files[f"{_DIRECTORY}/{Path(name).name}"] = base / name
    declared = tuple((n, *_declared(n, t, inputs)) for n, t in options.inputs.items())
    taken = {n for n, _, _ in declared} & {t.name for t in inputs}
    preprocessor = Preprocessor(path, function)
    examples, requests = [], []
    gives: set[str] = set()
    for index, example in enumerate(options.examples):
        where = f"[preprocess].examples[{index}]"
        arrays = {n: _array(n, dtype, dims, example, where) for n, dtype, dims in declared}
        try:
            request = preprocessor(arrays)
            _check(request, inputs, where)
        except BuilderError as error:
            raise SpecError(error.what, where=where, fix=error.fix or "correct the function or the example") from error
        examples.append(arrays)
        requests.append(request)
        gives |= request.keys()
    if kept := taken - gives:
        raise SpecError(
            f"{sorted(kept)[0]!r} is an input of the model and of the function, which does not make it",
            where="[preprocess].inputs",
            fix="have the function return it, or leave it out there",
        )
    missing = [t.name for t in inputs if t.name not in gives]
    if missing:
        raise SpecError(
            f"the function makes no {missing[0]!r}",
            where="[preprocess].source",
            fix=f"have it return every input of the model: {', '.join(t.name for t in inputs)}",
        )
    spec = PreprocessSpec(f"{_DIRECTORY}/{path.name}", function, declared, tuple(sorted(gives)))
    return Preprocessing(spec, files, tuple(examples), tuple(requests))


def _declared(name: str, text: str, inputs: Sequence[TensorSpec]) -> tuple[str, tuple[int, ...]]:
    where = f"[preprocess].inputs.{name}"
    match = re.fullmatch(r"\s*(\w+)\s*\[([^\]]*)\]\s*", text)
    dtype = (BYTES if match[1].lower() == BYTES else canonical_dtype(match[1])) if match else None
    if match is None or dtype is None or dtype == "bfloat16":
        raise SpecError(f"cannot read {text!r}", where=where, fix=_FORM)
    known = {d.name: -1 for t in inputs for d in t.dims if d.name}
    dims = []
    for part in filter(None, (p.strip() for p in match[2].split(","))):
        if part.isdigit() and int(part):
            dims.append(int(part))
        elif part == "*" or part in known:
            dims.append(-1)
        else:
            raise SpecError(f"{part!r} is no dimension of the model", where=where, fix=_FORM)
    return dtype, tuple(dims)


def _array(
    name: str, dtype: str, dims: tuple[int, ...], example: Mapping[str, Any], where: str
) -> np.ndarray[Any, Any]:
    if name not in example:
        raise SpecError(f"there is no {name!r}", where=where, fix="give every input of the function")
    if dtype == BYTES:
        flat = np.array(example[name], dtype=object)
        array = np.array([_encoded(item) for item in flat.reshape(-1)], dtype=object).reshape(flat.shape)
    else:
        array = np.array(example[name], dtype=DTYPES[dtype].numpy)
    if array.ndim != len(dims) or any(d not in (-1, s) for d, s in zip(dims, array.shape, strict=True)):
        raise SpecError(f"{name!r} has the shape {list(array.shape)}, declared is {list(dims)}", where=where)
    return array


def _encoded(item: object) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


def _check(request: Mapping[str, Value], inputs: Sequence[TensorSpec], where: str) -> None:
    known = {t.name for t in inputs}
    extra = sorted(request.keys() - known)
    if extra:
        raise SpecError(f"the function makes {extra[0]!r}, which is no input of the model", where=where)
    check_request(inputs, request)


def bytes_of(array: np.ndarray[Any, Any]) -> bytes:
    """An array as a server reads it from a file: strings with their lengths before them."""
    if array.dtype == object:
        return b"".join(struct.pack("<I", len(item)) + item for item in array.reshape(-1))
    return array.tobytes()
