"""How the pipeline reports: what `build` calls, and reporters for where there is no console."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Protocol

__all__ = ["Logged", "Progress", "Silent"]


class Progress(Protocol):
    """Called by the pipeline from one thread, in order."""

    def stage(self, name: str) -> None:
        """A stage begins: "export", "partition", "compile", "verify", "publish"."""
        ...

    def step(self, text: str, done: int, total: int) -> None:
        """Inside a stage, before item `done` of `total`."""
        ...

    def note(self, text: str) -> None:
        """Something the user should know."""
        ...

    def warn(self, text: str) -> None:
        """Something the user should look at."""
        ...


class Silent:
    """Reports to nobody."""

    def stage(self, name: str) -> None: ...
    def step(self, text: str, done: int, total: int) -> None: ...
    def note(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...


class Logged:
    """Reports as a library does: warnings to `warnings`, the rest to the logger "triton_repo".

    Args:
        aloud: print everything on standard error.
    """

    def __init__(self, *, aloud: bool = False) -> None:
        self._aloud = aloud
        self._logger = logging.getLogger("triton_repo")

    def stage(self, name: str) -> None:
        self._say(name)

    def step(self, text: str, done: int, total: int) -> None:
        self._say(f"  {text}")

    def note(self, text: str) -> None:
        self._say(text)

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)

    def _say(self, text: str) -> None:
        self._logger.info(text)
        if self._aloud:
            print(f"triton-repo: {text}", file=sys.stderr)
