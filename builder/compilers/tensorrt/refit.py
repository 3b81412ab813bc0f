"""Engines without weights: can this builder make them, and the weights of a segment put into one.

Order and traps (https://docs.nvidia.com/deeplearning/tensorrt, "Refitting an Engine"; issues 3217 and 4198 of pytorch/TensorRT): a
refit that says "done" may have left weights out, so both lists of the refitter are read; a plan that was stripped excludes its weights
again when it is serialised, unless it is told not to.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from builder.compilers.base import RefitError
from builder.compilers.tensorrt.flavour import Flavour
from builder.compilers.tensorrt.logger import capturing_logger, said
from builder.compilers.tensorrt.network import WeightlessGraph, empty_network

__all__ = ["can_strip", "refit_flags", "refit_plan"]


def refit_flags(trt: Any, mode: str) -> list[Any]:
    """The builder flags of a refit mode; "none" has none."""
    flag = trt.BuilderFlag
    return {"weights": [flag.REFIT, flag.STRIP_PLAN], "identical": [flag.REFIT_IDENTICAL, flag.STRIP_PLAN], "none": []}[
        mode
    ]


@functools.cache
def can_strip(trt: Any, mode: str) -> bool:
    """Whether the builder makes engines without weights here: asked with one of a single product."""
    _, builder, network = empty_network(trt)
    weights = np.ones((8, 8), np.float32)
    given = network.add_input("x", trt.DataType.FLOAT, (8, 8))
    constant = network.add_constant((8, 8), trt.Weights(weights))
    none = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(given, none, constant.get_output(0), none)
    network.mark_output(product.get_output(0))
    config = builder.create_builder_config()
    for flag in refit_flags(trt, mode):
        config.set_flag(flag)
    with _without_stderr():
        return builder.build_serialized_network(network, config) is not None


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """The builder's libraries complain past every logger."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def refit_plan(
    trt: Any, flavour: Flavour, plan: Path, graph: WeightlessGraph, destination: Path, *, host_code: bool = False
) -> None:
    """Put a graph's weights into a stripped plan, and write the plan with them.

    Args:
        host_code: whether the plan carries a runtime of its own, as one does that later releases load.
    Raises:
        RefitError: when the plan does not load here, or does not take all of the weights.
    """
    logger = capturing_logger(trt)
    runtime = trt.Runtime(logger)
    runtime.engine_host_code_allowed = host_code
    engine = runtime.deserialize_cuda_engine(plan.read_bytes())
    if engine is None:
        raise RefitError(said(flavour.library, logger, "the stripped plan does not load here"))
    refitter = trt.Refitter(engine, logger)
    if refitter is None:
        raise RefitError(said(flavour.library, logger, "the plan cannot be refitted"))
    parser = trt.OnnxParserRefitter(refitter, logger)
    if not graph.load(parser) or not parser.refit_model_proto():
        raise RefitError(said(flavour.library, logger, "the plan does not take these weights"))
    _check_complete(flavour, refitter, graph.names)
    if not refitter.refit_cuda_engine():
        raise RefitError(said(flavour.library, logger, "the refit failed"))
    serialization = engine.create_serialization_config()
    serialization.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    data = engine.serialize_with_config(serialization)
    if data is None:
        raise RefitError(said(flavour.library, logger, "the refitted engine cannot be serialised"))
    with destination.open("wb") as file:
        file.write(data)


def _check_complete(flavour: Flavour, refitter: Any, given: Iterable[str]) -> None:
    """Both checks: what the refitter misses, and what it has that was not given."""
    missing = set(refitter.get_missing_weights())
    stale = set(refitter.get_all_weights()) - set(given)
    if missing or stale:
        named = ", ".join(sorted(missing | stale)[:5])
        raise RefitError(f"{flavour.library}: the engine holds weights that the graph does not give: {named}")
