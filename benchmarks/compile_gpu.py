"""Throughput on a GPU: AOTInductor engines through torch.compile(backend="triton_repo"), eager PyTorch, and torch.compile.

Every ratio is of two figures of one run. MODELS and PRECISIONS in the environment name some of the models and of
fp16 and bf16; a line says when a way is compiled, with a first figure of its own.
"""

from __future__ import annotations

import copy
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import Figure
from benchmarks.architectures import resnet, vit

ROUNDS, CALLS = 5, 20
IMAGES = ["float32[B=1:32:64, 3, 224, 224]"]
TOKENS = ["int64[B=1:32:64, T=8:128:256] in 0..999", "int64[B, T] in 0..1"]


def minilm() -> torch.nn.Module:
    """A sentence encoder of MiniLM's size, from its configuration."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    return BertModel(config, add_pooling_layer=False)


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], list[str]]] = {
    "minilm": (minilm, TOKENS),
    "resnet": (resnet, IMAGES),
    "vit": (vit, IMAGES),
}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def measure() -> Iterator[Figure]:
    """For each model in fp16 and bf16, at one size inside the range; like beside like: with CUDA graphs, and with a search."""
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    for name in os.environ.get("MODELS", ",".join(MODELS)).split(","):
        make, inputs = MODELS[name]
        for precision in os.environ.get("PRECISIONS", ",".join(DTYPES)).split(","):
            with tempfile.TemporaryDirectory() as cache, torch.no_grad():
                rates = _rates(name, make, inputs, precision, cache)
            for way, rate in rates.items():
                print(f"{name}, {precision}, calls/s: {way:30} {rate:9.4g}", flush=True)
            default, searched = rates["ours, CUDA graphs"], rates["ours, CUDA graphs, max_autotune"]
            for way, rate in rates.items():
                if not way.startswith("ours"):
                    ours = searched if "autotune" in way else default
                    yield Figure(f"{name}, {precision}: ours over {way}", ours / rate, 1.0, least=True)


def _rates(
    name: str, make: Callable[[], torch.nn.Module], inputs: list[str], precision: str, cache: str
) -> dict[str, float]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    full = make().eval().cuda()
    given: tuple[torch.Tensor, ...]
    if name == "minilm":
        ids = torch.randint(0, 1000, (32, 128), device="cuda")
        given = (ids, torch.ones_like(ids))
    else:
        given = (torch.randn(32, 3, 224, 224, device="cuda"),)
    options: dict[str, Any] = {
        "inputs": inputs,
        "compiler": "inductor",
        "precision": precision,
        "cache_dir": cache,
    }
    ours = torch.compile(full, backend="triton_repo", dynamic=False, options=options)
    graphs = torch.compile(
        copy.deepcopy(full), backend="triton_repo", dynamic=False, options={**options, "cuda_graphs": True}
    )
    reduced = make().eval().cuda().to(DTYPES[precision])
    cast = tuple(t.to(DTYPES[precision]) if t.is_floating_point() else t for t in given)
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(*given),
        "ours, CUDA graphs": lambda: graphs(*given),
        "eager": lambda: reduced(*cast),
    }
    default = torch.compile(reduced, dynamic=False)
    ways["torch.compile"] = lambda: default(*cast)
    searched = torch.compile(
        copy.deepcopy(full),
        backend="triton_repo",
        dynamic=False,
        options={**options, "cuda_graphs": True, "max_autotune": True},
    )
    tuned = torch.compile(make().eval().cuda().to(DTYPES[precision]), mode="max-autotune", dynamic=False)
    ways["torch.compile max-autotune"] = lambda: tuned(*cast)
    ways["ours, CUDA graphs, max_autotune"] = lambda: searched(*given)
    for way, call in ways.items():
        started = time.perf_counter()
        call()
        compiled = time.perf_counter() - started
        print(f"# {name}, {precision}: {way} ready in {compiled:.0f} s, {1 / _seconds(call):.4g} calls/s", flush=True)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for way in [*ways] * ROUNDS:
        times[way].append(_seconds(ways[way]))
    return {way: 1 / statistics.median(rounds) for way, rounds in times.items()}


def _seconds(call: Callable[[], Any]) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / CALLS
