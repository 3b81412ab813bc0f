"""Clients that call models of one server at once, and the hand-written model that ours stands beside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from builder.repository.plan import CONFIG_NAME
from builder.serving.client import Client
from builder.serving.server import TritonServer

__all__ = ["Requests", "rates_in_turn", "requests_per_second", "write_by_hand"]

# What a client sends, by its number, without an end.
Requests: TypeAlias = Callable[[int], Iterator[Mapping[str, "np.ndarray[Any, Any]"]]]


def requests_per_second(server: TritonServer, name: str, requests: Requests, clients: int, seconds: float) -> float:
    """Of all clients together, each a thread with a connection of its own."""
    counts = [0] * clients
    deadline = time.monotonic() + seconds

    def client(index: int) -> None:
        with Client("grpc", server.grpc_url) as connection:
            for tensors in requests(index):
                if time.monotonic() >= deadline:
                    return
                connection.infer(name, tensors)
                counts[index] += 1

    threads = [threading.Thread(target=client, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def rates_in_turn(
    server: TritonServer, names: Sequence[str], requests: Requests, clients: int, seconds: float
) -> dict[str, float]:
    """Requests per second of each model. Two rounds, in turn, so that a machine that changes its mind is seen."""
    rates = dict.fromkeys(names, 0.0)
    for _ in range(2):
        for name in names:
            rates[name] += requests_per_second(server, name, requests, clients, seconds) / 2
    return rates


def write_by_hand(repository: Path, ours: str, name: str, code: str) -> None:
    """A Python model of this code, with the configuration of one of ours, but without a warm-up."""
    config = (repository / ours / CONFIG_NAME).read_text()
    version = repository / name / "1"
    version.mkdir(parents=True)
    text = config[: config.index("model_warmup")].replace(f'"{ours}"', f'"{name}"')
    (version.parent / CONFIG_NAME).write_text(text)
    (version / "model.py").write_text(code)
