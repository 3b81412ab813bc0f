"""Keeps what a build says."""

from __future__ import annotations


class Told:
    """Progress that remembers warnings and notes."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.notes: list[str] = []

    def stage(self, name: str) -> None: ...
    def step(self, text: str, done: int, total: int) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)
