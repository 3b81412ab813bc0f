"""TensorRT's own words: a failed build says why nowhere but to its logger."""

from __future__ import annotations

from typing import Any

__all__ = ["capturing_logger", "said"]

# Without a GPU every query of CUDA fails. That is expected, and not the reason of anything.
_NOISE = ("catchCudaError", "Thread context has not been set")


def capturing_logger(trt: Any) -> Any:
    """A logger that keeps the messages of errors in `errors`, and lets nothing through to the terminal.

    `IErrorRecorder` would be the way to ask for; with a parser and a failed build it crashes the process.
    """

    class Capture(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR) and not any(n in message for n in _NOISE):
                self.errors.append(message)

    return Capture()


def said(library: str, logger: Any, otherwise: str) -> str:
    """What the logger heard, in one line."""
    text = "; ".join(" ".join(m.split()) for m in logger.errors) or otherwise
    return f"{library}: {text[:400]}"
