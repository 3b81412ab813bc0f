"""The partitioner, with an oracle of the test's own: no compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import ExportedProgram

from builder.errors import PartitionError, SpecError
from builder.export import ExportedModel, export_model
from builder.inputs import parse_input
from builder.partition.partitioner import partition
from builder.partition.plan import PartitionPlan, Segment
from builder.settings import Settings
from builder.types import Range
from tests.models.nets import hybrid


class Oracle:
    """Refuses operators by name at once, and others only when it sees the segment."""

    def __init__(self, screened: Sequence[str] = (), examined: Sequence[str] = ()) -> None:
        self.screened, self.examined = screened, examined

    def prepare(self, program: ExportedProgram) -> ExportedProgram:
        return program

    def screen(self, program: ExportedProgram) -> Mapping[str, str]:
        return self._refused(program, self.screened)

    def examine(self, segment: Segment) -> Mapping[str, str]:
        return self._refused(segment.program, self.examined)

    def _refused(self, program: ExportedProgram, words: Sequence[str]) -> Mapping[str, str]:
        operators = [n for n in program.graph.nodes if n.op == "call_function"]
        return {n.name: f"no {w}" for n in operators for w in words if w in str(n.target)}


def exported(module: torch.nn.Module, *inputs: str) -> ExportedModel:
    return export_model(module.eval(), [parse_input(i) for i in inputs])


def run(plan: PartitionPlan, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    values = dict(tensors)
    for segment in plan.segments:
        results = segment.program.module()(*(values[t.name] for t in segment.inputs))
        values.update(zip((t.name for t in segment.outputs), results, strict=True))
    return [values[o.value] for o in plan.outputs]


def check(model: ExportedModel, plan: PartitionPlan, tensors: list[torch.Tensor]) -> None:
    names = [t.name for t in plan.inputs]
    expected = model.eager(tensors).values()
    for got, want in zip(run(plan, dict(zip(names, tensors, strict=True))), expected, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("how", ["screened", "examined"])
def test_hybrid_is_engine_fallback_engine(how: str) -> None:
    model = exported(hybrid(), "x=float32[B=1:8:32, T=2:16:64, 16]")
    plan = partition(model, Oracle(**{how: ["bessel"]}), Settings())
    assert [s.kind for s in plan.segments] == ["engine", "fallback", "engine"]
    (fallback,) = plan.fallbacks
    assert (fallback.operator, fallback.reason) == ("aten.special_bessel_j0", "no bessel")
    assert fallback.place and "nets.py" in fallback.place and "bessel_j0" in fallback.place
    for size in ((1, 2), (3, 5), (32, 64)):
        check(model, plan, [torch.randn(*size, 16)])


def test_boundaries_have_the_declared_ranges_and_no_sizes() -> None:
    model = exported(hybrid(), "x=float32[B=1:8:32, T=2:16:64, 16]")
    plan = partition(model, Oracle(["bessel"]), Settings())
    (boundary,) = plan.segments[2].inputs
    assert boundary.dims == (Range(1, 8, 32, "B"), Range(2, 16, 64, "T"), Range(32, 32, 32))
    assert all(
        isinstance(n.meta["val"], torch.Tensor)
        for s in plan.segments
        for n in s.program.graph.find_nodes(op="placeholder")
    )


class DerivedSizes(torch.nn.Module):
    """Sizes that are sums, products and quotients of others, on both sides of a fallback operator."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        both = torch.cat([x, y], 1)
        halves = torch.special.bessel_j0(both)[:, ::2]
        flat = halves.reshape(-1, x.shape[2]) + x.shape[1]
        return {"flat": flat * 2, "both": both + x.shape[0] * y.shape[1]}


def test_derived_sizes_are_bounded_without_running() -> None:
    model = exported(DerivedSizes(), "x=float32[B=1:2:4, S=3:5:9, 6]", "y=float32[B, T=2:4:8, 6]")
    plan = partition(model, Oracle(["bessel"]), Settings())
    flat = next(o.tensor for o in plan.outputs if o.tensor.name == "flat")
    assert (flat.dims[0].min, flat.dims[0].opt, flat.dims[0].max) == (1 * 3, 2 * 5, 4 * 9)
    boundary = plan.segments[0].outputs[0]
    assert (boundary.dims[1].min, boundary.dims[1].opt, boundary.dims[1].max) == (5, 9, 17)
    for b, s, t in ((1, 3, 2), (4, 9, 8), (3, 4, 7)):
        check(model, plan, [torch.randn(b, s, 6), torch.randn(b, t, 6)])


class TwoOutputs(torch.nn.Module):
    """Operators with tuple results, an input returned as it is, a value returned twice, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = torch.split(torch.special.bessel_j0(x), 2, dim=1)
        values, indices = torch.topk(second, 2)
        return first, x, values, values, indices, self.weight


@pytest.mark.parametrize("refused", [["bessel"], ["topk"], ["split"], ["bessel", "topk"], []])
def test_tuples_aliases_and_weights(refused: list[str]) -> None:
    model = exported(TwoOutputs(), "x=float32[B=1:2:4, 4]")
    plan = partition(model, Oracle(refused), Settings())
    check(model, plan, [torch.randn(3, 4)])


def test_parallel_branches_share_a_segment() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = [torch.special.bessel_j0(x + i) * i for i in range(5)]
            return torch.stack(parts).sum(0)

    model = exported(Branches(), "x=float32[1:2:4, 4]")
    plan = partition(model, Oracle(["bessel"]), Settings())
    assert [s.kind for s in plan.segments] == ["engine", "fallback", "engine"]
    assert plan.segments[1].operators == {"aten.special_bessel_j0": 5}
    check(model, plan, [torch.randn(3, 4)])


def test_min_block_size_leaves_small_segments_to_pytorch() -> None:
    model = exported(hybrid(), "x=float32[B=1:8:32, T=2:16:64, 16]")
    plan = partition(model, Oracle(["bessel"]), Settings(min_block_size=4))
    assert [s.kind for s in plan.segments] == ["fallback", "engine"]
    assert "min_block_size = 4" in plan.fallbacks[0].reason
    check(model, plan, [torch.randn(2, 3, 16)])
    whole = partition(model, Oracle(["bessel"]), Settings(min_block_size=100))
    assert [s.kind for s in whole.segments] == ["fallback"]


@pytest.mark.parametrize("name", ["aten::relu", "torch.ops.aten.relu", "aten.relu", "torch.ops.aten.relu.default"])
def test_torch_executed_ops(name: str) -> None:
    model = exported(hybrid(), "x=float32[B=1:8:32, T=2:16:64, 16]")
    plan = partition(model, Oracle(), Settings(torch_executed_ops=(name,)))
    assert [s.kind for s in plan.segments] == ["engine", "fallback", "engine"]
    assert plan.fallbacks[0].reason == f"excluded by torch_executed_ops ({name})"


def test_an_excluded_operator_must_be_there() -> None:
    model = exported(hybrid(), "x=float32[B=1:8:32, T=2:16:64, 16]")
    with pytest.raises(SpecError, match="names 'aten::rellu', which is no operator") as caught:
        partition(model, Oracle(), Settings(torch_executed_ops=("aten::rellu",)))
    assert "did you mean 'aten.relu'?" in (caught.value.fix or "")


class Layers(torch.nn.Module):
    """Two layers, one inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.inner = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Sequential(torch.nn.Linear(4, 12)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.inner(self.first(x).relu()))


@pytest.mark.parametrize(
    ("name", "excluded"),
    [
        ("first", ["aten.linear"]),
        ("inner.1", ["aten.linear"]),
        ("inner", ["aten.layer_norm", "aten.linear"]),
        ("LayerNorm", ["aten.layer_norm"]),
        ("torch.nn.LayerNorm", ["aten.layer_norm"]),
        ("torch.nn.modules.normalization.LayerNorm", ["aten.layer_norm"]),
        ("Linear", ["aten.linear", "aten.linear"]),
    ],
)
def test_torch_executed_modules(name: str, excluded: list[str]) -> None:
    model = exported(Layers(), "x=float32[B=1:8:32, 4]")
    plan = partition(model, Oracle(), Settings(torch_executed_modules=(name,)))
    assert [f.operator for f in plan.fallbacks] == excluded
    assert {f.reason for f in plan.fallbacks} == {f"excluded by torch_executed_modules ({name})"}
    check(model, plan, [torch.randn(3, 4)])


def test_an_excluded_module_must_be_there() -> None:
    model = exported(Layers(), "x=float32[B=1:8:32, 4]")
    with pytest.raises(SpecError, match="names 'iner', which is no module or class") as caught:
        partition(model, Oracle(), Settings(torch_executed_modules=("iner",)))
    assert "did you mean 'inner'?" in (caught.value.fix or "")


def test_coverage_counts_operators_and_weights() -> None:
    model = exported(Layers(), "x=float32[B=1:8:32, 4]")
    plan = partition(model, Oracle(), Settings(torch_executed_modules=("inner.1",)))
    assert plan.coverage == 4 / 5
    assert plan.parameter_coverage == (20 + 8) / (20 + 8 + 60)


class MovesData(torch.nn.Module):
    """Between two operators that are refused, and before the first, elements only change places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.special.bessel_j0(x.transpose(1, 2))
        return torch.sin(torch.special.bessel_j0(x.reshape(x.shape[0], -1).unsqueeze(1)))


def test_no_engine_segment_only_moves_data() -> None:
    model = exported(MovesData(), "x=float32[B=1:8:32, T=2:3:5, 4]")
    plan = partition(model, Oracle(["bessel"]), Settings())
    assert [s.kind for s in plan.segments] == ["fallback", "engine"]
    assert dict(plan.segments[1].operators) == {"aten.sin": 1}
    moved = {f.operator: f.reason for f in plan.fallbacks if "bessel" not in f.operator}
    assert moved.keys() >= {"aten.transpose", "aten.reshape", "aten.unsqueeze"}
    assert set(moved.values()) == {"its engine segment would compute nothing, only move data"}
    check(model, plan, [torch.randn(3, 5, 4)])
    # Where nothing is refused, it stays as it is.
    alone = partition(exported(torch.nn.Flatten(), "input=float32[B=1:8:32, 3, 4]"), Oracle(), Settings())
    assert [s.kind for s in alone.segments] == ["engine"]


class Positions(torch.nn.Module):
    """An embedding of positions, which depends on no input's values, is added after an operator that is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.sin(self.table(torch.arange(x.shape[1])))
        return torch.special.bessel_j0(x) + positions


def test_what_depends_on_no_input_goes_to_its_user() -> None:
    model = exported(Positions(), "x=float32[B=1:8:32, T=2:3:64, 4]")
    plan = partition(model, Oracle(["bessel"]), Settings())
    assert [(s.kind, len(s.inputs)) for s in plan.segments] == [("fallback", 1), ("engine", 1)]
    assert plan.segments[1].parameter_count == 256
    check(model, plan, [torch.randn(3, 5, 4)])
    check(model, partition(model, Oracle(["bessel", "sin"]), Settings()), [torch.randn(3, 5, 4)])


def test_require_full_compilation_lists_everything() -> None:
    model = exported(hybrid(), "x=float32[B=1:8:32, T=2:16:64, 16]")
    with pytest.raises(PartitionError, match="2 operators fall back") as caught:
        partition(model, Oracle(["bessel", "relu"]), Settings(require_full_compilation=True))
    assert "aten.special_bessel_j0" in (caught.value.where or "")
    assert "aten.relu" in (caught.value.where or "")
    assert partition(model, Oracle(), Settings(require_full_compilation=True)).coverage == 1.0


class Random(torch.nn.Module):
    """A random graph: each step combines two earlier values with one of a few operators."""

    def __init__(self, steps: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x, x + 1]
        for kind, left, right in self.steps:
            a, b = values[left % len(values)], values[right % len(values)]
            values.append(
                [a - b, torch.sin(a), a * b.shape[0], torch.cos(a) + b.sum(), torch.tanh(a).reshape(b.shape)][kind]
            )
        return values[-1], values[len(values) // 2]


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12),
    refused=st.sets(st.sampled_from(["sin", "cos", "sum", "mul", "tanh", "sub"])),
    smallest=st.integers(1, 4),
)
def test_any_split_computes_the_same(steps: list[tuple[int, int, int]], refused: set[str], smallest: int) -> None:
    model = exported(Random(steps), "x=float32[B=1:3:5, 4]")
    plan = partition(model, Oracle(sorted(refused)), Settings(min_block_size=smallest))
    known = {t.name for t in plan.inputs}
    for segment in plan.segments:
        assert {t.name for t in segment.inputs} <= known, "segments are in an order in which they can run"
        known |= {t.name for t in segment.outputs}
        if segment.kind == "engine":
            assert segment.operator_count >= smallest
    check(model, plan, [torch.randn(2, 4)])
