"""States that requests of one sequence hand on, where the server does not keep them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from builder.runtime.values import Value

__all__ = ["SequenceStates"]

# What a server takes for a sequence that nobody will continue, unless the configuration says.
_IDLE = 1_000_000


class SequenceStates:
    """Keeps the states of running sequences. Called by one thread.

    Args:
        states: the output that the next request gets as an input, by that input.
        config: the model configuration as the server gives it.
    """

    def __init__(self, states: Mapping[str, str], config: Mapping[str, Any]) -> None:
        self._states = dict(states)
        batching = config.get("sequence_batching", {})
        # The server counts from the end of a request, so that ours may not be the first to forget.
        self._idle = 2e-6 * int(batching.get("max_sequence_idle_microseconds", 0) or _IDLE)
        self._kept: dict[int, tuple[float, dict[str, Value]]] = {}

    @property
    def inputs(self) -> frozenset[str]:
        """The inputs that are states."""
        return frozenset(self._states)

    @property
    def outputs(self) -> frozenset[str]:
        """The outputs that are states, and no client's."""
        return frozenset(self._states.values())

    def before(self, sequence: int, start: bool) -> Mapping[str, Value]:
        """The states that a request begins with; none at the start of a sequence."""
        self._forget_idle()
        if start:
            self._kept.pop(sequence, None)
        return self._kept[sequence][1] if sequence in self._kept else {}

    def after(self, sequence: int, end: bool, outputs: Mapping[str, Value]) -> None:
        """Keep what a request ends with, for the next one."""
        if end:
            self._kept.pop(sequence, None)
        else:
            # Copies, for what a request gets may be rows of a whole batch.
            kept = {given: _copied(outputs[name]) for given, name in self._states.items()}
            self._kept[sequence] = (time.monotonic(), kept)

    def _forget_idle(self) -> None:
        """The server does not tell when it gives a sequence up."""
        limit = time.monotonic() - self._idle
        for sequence in [s for s, (used, _) in self._kept.items() if used < limit]:
            del self._kept[sequence]


def _copied(value: Value) -> Value:
    return value.copy() if isinstance(value, np.ndarray) else value.clone()
