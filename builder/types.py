"""Frozen values that several stages hand to each other. Imports nothing of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "DTYPES",
    "INT32_MAX",
    "DType",
    "Derived",
    "OutputSpec",
    "Range",
    "SymbolName",
    "TensorSpec",
    "canonical_dtype",
]

SymbolName: TypeAlias = str

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DType:
    """One element type under the names that PyTorch, numpy and Triton give it.

    Source: "Datatypes" in Triton's model configuration guide. numpy has no bfloat16, hence None.
    """

    name: str
    triton: str
    wire: str
    numpy: str | None
    floating: bool = False


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float64", "TYPE_FP64", "FP64", "float64", True),
        DType("float32", "TYPE_FP32", "FP32", "float32", True),
        DType("float16", "TYPE_FP16", "FP16", "float16", True),
        DType("bfloat16", "TYPE_BF16", "BF16", None, True),
        DType("int64", "TYPE_INT64", "INT64", "int64"),
        DType("int32", "TYPE_INT32", "INT32", "int32"),
        DType("int16", "TYPE_INT16", "INT16", "int16"),
        DType("int8", "TYPE_INT8", "INT8", "int8"),
        DType("uint8", "TYPE_UINT8", "UINT8", "uint8"),
        DType("bool", "TYPE_BOOL", "BOOL", "bool"),
    )
}

_ALIASES = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
}


def canonical_dtype(dtype: object) -> str | None:
    """The PyTorch name ("float32") of a `torch.dtype`, numpy dtype or string; None if unknown."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    text = re.sub(r"^(torch|numpy|np)\.", "", text.strip()).lower()
    text = _ALIASES.get(text, text)
    return text if text in DTYPES else None


@dataclass(frozen=True, slots=True)
class Derived:
    """A size that follows from another: `factor * base + offset`."""

    base: SymbolName
    factor: int = 1
    offset: int = 0

    def at(self, size: int) -> int:
        """The size where the base has the given one."""
        return self.factor * size + self.offset

    def __str__(self) -> str:
        text = self.base if self.factor == 1 else f"{self.factor}*{self.base}"
        return f"{text}{self.offset:+d}" if self.offset else text


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive sizes (min, opt, max) of one dimension; equal names mean equal sizes.

    Every size is a multiple of `multiple`. `max` is None only for an output whose size depends on
    the data and has no known bound. `derived` says how the size follows from that of another dimension,
    `data_dependent` that it follows from the values of tensors.
    """

    min: int
    opt: int
    max: int | None
    name: SymbolName | None = None
    multiple: int = 1
    derived: Derived | None = None
    data_dependent: bool = False

    @property
    def is_static(self) -> bool:
        return self.min == self.max

    def __contains__(self, size: int) -> bool:
        return self.min <= size and (self.max is None or size <= self.max) and size % self.multiple == 0

    def __str__(self) -> str:
        if self.derived is not None:
            return str(self.derived)
        if self.is_static:
            return str(self.min)
        text = f"{self.min}:{self.opt}:{'?' if self.max is None else self.max}"
        if self.multiple > 1:
            text += f"%{self.multiple}"
        return f"{self.name}={text}" if self.name else text


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and one range per dimension of a tensor at the edge of a model or segment.

    `values` is the inclusive (low, high) of what a tensor may hold that stands for a whole number; None
    where any value will do.
    """

    name: str
    dtype: str
    dims: tuple[Range, ...]
    values: tuple[int, int] | None = None

    def shape(self, point: str) -> tuple[int, ...]:
        """The shape at "min", "opt" or "max"."""
        return tuple(getattr(d, point) for d in self.dims)

    def __str__(self) -> str:
        text = f"{self.name}: {self.dtype}[{', '.join(map(str, self.dims))}]"
        return f"{text} from {self.values[0]} to {self.values[1]}" if self.values else text


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """A model output: its tensor under the model's name, and the plan's value that it is."""

    tensor: TensorSpec
    value: str
