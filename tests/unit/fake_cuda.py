"""As much of CUDA as the runtime asks for, on a machine without it."""

from __future__ import annotations

import contextlib

import pytest
import torch

__all__ = ["Stream", "one_stream"]


class Stream:
    """A CUDA stream that does nothing; what is on it is done at once."""

    def __init__(self, number: int = 7) -> None:
        self.cuda_stream = number
        self.waited: list[object] = []

    def wait_event(self, event: object) -> None:
        self.waited.append(event)

    def record_event(self) -> object:
        return object()

    def synchronize(self) -> None: ...


def one_stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The stream on which everything is, on whatever device."""
    made = Stream()
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: made)
    return made
