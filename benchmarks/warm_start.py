"""Time to the first answer of torch.compile in a new process: with empty caches, and with those that another process has filled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks import Figure

MODELS = ("minilm", "transformer")

# The model is there already; what is timed is what a user waits for after that.
CHILD = """
import json, sys, time, torch
from benchmarks.models import {model}
torch.set_num_threads(2)
module = {model}().eval()
if "{model}" == "minilm":
    ids = torch.randint(1, 30000, (8, 64))
    given, inputs = (ids, torch.ones_like(ids)), ["int64[B=1:8:32, T=8:64:256] in 0..30521", "int64[B, T] in 0..1"]
else:
    given, inputs = (torch.randn(4, 32, 16),), ["float32[B=1:4:16, T=8:32:128, 16]"]
started = time.perf_counter()
if "{backend}" == "triton_repo":
    fast = torch.compile(module, backend="triton_repo", options={{"inputs": inputs, "compiler": "inductor"}})
else:
    fast = torch.compile(module, dynamic=True)
with torch.no_grad():
    fast(*given)
print(json.dumps(time.perf_counter() - started))
"""


def measure() -> Iterator[Figure]:
    """Each in two processes of its own, one after the other."""
    for model in MODELS:
        seconds = {}
        for backend in ("triton_repo", "inductor"):
            with tempfile.TemporaryDirectory() as caches:
                for state in ("cold", "warm"):
                    found = seconds[backend, state] = _first_answer(model, backend, caches)
                    print(f"{model}, {backend}, {state}: seconds to the first answer {found:9.3g}", flush=True)
        ratio = seconds["triton_repo", "cold"] / seconds["triton_repo", "warm"]
        yield Figure(f"{model}: first answer, cold over warm", ratio, 5, least=True)
        theirs = seconds["inductor", "warm"] / seconds["triton_repo", "warm"]
        yield Figure(f"{model}: warm torch.compile over ours warm", theirs, 1, least=True)


def _first_answer(model: str, backend: str, caches: str) -> float:
    environment = {
        **os.environ,
        "TRITON_REPO_CACHE": f"{caches}/engines",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD.format(model=model, backend=backend)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(json.loads(done.stdout.strip().splitlines()[-1]))
