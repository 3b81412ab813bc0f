"""Running and refitting plans, against a small fake: order of calls, profiles, allocators, threads, refusals.

What only a GPU shows is in tests/gpu_tensorrt.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from builder.compilers.base import RefitError
from builder.compilers.tensorrt.flavour import TENSORRT
from builder.compilers.tensorrt.network import WeightlessGraph
from builder.compilers.tensorrt.refit import refit_plan
from builder.compilers.tensorrt.timing import timing_cache
from builder.errors import CompileError
from builder.runtime import tensorrt as runtime
from builder.runtime.manifest import SegmentSpec
from builder.types import Range, TensorSpec
from tests.unit.fake_cuda import Stream, one_stream
from tests.unit.fake_tensorrt import DataType, FakeTensorRT, SerializationFlag

FLOAT, HALF, INT64 = DataType.FLOAT, DataType.HALF, DataType.INT64


@pytest.fixture()
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    return one_stream(monkeypatch)


def runner(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fake: FakeTensorRT,
    outputs: tuple[str, ...] = ("float32",),
    inputs: int = 1,
    cuda_graphs: bool = False,
    **options: Any,
) -> runtime.TensorRTRunner:
    monkeypatch.setattr(runtime.importlib, "import_module", lambda name: fake)
    plan = tmp_path / "model.plan"
    plan.write_bytes(b"plan")
    anything = (Range(0, 1, None),)
    spec = SegmentSpec(
        "segment_0",
        "engine",
        "tensorrt",
        "model.plan",
        tuple(TensorSpec(f"i{i}", "float32", anything) for i in range(inputs)),
        tuple(TensorSpec(f"o{i}", d, anything) for i, d in enumerate(outputs)),
    )
    # Its tensors stay where the fake can read them.
    return runtime.TensorRTRunner(plan, spec, "cpu:0", options, cuda_graphs=cuda_graphs)


def test_shapes_and_addresses_are_set_before_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream
) -> None:
    fake = FakeTensorRT({"input_0": FLOAT, "input_1": FLOAT}, {"output_0": FLOAT}, lambda a, b: (a @ b,))
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    (got,) = runner(monkeypatch, tmp_path, fake, inputs=2).run([a.numpy(), b])
    torch.testing.assert_close(got, a @ b)
    names = [c[0] for c in fake.calls]
    assert names.index("execute") == len(names) - 1
    assert [c for c in fake.calls if c[0] == "set_tensor_address"] == [
        ("set_tensor_address", n) for n in ("input_0", "input_1", "output_0")
    ]
    assert fake.calls[-1] == ("execute", 0, stream.cuda_stream), "on the caller's stream"


def test_an_input_that_the_plan_does_not_have_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream
) -> None:
    fake = FakeTensorRT({"input_1": FLOAT}, {"output_0": FLOAT}, lambda b: (b + 1,))
    (got,) = runner(monkeypatch, tmp_path, fake, inputs=2).run([torch.ones(5), torch.ones(2)])
    assert got.tolist() == [2.0, 2.0]


def test_values_take_the_dtype_of_the_plan_and_of_the_manifest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream
) -> None:
    fake = FakeTensorRT({"input_0": FLOAT}, {"output_0": FLOAT}, lambda a: (a * 2,))
    (got,) = runner(monkeypatch, tmp_path, fake, ("float64",)).run([torch.ones(3, dtype=torch.float64)])
    assert got.dtype is torch.float64 and got.tolist() == [2.0] * 3


def test_strided_inputs_and_empty_tensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream) -> None:
    fake = FakeTensorRT({"input_0": FLOAT}, {"output_0": FLOAT}, lambda a: (a + 1,))
    made = runner(monkeypatch, tmp_path, fake)
    x = torch.arange(6.0).reshape(2, 3).T
    torch.testing.assert_close(made.run([x])[0], x + 1)
    assert made.run([torch.empty(0, 3)])[0].shape == (0, 3)


def test_each_profile_has_a_context_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream) -> None:
    fake = FakeTensorRT({"input_0": FLOAT}, {"output_0": FLOAT}, lambda a: (a + 1,), profiles=3)
    made = runner(monkeypatch, tmp_path, fake)
    for profile in (2, 0, 2, 1):
        made.run([torch.ones(2)], profile)
    assert [c[1] for c in fake.calls if c[0] == "execute"] == [2, 0, 2, 1]
    assert [c[1] for c in fake.calls if c[0] == "set_optimization_profile_async"] == [2, 1], (
        "0 is what a context begins with"
    )
    assert sum(c[0] == "create_execution_context" for c in fake.calls) == 3


def test_sizes_that_depend_on_data_are_allocated_when_they_are_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream
) -> None:
    fake = FakeTensorRT(
        {"input_0": FLOAT},
        {"output_0": FLOAT, "output_1": INT64},
        lambda a: (a[a > 0], (a > 0).nonzero()),
        data_dependent=True,
    )
    made = runner(monkeypatch, tmp_path, fake, ("float32", "int64"))
    for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([-1.0]), torch.arange(1.0, 100.0)):
        values, places = made.run([x])
        assert torch.equal(values, x[x > 0]) and torch.equal(places, (x > 0).nonzero())


def test_values_that_are_sizes_stay_on_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream
) -> None:
    fake = FakeTensorRT(
        {"input_0": INT64}, {"output_0": FLOAT}, lambda n: (torch.ones(int(n)),), host=frozenset({"input_0"})
    )
    made = runner(monkeypatch, tmp_path, fake, cuda_graphs=True)
    assert made.run([np.array(3)])[0].tolist() == [1.0, 1.0, 1.0]
    assert made._graphs is None, "no graph can hold a size that the host reads"


@pytest.mark.parametrize(
    "call",
    ["set_input_shape", "set_tensor_address", "execute", "create_execution_context", "set_optimization_profile_async"],
)
def test_every_refusal_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream, call: str) -> None:
    fake = FakeTensorRT({"input_0": FLOAT}, {"output_0": FLOAT}, lambda a: (a,), profiles=2)
    made = runner(monkeypatch, tmp_path, fake)
    fake.refuse.add(call)
    with pytest.raises(CompileError, match="TensorRT refused"):
        made.run([torch.ones(2)], 1)


def test_weights_are_streamed_within_a_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream) -> None:
    fake = FakeTensorRT({"input_0": FLOAT}, {"output_0": FLOAT}, lambda a: (a,))
    assert runner(monkeypatch, tmp_path, fake, weight_streaming=True)._engine.weight_streaming_budget_v2 == 1 << 20
    assert runner(monkeypatch, tmp_path, fake)._engine.weight_streaming_budget_v2 is None


def test_a_plan_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream) -> None:
    fake = FakeTensorRT({"input_0": FLOAT}, {"output_0": FLOAT}, lambda a: (a,))
    fake.refuse.add("deserialize")
    with pytest.raises(CompileError, match="cannot load the plan"):
        runner(monkeypatch, tmp_path, fake)
    fake.refuse = {"load_library"}
    with pytest.raises(CompileError, match="plugin library"):
        runner(monkeypatch, tmp_path, fake, plugins=["lib.so"])


def test_calls_on_two_streams_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream
) -> None:
    fake = FakeTensorRT({"input_0": FLOAT}, {"output_0": FLOAT}, lambda a: (a,))
    made = runner(monkeypatch, tmp_path, fake)
    made.run([torch.ones(1)])
    other = Stream(8)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: other)
    made.run([torch.ones(1)])
    assert len(other.waited) == 1 and not stream.waited


def test_threads_share_a_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream) -> None:
    fake = FakeTensorRT({"input_0": FLOAT}, {"output_0": FLOAT}, lambda a: (a * 3,), profiles=2)
    made = runner(monkeypatch, tmp_path, fake)
    wrong: list[int] = []

    def call(number: int) -> None:
        for length in range(1, 20):
            x = torch.full((length,), float(number))
            if not torch.equal(made.run([x], number % 2)[0], x * 3):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def graph(*names: str) -> tuple[WeightlessGraph, np.ndarray[Any, Any]]:
    weights = np.arange(4 * len(names), dtype=np.uint8)
    places = [(name, weights.ctypes.data + 4 * i, 4) for i, name in enumerate(names)]
    return WeightlessGraph(b"graph", places, [], frozenset({*names, "constant"}), [], weights), weights


def refitted(fake: FakeTensorRT, tmp_path: Path, *names: str) -> bytes:
    plan, done = tmp_path / "stripped.plan", tmp_path / "model.plan"
    plan.write_bytes(b"stripped")
    given, _ = graph(*names)
    refit_plan(fake, TENSORRT, plan, given, done)
    return done.read_bytes()


def test_refit_in_order(tmp_path: Path) -> None:
    fake = FakeTensorRT({}, {}, None)
    assert refitted(fake, tmp_path, "w0", "w1") == b"full", "EXCLUDE_WEIGHTS is cleared before the engine is serialised"
    assert [c[0] for c in fake.calls] == [
        "deserialize", "load_model_proto", "load_initializer", "load_initializer", "refit_model_proto",
        "get_missing_weights", "get_all_weights", "refit_cuda_engine", "clear_flag", "serialize",
    ]  # fmt: skip
    assert fake.calls[0] == ("deserialize", b"stripped")
    assert fake.calls[2:4] == [
        ("load_initializer", "w0", bytes(range(4))),
        ("load_initializer", "w1", bytes(range(4, 8))),
    ]
    assert fake.calls[-2] == ("clear_flag", SerializationFlag.EXCLUDE_WEIGHTS)


@pytest.mark.parametrize(
    "call",
    ["deserialize", "load_model_proto", "load_initializer", "refit_model_proto", "refit_cuda_engine", "serialize"],
)
def test_a_refit_that_fails_anywhere_is_an_error(tmp_path: Path, call: str) -> None:
    fake = FakeTensorRT({}, {}, None)
    fake.refuse.add(call)
    with pytest.raises(RefitError):
        refitted(fake, tmp_path, "w0", "w1")
    assert not (tmp_path / "model.plan").exists()


def test_missing_and_stale_weights_are_found(tmp_path: Path) -> None:
    with pytest.raises(RefitError, match="w9"):
        refitted(FakeTensorRT({}, {}, None, missing=("w9",)), tmp_path, "w0", "w1")
    constant = FakeTensorRT({}, {}, None, weights=("w0", "w1", "constant"))
    assert refitted(constant, tmp_path, "w0", "w1") == b"full", "a constant of the graph is given with it"
    with pytest.raises(RefitError, match="stale"):
        refitted(FakeTensorRT({}, {}, None, weights=("w0", "w1", "stale")), tmp_path, "w0", "w1")


class Cache:
    def __init__(self, data: bytes) -> None:
        self.known = set(data.split())

    def combine(self, other: Cache, ignore_mismatch: bool) -> bool:
        assert other is not self, "that never returns"
        self.known |= other.known
        return True

    def serialize(self) -> bytes:
        return b" ".join(sorted(self.known))


def config(measures: bytes, refuses: bool = False) -> Any:
    made = SimpleNamespace(cache=None)
    made.create_timing_cache = Cache

    def set_timing_cache(cache: Cache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if refuses and cache.known:
            return False
        made.cache = cache
        return True

    made.set_timing_cache = set_timing_cache
    made.build = lambda: made.cache.known.add(measures)
    return made


def test_the_timing_cache_grows_with_each_build(tmp_path: Path) -> None:
    path = tmp_path / "timing" / "file.bin"
    for kernel in (b"a", b"b"):
        made = config(kernel)
        with timing_cache(made, path):
            made.build()
    assert path.read_bytes() == b"a b"
    assert [p.name for p in path.parent.iterdir() if p.suffix != ".lock"] == ["file.bin"]


def test_what_two_builds_measure_at_once_is_merged(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    one, other = config(b"a"), config(b"b")
    with timing_cache(one, path):
        one.build()
        with timing_cache(other, path):
            other.build()
    assert path.read_bytes() == b"a b"


def test_a_timing_cache_of_another_device_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    made = config(b"new", refuses=True)
    with timing_cache(made, path):
        assert made.cache.known == set()
        made.build()


def test_a_directory_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = config(b"a")
    with timing_cache(made, tmp_path / "file" / "timing.bin"):
        made.build()
