"""A GPU and the real server: an encoder in our Python layout beside a hand-written eager Python model, in one run.

Needs CUDA and a Triton server; run by hand: python -m benchmarks serving_gpu
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import Figure
from benchmarks.clients import rates_in_turn, requests_per_second, write_by_hand
from builder.cache.options import CacheOptions
from builder.pipeline import build
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
            given = pb_utils.get_input_tensor_by_name(request, "ids")
            if given.is_cpu():
                ids = torch.from_numpy(given.as_numpy()).to("cuda")
            else:
                ids = torch.utils.dlpack.from_dlpack(given.to_dlpack())
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
                requests_per_second(server, name, _ids, CLIENTS, 2.0)
            rates = rates_in_turn(server, names, _ids, CLIENTS, SECONDS)
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
    half = ".half()" if precision == "fp16" else ""
    write_by_hand(repository, spec.name, f"eager_{precision}", EAGER.format(half=half))


def _ids(client: int) -> Iterator[Mapping[str, np.ndarray[Any, Any]]]:
    lengths, generator = random.Random(client), np.random.default_rng(client)
    while True:
        yield {"ids": generator.integers(0, 1000, (1, 32 * lengths.randint(1, 4)))}
