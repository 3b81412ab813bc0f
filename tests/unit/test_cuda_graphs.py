"""When a shape is captured and replayed, against a CUDA that runs at once. What only a GPU shows is in tests/gpu."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from builder.errors import SpecError
from builder.library import plan
from builder.runtime.cuda_graphs import CudaGraphs
from tests.models.breaks import MLP
from tests.unit.fake_cuda import Stream, one_stream


class Graph:
    """Replays by calling again what was captured, and writing where it wrote."""

    made: list[Graph]
    capturing: Graph | None = None

    def __init__(self) -> None:
        self.replays = 0
        Graph.made.append(self)

    def replay(self) -> None:
        self.replays += 1
        self.again()

    again: Callable[[], object]

    def capture_begin(self, **_: Any) -> None:
        assert Generator.state != "everybody's", "a graph must not take the generator that all threads draw from"
        Graph.capturing = self

    def capture_end(self) -> None:
        if Graph.capturing is not self:
            raise RuntimeError("not capturing")
        Graph.capturing = None


class Generator:
    """The GPU's own, of which graphs take hold."""

    state = "everybody's"

    def graphsafe_get_state(self) -> str:
        return Generator.state

    def clone_state(self) -> str:
        return "a clone"

    def graphsafe_set_state(self, state: str) -> None:
        Generator.state = state


class Segment:
    """Adds one; knows how often it was called, and binds what a graph replays."""

    def __init__(self) -> None:
        self.calls = 0
        self.fail = ""

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        self.calls += 1
        graph = Graph.capturing
        if graph and self.fail:
            raise RuntimeError(self.fail)
        (x,) = tensors
        outputs = [x + 1]
        if graph:
            graph.again = lambda: [outputs[0].copy_(x + 1)]
        return outputs


@pytest.fixture()
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    made = one_stream(monkeypatch)
    Graph.made = []
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "default_generators", [Generator()])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    yield made
    assert Generator.state == "everybody's" and Graph.capturing is None


def test_the_second_call_of_a_shape_is_captured_and_the_third_replayed(stream: Stream) -> None:
    graphs, segment = CudaGraphs("segment_0", "cuda:0"), Segment()
    for number in range(4):
        (given,) = graphs([torch.full((3,), float(number))], segment)
        assert given.tolist() == [number + 1.0] * 3
    assert [g.replays for g in Graph.made] == [2]
    assert segment.calls == 2 + 2, "twice for requests, once to load kernels, once captured"
    graphs([torch.zeros(4)], segment)
    assert len(Graph.made) == 1, "another shape comes for the first time"


def test_no_later_call_writes_to_an_answer(stream: Stream) -> None:
    graphs, segment = CudaGraphs("segment_0", "cuda:0"), Segment()
    answers = [graphs([torch.full((2,), float(n))], segment)[0] for n in range(5)]
    assert [a.tolist() for a in answers] == [[n + 1.0] * 2 for n in range(5)]


def test_the_caller_may_change_its_tensors_and_be_in_inference_mode(stream: Stream) -> None:
    graphs, segment = CudaGraphs("segment_0", "cuda:0"), Segment()
    x = torch.zeros(2)
    for number in range(6):
        x.fill_(number)
        with torch.inference_mode(number % 2 == 1), torch.enable_grad():
            assert graphs([x], segment)[0].tolist() == [number + 1.0] * 2


def test_a_replay_waits_for_the_one_before_it(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, segment = CudaGraphs("segment_0", "cuda:0"), Segment()
    for _ in range(3):
        graphs([torch.zeros(2)], segment)
    other = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: other)
    graphs([torch.zeros(2)], segment)
    assert len(other.waited) == 1


def test_profiles_are_captured_apart_and_only_so_many_shapes(stream: Stream) -> None:
    graphs, segment = CudaGraphs("segment_0", "cuda:0"), Segment()
    for profile in (0, 1, 0, 1):
        graphs([torch.zeros(2)], segment, profile=profile)
    assert len(Graph.made) == 2
    for size in [*range(3, 30)] * 2:
        graphs([torch.zeros(size)], segment)
    assert len(Graph.made) == 16


def test_what_cannot_be_captured_runs_as_it_was(stream: Stream) -> None:
    graphs, segment = CudaGraphs("segment_3", "cuda:0"), Segment()
    segment.fail = "operation not permitted when stream is capturing"
    graphs([torch.zeros(2)], segment)
    with pytest.warns(UserWarning, match="segment_3 captures no more CUDA graphs: operation not permitted"):
        graphs([torch.zeros(2)], segment)
    for _ in range(3):
        assert graphs([torch.ones(2)], segment)[0].tolist() == [2.0, 2.0]
    assert len(Graph.made) == 1


def test_a_request_is_answered_where_a_graph_has_no_room(stream: Stream) -> None:
    graphs, segment = CudaGraphs("segment_0", "cuda:0"), Segment()

    def own() -> Segment:
        raise MemoryError("no execution context")

    graphs([torch.zeros(2)], segment, own)
    with pytest.warns(UserWarning, match="no execution context"):
        (given,) = graphs([torch.ones(2)], segment, own)
    assert given.tolist() == [2.0, 2.0]


def test_an_output_on_the_host_is_not_captured(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, segment = CudaGraphs("segment_0", "cuda:0"), Segment()
    monkeypatch.setattr(torch.Tensor, "is_cuda", False)
    graphs([torch.zeros(2)], segment)
    with pytest.warns(UserWarning, match="host"):
        graphs([torch.zeros(2)], segment)
    assert graphs([torch.ones(2)], segment)[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("compiler", ["onnxruntime", "inductor"])
def test_no_graphs_without_a_gpu(compiler: str) -> None:
    with pytest.raises(SpecError, match="CUDA graphs run on a GPU alone") as caught:
        plan(MLP().eval(), ["float32[B=1:2:4, 16]"], compiler=compiler, device="cpu", cuda_graphs=True)
    assert caught.value.where == "settings.cuda_graphs"
