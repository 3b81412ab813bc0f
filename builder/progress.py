"""How the pipeline reports: what `build` calls, and the reporter that says nothing."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "Silent"]


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
