"""Split an exported model into engine and fallback segments, asking the compiler until it agrees."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set

import torch
from torch.export import ExportedProgram

from builder.errors import PartitionError
from builder.export import ExportedModel
from builder.inputs import Input
from builder.partition.assign import ENGINE, assign_levels, is_compute, operator_name
from builder.partition.exclude import nodes_of_modules, nodes_of_operators
from builder.partition.extract import Extraction
from builder.partition.plan import FallbackOperator, PartitionPlan, Segment, SupportOracle
from builder.partition.ranges import tensor_spec
from builder.settings import Settings
from builder.symbols import output_values, symbol_ranges, user_placeholders
from builder.types import OutputSpec, Range, SymbolName, TensorSpec

__all__ = ["partition"]


def partition(
    model: ExportedModel, oracle: SupportOracle, settings: Settings, *, refused: Mapping[str, str] | None = None
) -> PartitionPlan:
    """The plan of a model for one compiler.

    Proposes segments, asks the oracle about each engine segment as a whole, leaves what it refuses
    to PyTorch and proposes again, until every engine segment is accepted as it stands.

    Args:
        model: the exported model.
        oracle: of the compiler.
        settings: `min_block_size`, `torch_executed_ops`, `torch_executed_modules`, `fp32_ops`,
            `fp32_modules` and `require_full_compilation` count.
        refused: nodes that a failed build has shown to be unsupported, with the reason.
    Raises:
        SpecError: when an operator or module is named that the model does not have.
        PartitionError: when `require_full_compilation` is set and something falls back; it lists
            everything that does.
    """
    program = oracle.prepare(model.program)
    symbols = symbol_ranges(program, model.inputs, model.bounds)
    reasons = {
        **_excluded(program, settings),
        **oracle.screen(program),
        **(refused or {}),
    }
    float32 = {
        *nodes_of_operators(program, "fp32_ops", settings.fp32_ops),
        *nodes_of_modules(program, "fp32_modules", settings.fp32_modules),
    }
    while True:
        assignment = assign_levels(program, reasons.keys(), settings.min_block_size)
        segments = _split(program, model, symbols, assignment.levels, float32)
        found: dict[str, str] = {}
        for segment in segments:
            if segment.kind == "engine":
                found.update(oracle.examine(segment))
        if not found:
            break
        if found.keys() <= reasons.keys():
            raise PartitionError(
                f"the compiler refuses a segment without naming a new operator: {next(iter(found.values()))}",
                fix="choose another compiler, or exclude operators with torch_executed_ops",
            )
        reasons.update(found)
    plan = PartitionPlan(
        inputs=_input_specs(model.inputs),
        outputs=_outputs(program, model, symbols),
        profiles=tuple(map(_input_specs, model.profiles)),
        segments=tuple(segments),
        fallbacks=_fallbacks(program, segments, {**assignment.left_out, **reasons}),
    )
    if settings.require_full_compilation and plan.fallbacks:
        raise _not_full(plan)
    return plan


def _excluded(program: ExportedProgram, settings: Settings) -> dict[str, str]:
    operators = nodes_of_operators(program, "torch_executed_ops", settings.torch_executed_ops)
    modules = nodes_of_modules(program, "torch_executed_modules", settings.torch_executed_modules)
    return {
        **{node: f"excluded by torch_executed_ops ({name})" for node, name in operators.items()},
        **{node: f"excluded by torch_executed_modules ({name})" for node, name in modules.items()},
    }


def _input_specs(inputs: Sequence[Input]) -> tuple[TensorSpec, ...]:
    return tuple(map(_input_spec, inputs))


def _input_spec(item: Input) -> TensorSpec:
    return TensorSpec(item.name or "", item.dtype, item.dims, _values(item))


def _values(item: Input) -> tuple[int, int] | None:
    """What a whole number may be."""
    numbers = item.integer
    return (numbers.min, numbers.max) if numbers is not None and numbers.max is not None else None


def _value_names(program: ExportedProgram, model: ExportedModel) -> dict[torch.fx.Node, str]:
    """The plan's name of each value: a model input keeps its own, any other has its node's."""
    names = {node: item.name or "" for node, item in zip(user_placeholders(program), model.inputs, strict=True)}
    taken = set(names.values())
    for node in program.graph.nodes:
        if node not in names:
            names[node] = node.name if node.name not in taken else f"{node.name}__value"
    return names


def _split(
    program: ExportedProgram,
    model: ExportedModel,
    symbols: Mapping[SymbolName, Range],
    levels: Mapping[str, int],
    float32: Set[str],
) -> list[Segment]:
    members: dict[int, list[torch.fx.Node]] = {}
    for node in program.graph.nodes:
        if node.name in levels:
            members.setdefault(levels[node.name], []).append(node)
    cuts = [(level, Extraction(program, members[level])) for level in sorted(members)]
    needed = set(output_values(program)).union(*(cut.boundary for _, cut in cuts))
    names = _value_names(program, model)
    placeholders = user_placeholders(program)

    def spec(
        node: torch.fx.Node, given: Mapping[torch.fx.Node, Input], known: Mapping[SymbolName, Range]
    ) -> TensorSpec:
        found = tensor_spec(names[node], node.meta["val"], known)
        return dataclasses.replace(found, values=_values(given[node])) if node in given else found

    whole = functools.partial(spec, given=dict(zip(placeholders, model.inputs, strict=True)), known=symbols)
    narrowed = [
        functools.partial(
            spec,
            given=dict(zip(placeholders, inputs, strict=True)),
            known=symbol_ranges(program, inputs, model.bounds),
        )
        for inputs in model.profiles
    ]

    segments: list[Segment] = []
    for level, cut in cuts:
        outputs = [n for n in cut.nodes if n in needed]
        if not outputs:
            continue
        segments.append(
            Segment(
                name=f"segment_{len(segments)}",
                kind="engine" if level % 2 == ENGINE else "fallback",
                program=cut.finish(outputs),
                inputs=tuple(map(whole, cut.boundary)),
                outputs=tuple(map(whole, outputs)),
                operators=dict(sorted(Counter(operator_name(n) for n in cut.nodes if is_compute(n)).items())),
                nodes=tuple(n.name for n in cut.nodes),
                profiles=tuple(tuple(map(narrow, cut.boundary)) for narrow in narrowed),
                float32_nodes=frozenset(n.name for n in cut.nodes if n.name in float32),
            )
        )
    return segments


def _outputs(
    program: ExportedProgram, model: ExportedModel, symbols: Mapping[SymbolName, Range]
) -> tuple[OutputSpec, ...]:
    names = _value_names(program, model)
    return tuple(
        OutputSpec(tensor_spec(name, node.meta["val"], symbols), names[node])
        for name, node in zip(model.output_names, output_values(program), strict=True)
    )


def _fallbacks(
    program: ExportedProgram, segments: Sequence[Segment], reasons: Mapping[str, str]
) -> tuple[FallbackOperator, ...]:
    inside = {name for s in segments if s.kind == "fallback" for name in s.nodes}
    return tuple(
        FallbackOperator(node.name, operator_name(node), reasons[node.name], _place(node))
        for node in program.graph.nodes
        if node.name in inside and is_compute(node)
    )


def _place(node: torch.fx.Node) -> str | None:
    """The innermost line of the model that calls it, leaving out torch's own layers."""
    trace = str(node.meta.get("stack_trace") or "")
    frames = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s*(.*)', trace)
    own = [f for f in frames if "/torch/" not in f[0]] or frames
    return f"{own[-1][0]}:{own[-1][1]}: {own[-1][2].strip()}" if own else None


def _not_full(plan: PartitionPlan) -> PartitionError:
    lines = [f"{f.operator} ({f.place or f.node}): {f.reason}" for f in plan.fallbacks]
    return PartitionError(
        f"require_full_compilation is set, but {len(lines)} operators fall back to PyTorch",
        where="\n".join(lines),
        fix="change these operators, choose another compiler, or drop require_full_compilation",
    )
