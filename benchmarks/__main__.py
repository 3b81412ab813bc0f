"""Run every benchmark and print its figures, one a line: name, figure, what is asked of it."""

from __future__ import annotations

from benchmarks import own_share, startup

if __name__ == "__main__":
    for benchmark in (startup, own_share):
        for name, figure, limit in benchmark.measure():
            verdict = "ok" if figure <= limit else "TOO HIGH"
            print(f"{name:70} {figure:8.3f}   at most {limit:g}   {verdict}", flush=True)
