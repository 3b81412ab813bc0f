"""Run the benchmarks that are named, or all, and print their figures, one a line."""

from __future__ import annotations

import sys

from benchmarks import (
    cache_builds,
    cache_store,
    calls,
    compile_gpu,
    hashing,
    own_share,
    partitioning,
    serving,
    serving_gpu,
    startup,
    tensorrt_builds,
    warm_start,
)

if __name__ == "__main__":
    known = {
        m.__name__.rpartition(".")[2]: m
        for m in (
            startup,
            own_share,
            hashing,
            cache_store,
            cache_builds,
            partitioning,
            tensorrt_builds,
            serving,
            serving_gpu,
            calls,
            warm_start,
            compile_gpu,
        )
    }
    for name in sys.argv[1:] or known:
        if name not in known:
            sys.exit(f"there is no benchmark {name!r}; there are {', '.join(known)}")
        for figure in known[name].measure():
            print(figure, flush=True)
