"""What the user names for PyTorch to run, or for float32: operators and modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch.export import ExportedProgram

from builder.errors import SpecError, did_you_mean
from builder.partition.assign import is_compute, operator_name
from builder.tracing import own_name

__all__ = ["nodes_of_modules", "nodes_of_operators"]


def nodes_of_operators(program: ExportedProgram, setting: str, names: Sequence[str]) -> dict[str, str]:
    """{node: which of the names it has} for the operators that a setting names.

    Args:
        setting: "torch_executed_ops", for the error.
        names: `aten::gelu`, `torch.ops.aten.gelu`, `aten.gelu.default`; all mean every overload.
    Raises:
        SpecError: when the model has no such operator.
    """
    wanted = {_plain_operator(n): n for n in names}
    present = {node.name: _plain_operator(operator_name(node)) for node in program.graph.nodes if is_compute(node)}
    for plain, name in wanted.items():
        if plain not in present.values():
            raise _unknown(setting, name, plain, "operator", set(present.values()))
    return {node: wanted[plain] for node, plain in present.items() if plain in wanted}


def nodes_of_modules(program: ExportedProgram, setting: str, names: Sequence[str]) -> dict[str, str]:
    """{node: which of the names it is inside of} for the operators of modules that a setting names.

    Args:
        setting: "torch_executed_modules", for the error.
        names: of a module in the model (`encoder.layers.0`), or of a class (`torch.nn.LayerNorm`,
            `LayerNorm`); both with everything inside.
    Raises:
        SpecError: when the model runs no such module.
    """
    if not names:
        return {}
    found: dict[str, str] = {}
    known: set[str] = set()
    used: set[str] = set()
    for node in program.graph.nodes:
        if not is_compute(node):
            continue
        inside = {label for path, kind in _modules(node) for label in _labels(path, kind)}
        known |= inside
        for name in names:
            if name in inside:
                used.add(name)
                found.setdefault(node.name, name)
    for name in names:
        if name not in used:
            raise _unknown(setting, name, name, "module or class", known)
    return found


def _modules(node: torch.fx.Node) -> Iterator[tuple[str, str]]:
    """Path and class of each module that was running when the node was traced, the outermost first."""
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        yield str(path), kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _labels(path: str, kind: str) -> Iterator[str]:
    # A module that is called more than once has "@1" and so on behind its name.
    name = own_name(re.sub(r"@\d+", "", path))
    if name:
        yield name
    yield kind
    yield kind.rpartition(".")[2]
    # Where users import torch's own from.
    if kind.startswith("torch.nn.modules."):
        yield f"torch.nn.{kind.rpartition('.')[2]}"


def _unknown(setting: str, name: str, plain: str, what: str, known: Iterable[str]) -> SpecError:
    names = sorted(known)
    return SpecError(
        f"{setting} names {name!r}, which is no {what} of this model",
        fix=f"{did_you_mean(plain, names)}the model has {', '.join(names)}",
    )


def _plain_operator(name: str) -> str:
    """`aten.gelu` for `aten::gelu`, `torch.ops.aten.gelu` and `torch.ops.aten.gelu.default` alike."""
    parts = re.sub(r"^torch\.ops\.", "", name).replace("::", ".").split(".")
    return ".".join(parts[:2])
