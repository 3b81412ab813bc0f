"""A GPU and the real server: an encoder in our Python layout beside a hand-written eager Python model, in one run.

Needs CUDA and a Triton server; run by hand: python -m benchmarks serving_gpu
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks import Figure
from builder.build import build
from builder.cache.options import CacheOptions
from builder.repository.plan import CONFIG_NAME
from builder.serving.client import Client
from builder.serving.server import TritonServer
from builder.spec import find_spec
from builder.triton_options import TritonOptions

CLIENTS = 16
SECONDS = 8.0
INPUT = "ids=int64[B=1:8:32, T=8:64:256] in 0..999"
INSTANCES = [{"count": 1, "kind": "KIND_GPU", "gpus": [0]}]

EAGER = """
import torch
import triton_python_backend_utils as pb_utils

from benchmarks.serving_gpu import encoder


class TritonPythonModel:
    def initialize(self, args):
        self.model = encoder().eval().to("cuda"){half}

    def execute(self, requests):
        responses = []
        for request in requests:
            ids = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "ids").as_numpy()).to("cuda")
            with torch.inference_mode():
                output = self.model(ids).float()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("output", output.cpu().numpy())]))
        return responses
"""


class Encoder(torch.nn.Module):
    """Of MiniLM's size: six layers of width 384."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 384)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(384) for _ in range(12))
        self.attentions = torch.nn.ModuleList(torch.nn.Linear(384, 3 * 384) for _ in range(6))
        self.projections = torch.nn.ModuleList(torch.nn.Linear(384, 384) for _ in range(6))
        self.feeds = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(384, 1536), torch.nn.GELU(), torch.nn.Linear(1536, 384))
            for _ in range(6)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids, int64 [B, T], to embeddings [B, 384]."""
        x = self.embedding(ids)
        for index in range(6):
            shape = (*x.shape[:2], 12, 32)
            q, k, v = (
                t.reshape(shape).transpose(1, 2) for t in self.attentions[index](self.norms[2 * index](x)).chunk(3, -1)
            )
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.projections[index](mixed.transpose(1, 2).reshape(x.shape))
            x = x + self.feeds[index](self.norms[2 * index + 1](x))
        return x.mean(1)


def encoder() -> torch.nn.Module:
    """With weights that are always the same."""
    torch.manual_seed(0)
    return Encoder()


def measure() -> Iterator[Figure]:
    """Requests per second of 16 clients, for each precision."""
    if not torch.cuda.is_available():
        print("serving_gpu: torch sees no GPU", flush=True)
        return
    with tempfile.TemporaryDirectory() as place:
        repository = Path(place) / "models"
        for precision in ("fp32", "fp16"):
            _prepare(Path(place), repository, precision)
        names = [f"{kind}_{p}" for p in ("fp32", "fp16") for kind in ("eager", "ours")]
        with TritonServer(repository, startup_timeout=300) as server:
            for name in names:
                _load(server, name, 2.0)
            rates = dict.fromkeys(names, 0.0)
            for _ in range(2):
                for name in names:
                    rates[name] += _load(server, name, SECONDS) / 2
    for name, rate in rates.items():
        print(f"encoder of MiniLM's size, {CLIENTS} clients, requests/s: {name:20} {rate:9.4g}", flush=True)
    for precision in ("fp32", "fp16"):
        yield Figure(
            f"{torch.cuda.get_device_name()}: ours over hand-written eager, {precision}",
            rates[f"ours_{precision}"] / rates[f"eager_{precision}"],
            1.0,
            least=True,
        )


def _prepare(place: Path, repository: Path, precision: str) -> None:
    spec = find_spec(
        "benchmarks.serving_gpu:encoder",
        name=f"ours_{precision}",
        inputs=[INPUT],
        overrides={"compiler": "inductor", "precision": precision},
    )
    options = TritonOptions.model_validate({"instance_group": INSTANCES})
    build(spec.model_copy(update={"triton": options}), root=repository, cache=CacheOptions(place / "cache"))
    config = (repository / spec.name / CONFIG_NAME).read_text()
    eager = repository / f"eager_{precision}"
    (eager / "1").mkdir(parents=True)
    (eager / CONFIG_NAME).write_text(config[: config.index("model_warmup")].replace(spec.name, eager.name))
    half = ".half()" if precision == "fp16" else ""
    (eager / "1" / "model.py").write_text(EAGER.format(half=half))


def _load(server: TritonServer, name: str, seconds: float) -> float:
    counts = [0] * CLIENTS
    deadline = time.monotonic() + seconds

    def client(index: int) -> None:
        lengths = random.Random(index)
        generator = np.random.default_rng(index)
        with Client("grpc", server.grpc_url) as connection:
            while time.monotonic() < deadline:
                size = 32 * lengths.randint(1, 4)
                connection.infer(name, {"ids": generator.integers(0, 1000, (1, size))})
                counts[index] += 1

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds
