"""States that requests of one sequence hand on, where the server does not keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from builder.errors import RequestError
from builder.runtime.values import Value

__all__ = ["SequenceStates"]

# How many sequences are kept at least; the server does not tell when it gives one up.
_KEPT = 4096


class SequenceStates:
    """Keeps the states of running sequences. Called by one thread.

    Args:
        states: the output that the next request gets as an input, by that input.
        config: the model configuration as the server gives it.
    """

    def __init__(self, states: Mapping[str, str], config: Mapping[str, Any]) -> None:
        self._states = dict(states)
        oldest = config.get("sequence_batching", {}).get("oldest", {})
        self._limit = max(_KEPT, 2 * int(oldest.get("max_candidate_sequences", 0)))
        # The one that was used longest ago comes first.
        self._kept: dict[int, dict[str, Value]] = {}

    @property
    def inputs(self) -> frozenset[str]:
        """The inputs that are states."""
        return frozenset(self._states)

    @property
    def outputs(self) -> frozenset[str]:
        """The outputs that are states, and no client's."""
        return frozenset(self._states.values())

    def before(self, sequence: int, start: bool) -> Mapping[str, Value]:
        """The states that a request begins with; none at the start of a sequence.

        Raises:
            RequestError: when the sequence goes on, and its state is not there: zeros would be a wrong answer.
        """
        kept = self._kept.pop(sequence, None)
        if start:
            return {}
        if kept is None:
            raise RequestError(
                f"the state of sequence {sequence} is not here: it did not begin, failed, or was given up",
                fix="begin it again, with the START flag",
            )
        self._kept[sequence] = kept
        return kept

    def after(self, sequence: int, end: bool, outputs: Mapping[str, Value]) -> None:
        """Keep what a request ends with, for the next one."""
        if end:
            self._kept.pop(sequence, None)
        else:
            # Copies, for what a request gets may be rows of a whole batch.
            self._kept[sequence] = {given: _copied(outputs[name]) for given, name in self._states.items()}
            while len(self._kept) > self._limit:
                del self._kept[next(iter(self._kept))]


def _copied(value: Value) -> Value:
    return value.copy() if isinstance(value, np.ndarray) else value.clone()
