"""Models that draw random numbers cannot be compiled: no engine draws those that PyTorch does."""

from __future__ import annotations

import torch

from builder.errors import ExportError

__all__ = ["refuse_random"]


def refuse_random(program: torch.export.ExportedProgram) -> None:
    """Of all graphs of a program.

    Raises:
        ExportError: where one draws, with the line of the model.
    """
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if _draws(node):
                raise ExportError(
                    f"the model draws random numbers ({node.target}), and no engine draws those that PyTorch does",
                    where=str(node.meta.get("stack_trace") or "").strip().rpartition("\n")[2].strip() or None,
                    fix="call eval(), or give the random numbers as an input",
                )


def _draws(node: torch.fx.Node) -> bool:
    """Attention, dropout and recurrent layers say that they may draw, and do not where their dropout is off."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = {a.name: a.default_value for a in arguments}
    given.update(zip((a.name for a in arguments), node.args, strict=False))
    given.update(node.kwargs)
    off = given.get("train", True) is False or given.get("training", True) is False
    return not (off or given.get("dropout_p", 1) == 0 or given.get("dropout", 1) == 0)
