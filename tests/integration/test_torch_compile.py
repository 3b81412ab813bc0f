"""`torch.compile(backend="triton_repo")`, as users write it; Dynamo's compilations are counted."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from builder import BuilderError, Input
from builder.dynamo import backend
from builder.dynamo.foresight import foresee
from builder.errors import ExportError, RequestError, SpecError
from builder.inprocess import CompiledGraph
from tests.integration.threads import together
from tests.models.breaks import MLP, Broken, Hybrid, ThroughNumpy, ThroughPython

RANGE = Input(min_shape=(1, 16), opt_shape=(8, 16), max_shape=(32, 16))
TWO = Input(shape=("B=1:4:8", "T=1:8:16", 16))
SHAPES = [(1, 1, 16), (4, 7, 16), (1, 9, 16), (3, 3, 16), (8, 16, 16), (5, 1, 16)]


@pytest.fixture(autouse=True)
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CompiledGraph]]:
    """Everything that was compiled: PyTorch alone would give right answers too."""
    found: list[CompiledGraph] = []
    make = CompiledGraph.__init__

    def counted(self: CompiledGraph, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(CompiledGraph, "__init__", counted)
    monkeypatch.setenv("TRITON_REPO_CACHE", str(tmp_path / "cache"))
    torch._dynamo.reset()
    foresee(backend.triton_repo, backend._marked_before)
    counters.clear()
    torch.manual_seed(0)
    yield found
    torch._dynamo.reset()


def kinds(made: list[CompiledGraph]) -> list[list[str]]:
    """Of the segments of each graph."""
    return [[s.kind for s in graph.running.compilation.plan.segments] for graph in made]


def compiled(model: Any, *inputs: Any, dynamic: bool | None = False, **options: Any) -> Any:
    given = {"inputs": list(inputs)} if inputs else {}
    return torch.compile(
        model.eval() if isinstance(model, torch.nn.Module) else model,
        backend="triton_repo",
        dynamic=dynamic,
        options={"compiler": "onnxruntime", **given, **options},
    )


def graphs() -> int:
    """How many graphs Dynamo has compiled."""
    return counters["stats"]["unique_graphs"]


def same(fast: Any, model: Any, *shape: int, device: str = "cpu") -> None:
    x = torch.randn(*shape, device=device)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_the_mlp_with_inputs_in_the_options(made: list[CompiledGraph]) -> None:
    model = MLP()
    fast = compiled(model, RANGE)
    with torch.no_grad():
        for batch in (8, 1, 32, 3):
            same(fast, model, batch, 16)
    assert graphs() == 1
    assert kinds(made) == [["engine"]]


@pytest.mark.parametrize("dynamic", [False, None, True])
def test_many_shapes_one_compilation(dynamic: bool | None) -> None:
    """The first call has equal sizes and sizes of 1, which Dynamo would take for one size and for constants."""
    model = Hybrid()
    fast = compiled(model, TWO, dynamic=dynamic)
    with torch.no_grad():
        for shape in SHAPES:
            same(fast, model, *shape)
    assert graphs() == 1


def test_the_hybrid_model_never_recompiles(made: list[CompiledGraph]) -> None:
    model = Hybrid()
    fast = compiled(model, TWO, torch_executed_ops=["aten::special_bessel_j0"])
    with torch.no_grad():
        for shape in SHAPES:
            same(fast, model, *shape)
    assert graphs() == 1
    assert kinds(made) == [["engine", "fallback", "engine"]]


@pytest.mark.parametrize("kind", [Broken, ThroughNumpy, ThroughPython])
def test_graph_breaks_do_not_recompile(kind: type[Hybrid], made: list[CompiledGraph]) -> None:
    model = kind()
    fast = compiled(model, TWO)
    with torch.no_grad():
        for shape in SHAPES:
            same(fast, model, *shape)
    assert graphs() == 2
    assert kinds(made) == [["engine"], ["engine"]]


def test_nothing_is_left_of_the_settings_of_the_trace() -> None:
    import torch.fx.experimental._config as fx_config

    with torch.no_grad():
        compiled(MLP(), RANGE)(torch.randn(2, 16))
    assert not fx_config.backed_size_oblivious
    assert fx_config.use_duck_shape
    assert not torch.compiler.config.dynamic_sources
    assert gc.isenabled()


def test_mark_dynamic_gives_the_range() -> None:
    model = MLP()
    fast = compiled(model, dynamic=None)
    x = torch.randn(8, 16)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=32)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        for batch in (2, 32):
            same(fast, model, batch, 16)
    assert graphs() == 1


def test_dynamic_without_ranges_takes_any_size() -> None:
    model = MLP()
    fast = compiled(model, dynamic=True)
    with torch.no_grad():
        for batch in (4, 2, 64, 3000):
            same(fast, model, batch, 16)
    assert graphs() == 1


def test_out_of_range_is_an_error() -> None:
    fast = compiled(MLP(), RANGE)
    with torch.no_grad():
        fast(torch.randn(4, 16))
        with pytest.raises(RequestError, match="is 33, outside the range 1 to 32"):
            fast(torch.randn(33, 16))
        assert fast(torch.randn(5, 16)).shape == (5, 4)


@pytest.mark.parametrize("policy", ["eager", "recompile"])
def test_out_of_range_can_be_taken(policy: str) -> None:
    model = MLP()
    fast = compiled(model, RANGE, out_of_range=policy)
    with torch.no_grad():
        for batch in (4, 33, 40, 5, 500):
            same(fast, model, batch, 16)
    assert graphs() == 1


def test_inputs_by_name_in_another_order_and_in_containers() -> None:
    @dataclass
    class Batch:
        ids: torch.Tensor
        mask: torch.Tensor

    class Model(torch.nn.Module):
        def forward(self, batch: Batch, extra: dict[str, torch.Tensor]) -> torch.Tensor:
            return batch.ids * batch.mask + extra["bias"]

    model = Model()
    fast = compiled(model, "extra.bias=float32[T]", "batch.mask=float32[B, T]", "batch.ids=float32[B=1:4:8, T=2:8:16]")
    with torch.no_grad():
        for size in ((1, 2), (8, 16)):
            given = Batch(torch.randn(*size), torch.randn(*size)), {"bias": torch.randn(size[1])}
            torch.testing.assert_close(fast(*given), model(*given))
    assert graphs() == 1


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ((RANGE, RANGE), "2 Inputs are given, and MLP.forward(x) gets 1 tensors"),
        ((RANGE.with_name("y"),), "MLP.forward(x) gets no tensor 'y'"),
        ((RANGE.with_dtype("int64"),), "'x' is float32, and its Input says int64"),
        ((Input(shape=(4, 4, 16)),), "'x' has 2 dimensions, and its Input has 3"),
    ],
    ids=["count", "name", "dtype", "rank"],
)
def test_inputs_that_do_not_match_show_both_sides(inputs: tuple[Input, ...], said: str) -> None:
    with torch.no_grad(), pytest.raises(SpecError) as error:
        compiled(MLP(), *inputs)(torch.randn(4, 16))
    assert said in error.value.what
    assert "the call: x=float32[4, 16]" in (error.value.where or "")
    assert str(inputs[0]) in (error.value.where or "")


def test_a_size_that_the_model_forces_is_named() -> None:
    with torch.no_grad(), pytest.raises(ExportError, match=r"dimension 1 of 'x' \(F\) can only be 16"):
        compiled(MLP(), "x=float32[B=1:4:8, F=2:16:64]")(torch.randn(4, 16))


def test_an_unknown_option_names_the_nearest() -> None:
    with torch.no_grad(), pytest.raises(SpecError, match="min_block_sizes") as error:
        compiled(MLP(), RANGE, min_block_sizes=3)(torch.randn(4, 16))
    assert "min_block_size" in (error.value.fix or "")


def test_attention_draws_nothing_in_eval_mode() -> None:
    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = x.unflatten(-1, (2, 8)).transpose(1, 2)
            attended = torch.nn.functional.scaled_dot_product_attention(q, q, q)
            return torch.nn.functional.dropout(attended.transpose(1, 2).flatten(2), 0.5, self.training)

    model = Attention()
    fast = compiled(model, TWO, require_full_compilation=True)
    with torch.no_grad():
        for shape in SHAPES:
            same(fast, model, *shape)
    assert graphs() == 1


def test_weights_that_change_are_taken() -> None:
    model = MLP()
    fast = compiled(model, RANGE)
    with torch.no_grad():
        same(fast, model, 4, 16)
        model.first.weight.mul_(2)
        same(fast, model, 4, 16)
        model.load_state_dict(MLP().state_dict())
        same(fast, model, 4, 16)
        model.second.bias = torch.nn.Parameter(torch.ones(4))
        same(fast, model, 4, 16)
    assert graphs() == 1


@pytest.mark.parametrize("own", [True, False], ids=["a module", "a function over one"])
def test_statistics_of_normalisation_are_taken(own: bool) -> None:
    """No version counter tells that they were written, where nothing else is trained."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Sequential(torch.nn.BatchNorm1d(8))).eval()

    def calls(x: torch.Tensor) -> torch.Tensor:
        return model(x)  # type: ignore[no-any-return]

    fast = compiled(model if own else calls, Input(min_shape=(1, 16), opt_shape=(8, 16), max_shape=(32, 16)))
    with torch.no_grad():
        same(fast, model, 4, 16)
        for _ in range(2):
            model.train()
            model(3 * torch.randn(8, 16) + 2)
            model.eval()
            same(fast, model, 4, 16)


def test_training_then_inference() -> None:
    """Steps run in PyTorch, with gradients and without a refit; the engine has the trained weights."""
    model = MLP()
    fast = compiled(model, RANGE)
    x = torch.randn(8, 16)
    with torch.no_grad():
        before = fast(x)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        fast(x).square().sum().backward()
        assert model.first.weight.grad is not None
        optimizer.step()
    model.eval()
    with torch.no_grad():
        after = fast(x)
        assert not torch.allclose(before, after)
        torch.testing.assert_close(after, model(x), rtol=1e-4, atol=1e-5)


def test_modules_of_torch_are_named_by_their_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
    fast = compiled(model, RANGE.with_name("input"))
    with torch.no_grad():
        for batch in (1, 32):
            same(fast, model, batch, 16)
        torch._dynamo.reset()
        with pytest.raises(SpecError, match=r"Sequential.forward\(input\) gets no tensor 'x'"):
            compiled(model, RANGE.with_name("x"))(torch.randn(1, 16))


def test_dropout_in_training_mode_stays_in_pytorch() -> None:
    model = torch.nn.Sequential(MLP(), torch.nn.Dropout(0.5))
    fast = compiled(model, RANGE)
    model.train()
    x = torch.randn(8, 16)
    assert (fast(x) == 0).any()
    with torch.no_grad(), pytest.warns(UserWarning, match="draws random numbers"):
        assert (fast(x) == 0).any()
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_gradients_in_eval_mode_are_pytorchs() -> None:
    model = MLP()
    fast = compiled(model, RANGE)
    x = torch.randn(8, 16, requires_grad=True)
    fast(x).square().sum().backward()
    found = [x.grad, *(p.grad for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    model(x).square().sum().backward()
    for one, other in zip(found, [x.grad, *(p.grad for p in model.parameters())], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_inference_mode_and_autocast() -> None:
    model = MLP()
    fast = compiled(model, RANGE)
    x = torch.randn(8, 16)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    # ONNX Runtime has no products in bfloat16; what matters here is what is exported.
    fast = compiled(model, RANGE, min_block_size=1000)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        given, expected = fast(x), model(x)
    assert given.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(given, expected, rtol=5e-2, atol=5e-2)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_threads() -> None:
    model = MLP()
    fast = compiled(model, RANGE)
    with torch.no_grad():
        same(fast, model, 4, 16)

    def work(batch: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                same(fast, model, batch, 16)

    together([functools.partial(work, batch) for batch in (1, 2, 16, 32)])
    assert graphs() == 1


def test_a_copy_has_weights_of_its_own() -> None:
    model = MLP()
    fast = compiled(model, RANGE)
    with torch.no_grad():
        same(fast, model, 4, 16)
        other = copy.deepcopy(model)
        other.first.weight.mul_(3)
        same(compiled(other, RANGE), other, 4, 16)
        same(fast, model, 4, 16)


def test_to_another_dtype_after_compiling() -> None:
    model = MLP()
    fast = compiled(model, dynamic=None)
    with torch.no_grad():
        same(fast, model, 4, 16)
        model.to(torch.float64)
        x = torch.randn(4, 16, dtype=torch.float64)
        torch.testing.assert_close(fast(x), model(x))


def test_a_buffer_that_changes_stays_in_pytorch() -> None:
    class Counts(MLP):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return super().forward(x) + self.count

    model = Counts()
    fast = compiled(model, RANGE)
    with torch.no_grad(), pytest.warns(UserWarning, match="changes its"):
        first = fast(torch.zeros(2, 16))
        second = fast(torch.zeros(2, 16))
    torch.testing.assert_close(second, first + 1)
    with torch.no_grad(), pytest.raises(BuilderError, match="changes its"):
        torch._dynamo.reset()
        compiled(model, RANGE, require_full_compilation=True)(torch.zeros(2, 16))


def test_functions_and_several_outputs(made: list[CompiledGraph]) -> None:
    weight = torch.randn(16, 4)

    def function(x: torch.Tensor, scale: float = 2.0) -> dict[str, Any]:
        y = x @ weight
        return {"y": y * scale, "rows": x.shape[0], "both": (y, y.sum(0))}

    fast = compiled(function, RANGE)
    with torch.no_grad(), contextlib.nullcontext():
        for batch in (1, 7, 32):
            x = torch.randn(batch, 16)
            given, expected = fast(x), function(x)
            assert given["rows"] == batch
            torch.testing.assert_close(given["y"], expected["y"], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(given["both"], expected["both"], rtol=1e-4, atol=1e-4)
    assert graphs() == 1
    assert kinds(made) == [["engine"]]


def test_a_number_made_of_data_stays_in_pytorch(made: list[CompiledGraph]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x + 1, torch.nonzero(x).shape[0]

    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        with torch.no_grad(), pytest.warns(UserWarning, match="PyTorch runs function"):
            assert compiled(function, RANGE)(torch.ones(2, 16))[1] == 32
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False
    assert not made
