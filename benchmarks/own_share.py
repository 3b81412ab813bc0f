"""The share of a cold build that is our own code, rather than torch's, the compiler's or the model's."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import Figure


class _Theirs:
    """Time spent inside wrapped functions; a wrapped call inside another counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - started

        return timed


@contextlib.contextmanager
def _wrapped(theirs: _Theirs) -> Iterator[None]:
    """Everything of others that a build calls: export, decomposition, translation, sessions, the model itself."""
    import onnxruntime
    import torch

    import builder.lowering.torch_onnx
    import builder.pipeline
    import builder.signature

    places: list[tuple[Any, str]] = [
        (torch.export, "export"),
        (torch.export, "save"),
        (torch.export.ExportedProgram, "run_decompositions"),
        (torch.onnx, "export"),
        (onnxruntime, "InferenceSession"),
        (builder.signature.Signature, "call"),
        (builder.pipeline, "load_model"),
        (builder.lowering.torch_onnx, "_registry"),
    ]
    saved = [(owner, name, getattr(owner, name)) for owner, name in places]
    session = onnxruntime.InferenceSession
    run = session.run
    for owner, name, original in saved:
        setattr(owner, name, theirs.wrap(original))
    session.run = theirs.wrap(run)
    try:
        yield
    finally:
        session.run = run
        for owner, name, original in saved:
            setattr(owner, name, original)


def measure() -> list[Figure]:
    """For MiniLM with ONNX Runtime, cache and repository empty.

    Verified at three points only: running the model is not our code either, and many points would
    make our share look smaller than it is to someone who waits for the rest.
    """
    from builder.cache.options import CacheOptions
    from builder.pipeline import build
    from builder.spec import find_spec

    theirs = _Theirs()
    with tempfile.TemporaryDirectory() as directory, _wrapped(theirs):
        started = time.perf_counter()
        build(
            find_spec("minilm", overrides={"compiler": "onnxruntime"}, verify={"max_corners": 3, "random_points": 0}),
            root=Path(directory) / "model_repo",
            cache=CacheOptions(Path(directory) / "cache"),
        )
        total = time.perf_counter() - started
    return [Figure("our own share of a cold build of minilm", (total - theirs.seconds) / total, 0.10)]
