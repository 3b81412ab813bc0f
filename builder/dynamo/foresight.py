"""Know of a frame before Dynamo traces it.

Dynamo asks a backend when it has traced a frame, which is too late for the ranges of the user's Inputs. Its callbacks
come at the start of a compilation, but say nothing of what is compiled: that is read off the function that runs them.
A version of torch in which it is not found there costs the second trace of `builder.dynamo.restart`, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch._dynamo import convert_frame
from torch._dynamo.callback import callback_handler
from torch._dynamo.eval_frame import innermost_backend

from builder.dynamo.handed import Frame, frame_of
from builder.errors import BuilderError

__all__ = ["foresee"]


class _Foresight:
    """What is called when Dynamo is about to trace a frame for a backend.

    Args:
        backend: as it is registered.
        told: gets the frame, and the options of `torch.compile`.
    """

    def __init__(self, backend: Callable[..., Any], told: Callable[[Frame, Mapping[str, Any]], None]) -> None:
        self._backend = backend
        self._told = told

    def __call__(self, *_: Any) -> None:
        found = _compilation()
        if found is None:
            return
        compiler, code, variables = found
        if getattr(compiler, "compiler_fn", None) is self._backend:
            try:
                self._told(frame_of(code, variables), compiler.kwargs.get("options") or {})
            except BuilderError:
                # Said by the backend, if the frame turns out to hold anything for it.
                return

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Foresight) and other._backend is self._backend

    def __hash__(self) -> int:
        return hash(self._backend)


def foresee(backend: Callable[..., Any], told: Callable[[Frame, Mapping[str, Any]], None]) -> None:
    """Have a function called before frames are traced for a backend. `torch._dynamo.reset` forgets it."""
    foresight = _Foresight(backend, told)
    if foresight not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(foresight)


def _compilation() -> tuple[Any, Any, Mapping[str, Any]] | None:
    """What `torch.compile` made of a backend, and code and variables of the frame; None where they are not found."""
    caller = sys._getframe()
    while caller is not None and (
        caller.f_code.co_name != "_compile" or caller.f_code.co_filename != convert_frame.__file__
    ):
        caller = caller.f_back  # type: ignore[assignment]
    if caller is None:
        return None
    found = [caller.f_locals.get(name) for name in ("compiler_fn", "code", "locals")]
    if any(value is None for value in found):
        return None
    return innermost_backend(found[0]), found[1], found[2]  # type: ignore[arg-type,return-value]
