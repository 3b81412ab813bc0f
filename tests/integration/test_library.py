"""The library, as a program would use it: compile, plan, build, save, load, publish."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import builder
from builder import BuilderError, Constant, Input
from builder.compiled_module import CompiledModule
from builder.errors import RepositoryError, RequestError, SpecError
from builder.runtime.manifest import Manifest
from builder.runtime.model import RuntimeModel
from tests.integration.threads import together

RANGE = Input(min_shape=(1, 16), opt_shape=(8, 16), max_shape=(32, 16))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # One for all: what is measured here is no build.
    monkeypatch.setenv("TRITON_REPO_CACHE", str(tmp_path_factory.getbasetemp() / "library_cache"))
    torch.manual_seed(0)


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.second = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


def compiled(model: torch.nn.Module, *inputs: Any, **options: Any) -> CompiledModule:
    result = builder.compile(model.eval(), list(inputs) or [RANGE], **{"compiler": "onnxruntime", **options})
    assert isinstance(result, CompiledModule)
    return result


def same(fast: Any, model: Any, *shape: int) -> None:
    x = torch.randn(*shape)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.fixture
def model() -> MLP:
    return MLP().eval()


def test_the_whole_range(model: MLP) -> None:
    fast = compiled(model)
    for batch in (1, 8, 32):
        same(fast, model, batch, 16)
    with pytest.raises(RequestError, match="is 33, outside the range 1 to 32"), torch.no_grad():
        fast(torch.randn(33, 16))


def test_weights_buffers_and_whole_parameters_are_followed(model: MLP) -> None:
    fast = compiled(model)
    with torch.no_grad():
        model.first.weight.mul_(2)
        same(fast, model, 4, 16)
        model.norm.running_mean.add_(1)
        same(fast, model, 4, 16)
        model.second = torch.nn.Linear(32, 4)
        model.first.bias = torch.nn.Parameter(torch.ones(32))
    same(fast, model, 4, 16)
    other = MLP().eval()
    fast.load_state_dict(other.state_dict())
    same(fast, other, 4, 16)


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "not cached"])
def test_new_weights_take_no_room_and_no_compilation(
    cache: bool, model: MLP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often they change, one set of files is there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fast = compiled(model, torch_executed_modules=["norm"], cache_built_engines=cache, reuse_cached_engines=cache)

    def files() -> int:
        return sum(p.is_file() and "cache" not in p.name for p in tmp_path.rglob("*"))

    with torch.no_grad():
        model.first.weight.mul_(1.1)
        same(fast, model, 4, 16)
        before = files()
        for part in (model.first, model.second, model.first, model.first):
            part.weight.mul_(1.1)
            same(fast, model, 4, 16)
    assert files() <= before
    assert [s.hit for s in fast.graph.running.compilation.segments] == [True, None, True]


def test_part_of_another_module(model: MLP) -> None:
    """Its names in a state_dict are those that the module has without it."""
    whole = torch.nn.Sequential(compiled(model), torch.nn.Linear(4, 2)).eval()
    plain = torch.nn.Sequential(MLP(), torch.nn.Linear(4, 2)).eval()
    assert list(whole.state_dict()) == list(plain.state_dict())
    whole.load_state_dict(plain.state_dict())
    same(whole, plain, 4, 16)
    plain.load_state_dict(whole.state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.module\.second\.bias"):
        whole.load_state_dict({n: v for n, v in plain.state_dict().items() if n != "0.second.bias"})


def test_what_no_counter_sees_takes_a_call(model: MLP) -> None:
    fast = compiled(model)
    model.first.weight.data.mul_(2)
    fast.refit()
    same(fast, model, 4, 16)


def test_training_and_autocast_are_pytorchs(model: MLP) -> None:
    fast = compiled(model)
    fast.train()
    x = torch.randn(8, 16)
    with pytest.warns(UserWarning, match="training mode"):
        fast(x).sum().backward()
    assert model.first.weight.grad is not None
    fast.eval()
    same(fast, model, 4, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), pytest.warns(UserWarning, match="autocast"):
        assert fast(x).dtype == torch.bfloat16


def test_gradients_in_eval_mode(model: MLP) -> None:
    fast = compiled(model)
    x = torch.randn(8, 16, requires_grad=True)
    fast(x).square().sum().backward()
    found = x.grad
    x.grad = None
    model(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("modules", [[], ["second"]])
def test_answers_are_ordinary_tensors(model: MLP, modules: list[str]) -> None:
    """Of a frozen model, under a head that is trained: whatever ran the last segment."""
    fast = compiled(model.requires_grad_(False), torch_executed_modules=modules)
    assert [s.kind for s in fast.graph.running.manifest.segments][-1] == ("fallback" if modules else "engine")
    head = torch.ones(4, requires_grad=True)
    features = fast(torch.randn(8, 16))
    (features * head).sum().backward()
    assert head.grad is not None
    features += 1


def test_copies_go_their_own_way(model: MLP) -> None:
    fast = compiled(model)
    other = copy.deepcopy(fast)
    with torch.no_grad():
        other.module.first.weight.mul_(2)
    same(other, other.module, 4, 16)
    same(fast, model, 4, 16)
    del fast
    same(other, other.module, 8, 16)


def test_another_dtype_compiles_again(model: MLP) -> None:
    fast = compiled(model).to(torch.float64)
    x = torch.randn(4, 16, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


def test_threads_take_new_weights_together(model: MLP) -> None:
    fast = compiled(model)
    with torch.no_grad():
        model.first.weight.mul_(2)

    def work(batch: int) -> None:
        for _ in range(10):
            same(fast, model, batch, 16)

    together([functools.partial(work, batch) for batch in (1, 2, 16, 32)])


@pytest.mark.parametrize("policy", ["eager", "recompile"])
def test_out_of_range(model: MLP, policy: str) -> None:
    fast = compiled(model, out_of_range=policy)
    for batch in (33, 4, 500):
        same(fast, model, batch, 16)


@dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor


class Structured(torch.nn.Module):
    def forward(self, batch: Batch, steps: int, causal: bool = False, extra: Any = None) -> dict[str, Any]:
        y = batch.ids * batch.mask
        if causal:
            y = y.cumsum(1)
        return {"y": y.unsqueeze(0).expand(steps, -1, -1) + 0, "none": None, "pair": (y.sum(0), y + 1)}


def test_arguments_and_outputs_as_the_modules_own(tmp_path: Path) -> None:
    model = Structured()
    fast = compiled(
        model,
        "batch.ids=float32[B=1:4:8, T=2:8:16]",
        "batch.mask=float32[B, T]",
        "steps=1:2:8",
        Constant(True, "causal"),
    )
    path = tmp_path / "structured.bin"
    builder.save(fast, path)
    for runs in (fast, builder.load(path)):
        with torch.no_grad():
            for shape, steps in (((1, 2), 1), ((8, 16), 8)):
                batch = Batch(torch.randn(*shape), torch.randn(*shape))
                given = runs(batch, steps, causal=True)
                expected = model(batch, steps, causal=True)
                assert given["none"] is None
                torch.testing.assert_close((given["y"], given["pair"]), (expected["y"], expected["pair"]))
            with pytest.raises(RequestError, match="'causal' is False, and the model was built for True"):
                runs(batch, 2, causal=False)
            with pytest.raises(RequestError, match="'extra' was not there when the model was built"):
                runs(batch, 2, causal=True, extra=1)
            with pytest.raises(RequestError, match="'steps' is missing"):
                runs(batch)


def test_a_file_runs_in_a_new_process_without_the_model(model: MLP, tmp_path: Path) -> None:
    fast = compiled(model, torch_executed_ops=["aten::relu"])
    with torch.no_grad():
        model.first.weight.mul_(2)
    path = tmp_path / "mlp.bin"
    builder.save(fast, path)
    x = torch.randn(5, 16)
    torch.save((x, model(x)), tmp_path / "pair.pt")
    code = f"""
import torch, builder
x, expected = torch.load({str(tmp_path / "pair.pt")!r})
with torch.no_grad():
    torch.testing.assert_close(builder.load({str(path)!r})(x), expected, rtol=1e-4, atol=1e-5)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_files_hold_no_pickle_and_damage_is_found(model: MLP, tmp_path: Path) -> None:
    path = tmp_path / "mlp.bin"
    builder.save(compiled(model), path)
    with zipfile.ZipFile(path) as archive:
        assert not [n for n in archive.namelist() if n.endswith((".pkl", ".pickle", ".pt"))]
        names = archive.namelist()
        offset = archive.getinfo(names[-1]).header_offset
    data = bytearray(path.read_bytes())
    data[offset + 200] ^= 0xFF
    (tmp_path / "damaged.bin").write_bytes(data)
    (tmp_path / "none.bin").write_bytes(b"something")
    for name in ("damaged.bin", "none.bin", "missing.bin"):
        with pytest.raises(RepositoryError):
            builder.load(tmp_path / name)
    with pytest.raises(RepositoryError, match="cannot be written"):
        builder.save(compiled(model), tmp_path / "no" / "such" / "place")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged.bin", "mlp.bin", "none.bin"]


def test_a_file_cannot_write_outside(model: MLP, tmp_path: Path) -> None:
    path = tmp_path / "mlp.bin"
    builder.save(compiled(model), path)
    with zipfile.ZipFile(path) as archive:
        content = {n: archive.read(n) for n in archive.namelist()}
    text = content["manifest.json"].decode().replace("segment_0/model.onnx", "../outside.onnx")
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**content, "manifest.json": text.encode(), "../outside.onnx": b""}.items():
            archive.writestr(name, data)
    with pytest.raises(RepositoryError, match="outside of it"):
        builder.load(path)


def test_it_cannot_be_pickled(model: MLP) -> None:
    with pytest.raises(SpecError, match=r"builder\.save"):
        pickle.dumps(compiled(model))


def test_plan_and_dryrun_compile_nothing(model: MLP, capsys: pytest.CaptureFixture[str]) -> None:
    plan = builder.plan(model, [RANGE], compiler="onnxruntime", torch_executed_ops=["aten::relu"])
    assert [s.kind for s in plan.segments] == ["engine", "fallback", "engine"]
    assert builder.compile(model, [RANGE], compiler="onnxruntime", dryrun=True) is model
    assert "segment_0" in capsys.readouterr().out


def test_build_and_publish_a_module(model: MLP, tmp_path: Path) -> None:
    root = tmp_path / "model_repo"
    builder.build(model, [RANGE], root=root, name="mlp", compiler="onnxruntime")
    fast = compiled(model)
    with torch.no_grad():
        model.first.weight.mul_(2)
    second = builder.publish(fast, root, name="mlp")
    assert second.publication.version == 2
    x = torch.randn(3, 16)
    served = RuntimeModel(root / "mlp" / "2", manifest=Manifest.read(root / "mlp" / "2"))
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(served({"x": x})["output"]), model(x), rtol=1e-4, atol=1e-5)


def test_nothing_is_kept_without_the_cache(model: MLP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("TRITON_REPO_CACHE", str(cache))
    off = {"compiler": "onnxruntime", "cache_built_engines": False, "reuse_cached_engines": False}
    builder.build(model, [RANGE], root=tmp_path / "repo", **off)
    same(builder.compile(model, [RANGE], **off), model, 4, 16)
    assert not cache.exists()


def test_build_a_source_with_settings(tmp_path: Path) -> None:
    result = builder.build(
        "tests.models.nets:hybrid",
        ["x=float32[B=1:2:4, T=2:4:8, 16]"],
        root=tmp_path / "repo",
        compiler="onnxruntime",
        require_full_compilation=False,
        triton={"instance_group": [{"count": 2, "kind": "KIND_CPU"}]},
    )
    assert "count: 2" in (result.publication.path.parent / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: builder.compile(m, [3]), "an object of type int among the inputs"),
        (lambda m: builder.compile(m, 3), "an object of type int among the inputs"),
        (lambda m: builder.compile("x", [RANGE]), "give a torch.nn.Module"),
        (lambda m: builder.compile(m, [RANGE], compilers="auto"), "did you mean 'compiler'"),
        (lambda m: builder.compile(m, [RANGE], compiler="onnxruntime", device="cuda"), "not for cuda"),
        (lambda m: builder.save(m, "x"), "was not compiled here"),
        (lambda m: builder.publish(m, "x"), "was not compiled here"),
    ],
    ids=["input", "inputs", "module", "option", "device", "save", "publish"],
)
def test_errors_are_one_message(model: MLP, call: Any, said: str) -> None:
    with pytest.raises(BuilderError) as error:
        call(model)
    assert said in str(error.value)


def test_a_wrong_engine_is_found_while_it_is_compiled(model: MLP, monkeypatch: pytest.MonkeyPatch) -> None:
    from builder.runtime.steps import Steps

    right = Steps.run
    monkeypatch.setattr(Steps, "run", lambda self, inputs, profile=0: [v + 1 for v in right(self, inputs, profile)])
    with pytest.raises(BuilderError, match="output"):
        compiled(model)


def test_no_directory_is_left(model: MLP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fast = compiled(model)
    same(fast, model, 2, 16)
    del fast
    import gc

    gc.collect()
    assert not list(tmp_path.iterdir())
