"""The engine key: a content hash of everything that decides an engine, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from builder.types import TensorSpec

__all__ = ["KEY_SCHEMA", "EngineKey", "canonical_json", "differences", "engine_key", "key_components"]

EngineKey: TypeAlias = str

# Raised whenever the meaning of a component changes, so that old entries are never taken for new ones.
KEY_SCHEMA = 2


def key_components(
    *,
    compiler: str,
    target: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
    refit: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> dict[str, Any]:
    """Everything that the key of an engine is made of, readable, as JSON values.

    Names of tensors, dimensions, files and models are not among them. That two dimensions are one
    is: it is in the graph, which the compiler's fingerprint covers.

    Args:
        compiler: its name.
        target: what its engines are valid for.
        fingerprint: `Fingerprint.components`.
        refit: `Fingerprint.refit`.
        inputs, outputs: of the segment.
    """
    return {
        "schema": KEY_SCHEMA,
        "compiler": compiler,
        "target": dict(target),
        "program": dict(fingerprint),
        "refit": refit,
        "inputs": [_profile(t) for t in inputs],
        "outputs": [{"dtype": t.dtype, "rank": len(t.dims)} for t in outputs],
    }


def engine_key(components: Mapping[str, Any]) -> EngineKey:
    """sha256, as hexadecimal digits, of the components as canonical JSON."""
    return hashlib.sha256(canonical_json(components)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """JSON that is equal for equal values: keys sorted, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def differences(one: Any, other: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, value in one, value in other) for each component that is not equal; a missing one is None."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted({*one, *other}):
            yield from differences(one.get(name), other.get(name), f"{where}.{name}" if where else name)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif one != other:
        yield where, one, other


def _profile(tensor: TensorSpec) -> dict[str, Any]:
    return {
        "dtype": tensor.dtype,
        "min": list(tensor.shape("min")),
        "opt": list(tensor.shape("opt")),
        "max": list(tensor.shape("max")),
    }
