"""The real server: our repository beside a hand-written Python model, what our Python model costs, and an ensemble beside it.

Every ratio is of two figures of one run.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks import Figure
from benchmarks.clients import rates_in_turn, requests_per_second, write_by_hand
from builder.cache.options import CacheOptions
from builder.pipeline import build
from builder.runtime.manifest import Manifest
from builder.runtime.runners import load_runner
from builder.runtime.triton import TritonModel
from builder.serving.client import Client
from builder.serving.server import TritonServer
from builder.spec import BuildSpec, find_spec
from builder.triton_options import RepositoryOptions, TritonOptions
from tests.integration.standins import stand_in

CLIENTS = 8
SECONDS = 15.0
CALLS = 3000

# What somebody writes who serves a sentence encoder by hand.
EAGER = """
import sys

sys.path.insert(0, {examples!r})

import torch
import triton_python_backend_utils as pb_utils

from minilm import load


class TritonPythonModel:
    def initialize(self, args):
        self.model = load().eval()

    def execute(self, requests):
        responses = []
        for request in requests:
            given = [
                torch.from_numpy(pb_utils.get_input_tensor_by_name(request, name).as_numpy())
                for name in ("input_ids", "attention_mask")
            ]
            with torch.inference_mode():
                output = self.model(*given)
            output = output["sentence_embedding"] if isinstance(output, dict) else output
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("sentence_embedding", output.numpy())])
            )
        return responses
"""


def measure() -> Iterator[Figure]:
    """Figures of MiniLM, of our Python model alone, and of three segments."""
    with tempfile.TemporaryDirectory() as place:
        yield from _minilm(Path(place))
        yield from _own_cost(Path(place))
        _three_segments(Path(place))


def _minilm(place: Path) -> Iterator[Figure]:
    cache = CacheOptions(place / "cache")
    repository = place / "minilm"
    spec = find_spec("minilm", name="ours", overrides={"compiler": "onnxruntime"})
    padded = spec.model_copy(
        update={"name": "padded", "triton": TritonOptions(ragged={"input_ids": 0, "attention_mask": 0})}
    )
    plain = spec.model_copy(update={"triton": TritonOptions()})
    for model in (plain, padded):
        build(model, root=repository, cache=cache)
    examples = str(Path(__file__).resolve().parent.parent / "examples")
    write_by_hand(repository, "ours", "eager", EAGER.format(examples=examples))
    names = ("eager", "ours", "padded")
    with TritonServer(repository) as server:
        requests_per_second(server, "eager", _sentences, CLIENTS, 2.0)
        rates = rates_in_turn(server, names, _sentences, CLIENTS, SECONDS)
    for name in names:
        _say(f"MiniLM, {CLIENTS} clients, mixed lengths, requests/s: {name}", rates[name])
    yield Figure("MiniLM: ours over hand-written eager", rates["ours"] / rates["eager"], 1.5, least=True)
    yield Figure("MiniLM: padded batches over hand-written eager", rates["padded"] / rates["eager"], 1.5, least=True)


def _sentences(client: int) -> Iterator[Mapping[str, np.ndarray[Any, Any]]]:
    lengths, generator = random.Random(client), np.random.default_rng(client)
    while True:
        size = min(256, max(8, int(lengths.lognormvariate(3.3, 0.6))))
        ids = generator.integers(1, 30000, (1, size))
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _own_cost(place: Path) -> Iterator[Figure]:
    """Our Python model called as the server calls it, without the server, beside its engine alone."""
    spec = find_spec(
        "tests.models.rows:Scores",
        name="tiny",
        inputs=["x=float32[B=1:4:16, 4]", "weight=float32[B]"],
        overrides={"compiler": "onnxruntime"},
    )
    version = build(spec, root=place / "tiny", cache=CacheOptions(place / "cache")).publication.path
    manifest = Manifest.read(version)
    (segment,) = manifest.segments
    engine = load_runner(segment, version)
    model = TritonModel(version, _Utils, {}, kind="CPU", device_id="0")
    arrays = {"x": np.ones((1, 4), np.float32), "weight": np.ones(1, np.float32)}
    inputs = [arrays[t.name] for t in segment.inputs]
    requests = {n: [_Request(arrays) for _ in range(n)] for n in (1, 8)}
    alone = _median(lambda: engine.run(inputs))
    _say("tiny model: the engine alone, microseconds", alone * 1e6)
    for count, batch in requests.items():
        ours = _median(lambda batch=batch: model.execute(batch)) / count  # type: ignore[misc]
        _say(f"tiny model: our Python model, {count} at a time, microseconds each", ours * 1e6)
        if count == 1:
            yield Figure("tiny model: our own cost of a request, microseconds", (ours - alone) * 1e6, 100)


def _median(work: Callable[[], Any], count: int = CALLS) -> float:
    for _ in range(200):
        work()
    times = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


class _Request:
    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.tensors = {name: _Tensor(name, array) for name, array in arrays.items()}

    def requested_output_names(self) -> list[str]:
        return []


class _Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._array = array

    def is_cpu(self) -> bool:
        return True

    def as_numpy(self) -> Any:
        return self._array

    @classmethod
    def from_dlpack(cls, name: str, capsule: Any) -> _Tensor:
        return cls(name, torch.utils.dlpack.from_dlpack(capsule).numpy())


# As much of `triton_python_backend_utils` as is called for.
_Utils = SimpleNamespace(
    Tensor=_Tensor,
    InferenceResponse=lambda output_tensors, error=None: output_tensors,
    TritonError=str,
    get_input_tensor_by_name=lambda request, name: request.tensors.get(name),
)


def _three_segments(place: Path) -> None:
    cache = CacheOptions(place / "cache")
    repository = place / "three"
    for layout in ("python", "ensemble"):
        spec: BuildSpec = find_spec(
            "tests.models.nets:hybrid",
            name=layout,
            inputs=["x=float32[B=1:8:32, T=2:16:64, 16]"],
            overrides={"compiler": "onnxruntime"},
        )
        options = RepositoryOptions(layout=layout, triton="26.09", fallback="python")  # type: ignore[arg-type]
        build(spec.model_copy(update={"repository": options}), root=repository, cache=cache)
    stand_in(repository)
    x = {"x": np.zeros((1, 8, 16), np.float32)}
    latency, rate = {}, {}
    with TritonServer(repository) as server:
        for name in ("python", "ensemble"):
            with Client("grpc", server.grpc_url) as client:
                latency[name] = _median(lambda n=name, c=client: c.infer(n, x), 500)  # type: ignore[misc]
            rate[name] = requests_per_second(server, name, lambda _: itertools.repeat(x), CLIENTS, 5.0)
    _say("three segments: latency of an ensemble over one Python model", latency["ensemble"] / latency["python"])
    _say("three segments: requests/s of an ensemble over one Python model", rate["ensemble"] / rate["python"])


def _say(name: str, value: float) -> None:
    """A figure of which nothing is asked."""
    print(f"{name:72} {value:9.3g}", flush=True)
