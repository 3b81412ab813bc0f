"""Segments in reduced precision: what is converted, what stays, and that the numbers are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # Registers quantized_decomposed.
from torch import nn
from torch.export.graph_signature import InputKind

from builder.errors import SpecError
from builder.export import export_model
from builder.inputs import parse_input
from builder.lowering.precision import ORIGIN, in_precision, without_double
from builder.partition.assign import is_compute, operator_name
from builder.partition.partitioner import partition
from builder.partition.plan import Segment
from builder.settings import Settings
from builder.types import TensorSpec
from tests.models import flow
from tests.unit.test_partition import Oracle

LOW = {"fp16": torch.float16, "bf16": torch.bfloat16}


def segment_of(module: nn.Module, *inputs: str, **settings: Any) -> Segment:
    model = export_model(module.eval(), [parse_input(i) for i in inputs])
    (segment,) = partition(model, Oracle(), Settings(**settings)).segments
    return segment


def dtypes(segment: Segment) -> dict[str, list[torch.dtype]]:
    """What each operator computes in, casts aside."""
    found: dict[str, list[torch.dtype]] = {}
    for node in segment.program.graph.nodes:
        if node.op == "call_function" and is_compute(node) and ORIGIN not in node.meta:
            value = node.meta["val"]
            first = value[0] if isinstance(value, tuple | list) else value
            found.setdefault(operator_name(node).removeprefix("aten."), []).append(first.dtype)
    return found


def run(segment: Segment, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    program = segment.program
    lifted: Mapping[str, Any] = {**program.constants, **program.state_dict}
    weights = [lifted[str(s.target)] for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT]
    with torch.inference_mode():
        return list(program.graph_module(*weights, *inputs))


class Block(nn.Module):
    """An attention block: products, a softmax, a normalisation, a residual."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.first = nn.Linear(8, 24)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.first(self.norm(x)).split(8, -1)
        scores = torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1)
        return x + nn.functional.relu(self.second(scores @ v))


@pytest.mark.parametrize("precision", LOW)
def test_products_are_low_and_statistics_are_not(precision: str) -> None:
    segment = segment_of(Block(), "x=float32[B=1:2:4, T=2:5:9, 8]")
    low = LOW[precision]
    converted = in_precision(segment, precision)
    found = dtypes(converted)
    assert set(found["linear"]) == set(found["matmul"]) == {low}
    assert found["relu"] == found["div"] == [low], "what follows a product follows its precision"
    assert found["layer_norm"] == found["softmax"] == [torch.float32]
    assert found["add"] == [torch.float32], "a residual of float32 stays one"
    weights = {n: t.dtype for n, t in converted.program.state_dict.items()}
    assert {str(d) for n, d in weights.items() if "norm" in n} == {"torch.float32"}
    assert {d for n, d in weights.items() if "norm" not in n} == {low}
    for length in (2, 9):
        x = torch.randn(3, length, 8)
        (got,), (want,) = run(converted, [x]), run(segment, [x])
        assert got.dtype is torch.float32
        torch.testing.assert_close(got, want, rtol=0, atol=0.02 * float(want.abs().max()))
        assert not torch.equal(got, want)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_float32_is_left_alone(precision: str) -> None:
    segment = segment_of(Block(), "x=float32[B=1:2:4, T=2:5:9, 8]")
    assert in_precision(segment, precision) is segment


def test_named_operators_and_modules_stay_in_float32() -> None:
    given = ("x=float32[B=1:2:4, T=2:5:9, 8]",)
    found = dtypes(in_precision(segment_of(Block(), *given, fp32_ops=("aten::matmul",)), "fp16"))
    assert set(found["matmul"]) == {torch.float32} and set(found["linear"]) == {torch.float16}
    found = dtypes(in_precision(segment_of(Block(), *given, fp32_modules=("second",)), "fp16"))
    assert found["linear"] == [torch.float16, torch.float32]
    with pytest.raises(SpecError, match="fp32_modules names 'third'"):
        segment_of(Block(), *given, fp32_modules=("third",))
    with pytest.raises(SpecError, match="fp32_ops names 'aten::gelu'"):
        segment_of(Block(), *given, fp32_ops=("aten::gelu",))


def test_what_a_compiler_has_in_float32_alone() -> None:
    segment = segment_of(Block(), "x=float32[B=1:2:4, T=2:5:9, 8]")
    assert set(dtypes(in_precision(segment, "fp16", {"linear"}))["linear"]) == {torch.float32}


class Masked(nn.Module):
    """A mask as transformers write it: the lowest float32, which float16 does not have; whole rows may be masked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        bias = (1.0 - mask[:, None, :]) * torch.finfo(torch.float32).min
        y = self.linear(x)
        return torch.softmax(y @ y.transpose(1, 2) + bias, -1) @ y


def test_a_mask_stays_finite() -> None:
    converted = in_precision(
        segment_of(Masked(), "x=float32[B=1:2:4, T=2:5:9, 8]", "mask=float32[B, T] in 0..1"), "fp16"
    )
    x, mask = torch.randn(2, 5, 8), torch.tensor([[1.0, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    given = {"x": x, "mask": mask}
    (got,) = run(converted, [given[t.name] for t in converted.inputs])
    with torch.inference_mode():
        want = Masked()(x, mask)
    assert bool(got.isfinite().all())
    torch.testing.assert_close(got, want, rtol=0, atol=0.02)


class Attention(nn.Module):
    """The same mask, given to PyTorch's attention: it is cast down, to the lowest number that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.full((5, 5), torch.finfo(torch.float32).min).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=self.bias)


def test_a_mask_for_attention_is_cast_to_what_there_is() -> None:
    converted = in_precision(segment_of(Attention(), "x=float32[B=1:2:4, 2, 5, 8]"), "fp16")
    assert dtypes(converted)["scaled_dot_product_attention"] == [torch.float16]
    x = torch.randn(2, 2, 5, 8)
    (got,) = run(converted, [x])
    assert bool(got.isfinite().all())
    torch.testing.assert_close(got, Attention()(x), rtol=0, atol=0.02)


class Rotary(nn.Module):
    """Angles of positions, as rotary embeddings compute them: a product of positions and frequencies."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = self.frequencies[None, :, None].expand(x.shape[0], -1, 1) @ positions[:, None, :].float()
        angles = torch.cat((angles, angles), 1).transpose(1, 2)
        return self.linear(x) * angles.cos()


@pytest.mark.parametrize("precision", LOW)
def test_positions_are_not_rounded(precision: str) -> None:
    segment = segment_of(Rotary(), "x=float32[B=1:2:4, T=2:5:4096, 8]", "positions=int64[B, T] in 0..4095")
    converted = in_precision(segment, precision)
    found = dtypes(converted)
    assert found["matmul"] == [torch.float32] and found["linear"] == [LOW[precision]]
    given = {"x": torch.randn(1, 4000, 8), "positions": torch.arange(4000)[None]}
    ordered = [given[t.name] for t in converted.inputs]
    (got,), (want,) = run(converted, ordered), run(segment, ordered)
    torch.testing.assert_close(got, want, rtol=0, atol=0.03)


class Filled(nn.Module):
    """A mask that is made where it is used, for whole rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((x.shape[2], x.shape[2]), torch.finfo(torch.float32).min).triu(0)
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask.masked_fill(mask == 0, -1000000000))


def test_a_mask_of_numbers_that_are_too_large_is_cast_to_what_there_is() -> None:
    converted = in_precision(segment_of(Filled(), "x=float32[B=1:2:4, 2, T=2:5:9, 8]"), "fp16")
    x = torch.randn(2, 2, 5, 8)
    (got,) = run(converted, [x])
    assert bool(got.isfinite().all())


class Quantised(nn.Module):
    """A product of two tensors that were quantised, then more."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.02, 0, -128, 127, torch.int8)
        x = torch.ops.quantized_decomposed.dequantize_per_tensor(x, 0.02, 0, -128, 127, torch.int8)
        return self.second(x)


def test_quantised_products_are_left_as_they_are() -> None:
    segment = segment_of(Quantised(), "x=float32[B=1:2:4, 8]")
    converted = in_precision(segment, "fp16")
    assert dtypes(converted)["linear"] == [torch.float16, torch.float32]
    x = torch.randn(2, 8)
    torch.testing.assert_close(run(converted, [x])[0], run(segment, [x])[0], rtol=0, atol=0.03)


class Small(nn.Module):
    """A number that float16 takes for zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).relu()
        return y / (y.amax(-1, keepdim=True) + 1e-9)


def test_a_number_that_would_be_lost_is_kept() -> None:
    converted = in_precision(segment_of(Small(), "x=float32[B=1:2:4, 8]"), "fp16")
    with torch.no_grad():
        x = torch.linalg.lstsq(Small().linear.weight, -Small().linear.bias[:, None] - 1).solution.T
    (got,) = run(converted, [x])
    assert bool(got.isfinite().all()), "0 / 1e-9, not 0 / 0"


class Tied(nn.Module):
    """One weight for a lookup and a product, and a second use that must have it in float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(16, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        return x @ self.table.weight.T + self.table.weight.exp().sum()


def test_a_weight_may_be_needed_in_both() -> None:
    segment = segment_of(Tied(), "ids=int64[B=1:2:4, 3] in 0..15")
    converted = in_precision(segment, "fp16")
    assert sorted(str(t.dtype) for t in converted.program.state_dict.values()) == ["torch.float16", "torch.float32"]
    ids = torch.randint(0, 16, (2, 3))
    torch.testing.assert_close(run(converted, [ids])[0], run(segment, [ids])[0], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name", ["Branches", "Loop", "Scanned", "InPlace", "Selected", "Kept"])
def test_control_flow_stays_in_float32(name: str) -> None:
    segment = segment_of(
        getattr(flow, name)(), "x=float32[B=2:3:4, T=2:5:9, 8]" if name != "Branches" else "x=float32[B=2:3:4, 8]"
    )
    converted = in_precision(segment, "fp16")
    x = torch.randn(3, 8) if name == "Branches" else torch.randn(3, 5, 8)
    for got, want in zip(run(converted, [x]), run(segment, [x]), strict=True):
        torch.testing.assert_close(got, want, rtol=0.01, atol=0.01)


def test_nodes_keep_their_names_and_casts_name_their_user() -> None:
    segment = segment_of(Block(), "x=float32[B=1:2:4, T=2:5:9, 8]")
    converted = in_precision(segment, "fp16")
    names = {n.name for n in converted.program.graph.nodes}
    assert set(segment.nodes) <= names
    casts = [n for n in converted.program.graph.nodes if ORIGIN in n.meta]
    assert casts and all(n.meta[ORIGIN] in {*segment.nodes, "add"} for n in casts)


class Double(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale + torch.ones(4, dtype=torch.float64)).to(torch.float64).sum(-1)


def test_float64_in_float32() -> None:
    segment = segment_of(Double(), "x=float64[B=1:2:4, 4]")
    single = without_double(segment)
    kinds = {n.meta["val"].dtype for n in single.program.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)}
    assert kinds == {torch.float32}
    assert single.inputs == segment.inputs and isinstance(single.inputs[0], TensorSpec)
    x = torch.randn(2, 4, dtype=torch.float64)
    (got,) = run(single, [x.float()])
    torch.testing.assert_close(got.double(), Double()(x), rtol=1e-6, atol=1e-6, check_dtype=False)
    plain = segment_of(Block(), "x=float32[B=1:2:4, T=2:5:9, 8]")
    assert without_double(plain) is plain
