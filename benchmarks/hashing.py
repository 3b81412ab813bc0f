"""Hashing a state dict of 2 GB beside what the library blake3 does on the same bytes, on all cores."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

from benchmarks import Figure

RUNS = 5
LAYERS = 24
WIDTH = 4608


def measure() -> list[Figure]:
    """Throughput of `EagerModel.weights_digest`, and the memory that it takes on top."""
    import blake3
    import torch
    from torch import nn

    from builder.export import EagerModel
    from builder.signature import Signature

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    eager = EagerModel(model, Signature((), (), True), (), ((),))
    tensors = [t.detach().reshape(-1).view(torch.uint8).numpy() for t in model.state_dict().values()]

    def library() -> None:
        digest = blake3.blake3(max_threads=blake3.blake3.AUTO)
        for tensor in tensors:
            digest.update(tensor.data)
        digest.hexdigest()

    library()
    before = _peak()
    eager.weights_digest()
    extra = _peak() - before
    ours, theirs = [], []
    for _ in range(RUNS):
        ours.append(_seconds(eager.weights_digest))
        theirs.append(_seconds(library))
    size = sum(t.nbytes for t in tensors) / 1e9
    return [
        Figure(
            f"hashing a state dict of {size:.1f} GB, throughput / blake3's",
            statistics.median(theirs) / statistics.median(ours),
            0.70,
            least=True,
        ),
        Figure("the same, extra memory at its peak in MiB", extra / 1024, 64),
    ]


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _peak() -> int:
    """KiB on Linux."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
