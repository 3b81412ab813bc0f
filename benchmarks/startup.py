"""Start-up of `triton-repo --help` beside `python -c "import typer"`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import Figure

RUNS = 15


def measure() -> list[Figure]:
    """The ratio of the medians; runs alternate, so that a busy moment hits both."""
    command = [str(Path(sys.executable).parent / "triton-repo"), "--help"]
    base = [sys.executable, "-c", "import typer"]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(RUNS):
        times[0].append(_seconds(command))
        times[1].append(_seconds(base))
    ratio = statistics.median(times[0]) / statistics.median(times[1])
    return [Figure("start-up of triton-repo --help / import typer", ratio, 3.0)]


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
