"""What torch's ONNX exporter can translate, asked of its own registry.

The only module that touches the exporter's private names; they are the same from torch 2.11 to 2.14.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from builder.partition.assign import is_compute
from builder.recurrence import RECURRENT, whole_recurrent_layers
from builder.shape_env import SizesNarrowed, sizes_kept
from builder.tracing import quiet_torch, reshape_instead_of_view

__all__ = ["OPSET", "decompose_for_onnx", "one_registry", "untranslatable"]

# The opset that torch's translations are written for; every compiler here parses it.
OPSET = 18

_exporting = threading.RLock()


@functools.lru_cache(maxsize=1)
def _registry() -> Any:
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    # Its complaint that torchvision is missing is of no use to anyone here.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    return ONNXRegistry.from_torchlib(OPSET)


@contextlib.contextmanager
def one_registry() -> Iterator[None]:
    """Have this thread's export take the registry that is there: the exporter reads the source of all its translations for each."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    found, ours = _registry(), threading.get_ident()
    # One at a time, for each puts back what it found.
    with _exporting:
        usual = ONNXRegistry.__dict__["from_torchlib"]

        def from_torchlib(cls: Any, *args: Any, **kwargs: Any) -> Any:
            # An export of the user's own, which may be for another opset and add translations.
            return found if threading.get_ident() == ours else usual.__func__(cls, *args, **kwargs)

        ONNXRegistry.from_torchlib = classmethod(from_torchlib)  # type: ignore[assignment]
        try:
            yield
        finally:
            ONNXRegistry.from_torchlib = usual  # type: ignore[method-assign]


def decompose_for_onnx(program: ExportedProgram) -> ExportedProgram:
    """The program in operators that the exporter translates, as far as they decompose into such.

    An operator whose decomposition still holds one that cannot be translated is left whole: PyTorch
    will run it, and runs it best undecomposed.
    """
    try:
        with quiet_torch(), torch.no_grad(), whole_recurrent_layers(), sizes_kept(program):
            return _decomposed(program)
    except SizesNarrowed:
        # Whole, an operator takes all sizes; what the exporter cannot translate is left to PyTorch.
        return program


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    from torch.onnx._internal.exporter._decomp import (
        create_onnx_friendly_decomposition_table,
        get_onnx_implemented_overloads,
    )

    table = dict(create_onnx_friendly_decomposition_table(set(get_onnx_implemented_overloads(_registry()))))
    for layer in RECURRENT:
        table.pop(layer, None)
    while True:
        decomposed: ExportedProgram = program.run_decompositions(table)
        whole = {_origin(n) for n in decomposed.graph.nodes if is_compute(n) and not _translation(n)[0]}
        kept = [operator for operator in table if str(operator) in whole]
        if not kept:
            reshape_instead_of_view(decomposed)
            return decomposed
        for operator in kept:
            del table[operator]


def _origin(node: torch.fx.Node) -> str:
    """The operator that a node was decomposed from; by name, since metadata holds copies of operators."""
    return str(node.meta.get("original_aten"))


def untranslatable(program: ExportedProgram) -> Mapping[str, str]:
    """{node: reason} for each operator that the exporter has no translation for, branches and loop bodies included."""
    reasons = {}
    for node in program.graph.nodes:
        if is_compute(node):
            missing = _missing(node, program.graph_module)
            if missing is not None:
                reasons[node.name] = "torch.onnx has no translation to ONNX for " + (
                    "it" if missing is node else f"{_origin(missing).removesuffix('.default')}, which is inside it"
                )
    return reasons


def _missing(node: torch.fx.Node, owner: torch.nn.Module) -> torch.fx.Node | None:
    """The first operator without a translation: the node itself, or one in a graph that it runs."""
    if not _translation(node)[0]:
        return node
    for body in (getattr(owner, str(i.target)) for i in node.all_input_nodes if i.op == "get_attr"):
        for inner in getattr(body, "graph", torch.fx.Graph()).nodes:
            if is_compute(inner) and (missing := _missing(inner, body)) is not None:
                return missing
    return None


def _translation(node: torch.fx.Node) -> tuple[Any, str]:
    from torch.onnx._internal.exporter._dispatching import dispatch

    return dispatch(node, _registry())
