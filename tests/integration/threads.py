"""Work that is done at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["together"]


def together(work: Sequence[Callable[[], Any]]) -> None:
    """Each in a thread of its own; what one of them raises is raised."""
    with ThreadPoolExecutor(len(work)) as pool:
        for future in [pool.submit(one) for one in work]:
            future.result()
