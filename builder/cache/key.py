"""The engine key: a content hash of everything that decides an engine, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from builder.types import TensorSpec

__all__ = ["KEY_SCHEMA", "EngineKey", "engine_key", "key_components"]

EngineKey: TypeAlias = str

# Raised whenever the meaning of a component changes, so that old entries are never taken for new ones.
KEY_SCHEMA = 1


def key_components(
    *,
    compiler: str,
    target: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> dict[str, Any]:
    """Everything that the key of an engine is made of, readable, as JSON values.

    Names of tensors, dimensions, files and models are not among them. That two dimensions are one
    is: it is in the graph, which the compiler's fingerprint covers.
    """
    return {
        "schema": KEY_SCHEMA,
        "compiler": compiler,
        "target": dict(target),
        "program": dict(fingerprint),
        "inputs": [_profile(t) for t in inputs],
        "outputs": [{"dtype": t.dtype, "rank": len(t.dims)} for t in outputs],
    }


def engine_key(components: Mapping[str, Any]) -> EngineKey:
    """sha256, as hexadecimal digits, of the components as JSON with sorted keys."""
    text = json.dumps(components, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _profile(tensor: TensorSpec) -> dict[str, Any]:
    return {"dtype": tensor.dtype, "min": tensor.shape("min"), "opt": tensor.shape("opt"), "max": tensor.shape("max")}
