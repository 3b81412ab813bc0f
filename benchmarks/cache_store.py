"""A store of 10,000 engines, and eight builds that want one engine at a time.

The two limits in seconds are what a person would notice; the machine hardly matters to them.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import Figure

if TYPE_CHECKING:
    from builder.cache.store import LocalStore

ENTRIES = 10_000
LOOKUPS = 50
PROCESSES = 8

# As long as a small engine compiles.
COMPILE_SECONDS = 20.0

BUILD = """
import sys, time
from pathlib import Path
from builder.cache.engine_cache import EngineCache, EngineRequest
from builder.cache.key import engine_key
from builder.cache.options import CacheOptions

components = {"compiler": "benchmark"}
built = []

def build(directory):
    built.append(1)
    time.sleep(float(sys.argv[3]))
    (directory / "engine.bin").write_bytes(bytes(20 << 20))
    return "engine.bin"

request = EngineRequest(engine_key(components), components)
EngineCache(CacheOptions(Path(sys.argv[1])), Path(sys.argv[2])).get_or_build(request, build)
print(len(built))
"""


def measure() -> list[Figure]:
    """Look-up and listing in a large store; compiles and time for many builds of one key."""
    with tempfile.TemporaryDirectory() as directory:
        return [*_large(Path(directory)), *_together(Path(directory))]


def _large(directory: Path) -> list[Figure]:
    from builder.cache.maintenance import listing
    from builder.cache.store import LocalStore

    store = LocalStore(directory / "large")
    store.prepare()
    keys = _fill(store)
    times = []
    for index in range(LOOKUPS):
        work = directory / f"out-{index}"
        work.mkdir()
        started = time.perf_counter()
        assert store.fetch(keys[index * (ENTRIES // LOOKUPS)], work) is not None
        times.append(time.perf_counter() - started)
    started = time.perf_counter()
    assert len(listing(store)) == ENTRIES
    listed = time.perf_counter() - started
    return [
        Figure(f"a look-up among {ENTRIES} engines, milliseconds", 1000 * statistics.median(times), 5),
        Figure(f"a listing of {ENTRIES} engines, seconds", listed, 1),
    ]


def _fill(store: LocalStore) -> list[str]:
    """Entries as a build writes them, with an engine of a few bytes; written without waiting for the disk."""
    from builder.cache.key import engine_key
    from builder.cache.record import FileInfo, Record
    from builder.hashing import Digest

    content = b"engine" * 100
    digest = Digest()
    digest.update(content)
    info = FileInfo(len(content), digest.hexdigest())
    target = {"device": "cpu", "torch": "2.13.0", "machine": "x86_64", "cpu": "AVX512", "cxx": "g++ 12.2.0"}
    shape = {"dtype": "float32", "min": [1, 8, 384], "opt": [8, 64, 384], "max": [32, 256, 384]}
    versions = {"torch": "2.13.0", "numpy": "2.3", "onnx": "1.23", "python": "3.11", "onnxscript": "0.7"}
    keys = []
    for number in range(ENTRIES):
        components = {
            "schema": 2,
            "compiler": "inductor",
            "target": target,
            "program": {"graph": f"{number:064x}", "ir": "torch.export", "settings": "0" * 64},
            "refit": "weights",
            "inputs": [shape] * 3,
            "outputs": [{"dtype": "float32", "rank": 3}] * 2,
        }
        names = ("files/model.pt2", "files/weights.json", "graph.txt", "details.json")
        record = Record(
            key=engine_key(components),
            components=components,
            artifact="model.pt2",
            files=dict.fromkeys(names, info),
            refit="weights",
            settings={"compiler": "inductor", "min_block_size": 1, "torch_executed_ops": []},
            versions=versions,
            build_seconds=12.3,
            created="2026-01-01T00:00:00+00:00",
            builder="user@host",
        )
        path = store.path(record.key)
        (path / "files").mkdir(parents=True)
        (path / "users").mkdir()
        for name in names:
            (path / name).write_bytes(content)
        (path / "entry.json").write_bytes(record.to_bytes(None))
        keys.append(record.key)
    return keys


def _together(directory: Path) -> list[Figure]:
    work = directory / "work"
    work.mkdir()

    def run(name: str, processes: int) -> tuple[float, int]:
        started = time.perf_counter()
        running = [
            subprocess.Popen(
                [sys.executable, "-c", BUILD, str(directory / name), str(work), str(COMPILE_SECONDS)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        built = sum(int(process.communicate()[0]) for process in running)
        return time.perf_counter() - started, built

    alone, _ = run("alone", 1)
    together, built = run("together", PROCESSES)
    return [
        Figure(f"compiles by {PROCESSES} builds of one engine at the same time", built, 1),
        Figure(f"time of {PROCESSES} builds of one engine / one build", together / alone, 1.3),
    ]
