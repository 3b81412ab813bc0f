"""Have Dynamo trace a frame with dimensions symbolic that it would take for fixed.

The marks are torch's own (`maybe_mark_dynamic`). Where they come before the trace (`builder.dynamo.foresight`), that is
all; where the backend finds at the end of a trace that sizes have ranges which Dynamo did not know of, the trace begins
again, and the way back is the one that torch's tensorify pass takes. While a frame with marks is traced, equal sizes
are not taken for one size, and a size of 1 not for a constant: otherwise the first call would decide for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.fx.experimental._config as fx_config
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import TensorifyScalarRestartAnalysis

from builder.collector import collector_paused

__all__ = ["mark", "trace_again", "traced", "tracing_with"]

_SETTINGS = {"backed_size_oblivious": True, "use_duck_shape": False}


class _Window:
    """Settings that hold until the backend is asked, or the compilation ends without that."""

    def __init__(self) -> None:
        self._stack: contextlib.ExitStack | None = None
        self._marked: Mapping[int, Sequence[int]] = {}

    def open(self, sources: Sequence[str], marked: Mapping[int, Sequence[int]]) -> None:
        if self._stack is None:
            self._stack = contextlib.ExitStack()
            self._marked = marked
            known = torch.compiler.config.dynamic_sources
            listed = ",".join([*([known] if known else []), *sources])
            self._stack.enter_context(torch.compiler.config.patch(dynamic_sources=listed))  # type: ignore[attr-defined]
            self._stack.enter_context(fx_config.patch(**_SETTINGS))  # type: ignore[attr-defined]
            self._stack.enter_context(collector_paused())
            # A trace that fails never comes back to the backend. `torch._dynamo.reset` forgets callbacks.
            if self._ended not in callback_handler.end_callbacks:
                callback_handler.register_end_callback(self._ended)

    def close(self) -> Mapping[int, Sequence[int]]:
        marked, self._marked = self._marked, {}
        if self._stack is not None:
            stack, self._stack = self._stack, None
            stack.close()
        return marked

    def _ended(self, *_: Any) -> None:
        self.close()


_window = _Window()


def mark(tensor: torch.Tensor, axes: Sequence[int]) -> None:
    """Let axes of a tensor be symbolic in traces to come."""
    torch._dynamo.maybe_mark_dynamic(tensor, list(axes))


def tracing_with(marks: Sequence[tuple[torch.Tensor, Sequence[int]]]) -> None:
    """Mark axes of tensors for the trace that begins now."""
    if marks:
        for tensor, axes in marks:
            mark(tensor, axes)
        _window.open((), {id(tensor): axes for tensor, axes in marks})


def trace_again(reason: str, sources: Sequence[str]) -> NoReturn:
    """Leave the backend; Dynamo traces the frame again and comes back.

    Args:
        reason: for torch's logs.
        sources: Dynamo's names of what is symbolic in all dimensions, where there is no tensor to mark.
    """
    _window.open(sources, {})
    raise TensorifyScalarRestartAnalysis(restart_reason=reason)


def traced() -> Mapping[int, Sequence[int]]:
    """Told when Dynamo has come to the backend.

    Returns:
        the axes that `tracing_with` had marked, by the `id` of the tensor: where one of them is fixed, the model fixes it.
    """
    return _window.close()
