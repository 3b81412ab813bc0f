"""Have Dynamo trace a frame again, with dimensions made symbolic that it took for fixed.

A backend is first asked when a frame has been traced. Where sizes have ranges that Dynamo did not know of, their
dimensions are marked and the trace begins again; the marks are torch's own (`maybe_mark_dynamic`), the way back
is the one that torch's tensorify pass takes. While it traces again, equal sizes are not taken for one size, and a
size of 1 not for a constant: otherwise the first call would decide for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
import torch.fx.experimental._config as fx_config
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import TensorifyScalarRestartAnalysis

__all__ = ["mark", "trace_again", "traced"]

_SETTINGS = {"backed_size_oblivious": True, "use_duck_shape": False}


class _Window:
    """Settings that hold from one trace of a frame to the end of the next."""

    def __init__(self) -> None:
        self._stack: contextlib.ExitStack | None = None

    def open(self, sources: Sequence[str]) -> None:
        if self._stack is None:
            self._stack = contextlib.ExitStack()
            known = torch.compiler.config.dynamic_sources
            listed = ",".join([*([known] if known else []), *sources])
            self._stack.enter_context(torch.compiler.config.patch(dynamic_sources=listed))  # type: ignore[attr-defined]
            self._stack.enter_context(fx_config.patch(**_SETTINGS))  # type: ignore[attr-defined]
            # A trace that fails never comes back to the backend.
            callback_handler.register_end_callback(self._ended)

    def close(self) -> None:
        if self._stack is not None:
            stack, self._stack = self._stack, None
            callback_handler.remove_end_callback(self._ended)
            stack.close()

    def _ended(self, *_: Any) -> None:
        if self._stack is not None:
            stack, self._stack = self._stack, None
            stack.close()


_window = _Window()


def mark(tensor: torch.Tensor, axes: list[int]) -> None:
    """Let axes of a tensor be symbolic in traces to come."""
    torch._dynamo.maybe_mark_dynamic(tensor, axes)


def trace_again(reason: str, sources: Sequence[str]) -> NoReturn:
    """Leave the backend; Dynamo traces the frame again and comes back.

    Args:
        reason: for torch's logs.
        sources: Dynamo's names of what is symbolic in all dimensions, where there is no tensor to mark.
    """
    _window.open(sources)
    raise TensorifyScalarRestartAnalysis(restart_reason=reason)


def traced() -> None:
    """Told when Dynamo has come back."""
    _window.close()
