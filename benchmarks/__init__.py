"""Speed, as ratios measured in one run. `make bench` runs them all."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Figure"]


@dataclass(frozen=True)
class Figure:
    """A measured figure and what is asked of it: at least, or at most, `limit`."""

    name: str
    value: float
    limit: float
    least: bool = False

    def __str__(self) -> str:
        asked = "at least" if self.least else "at most"
        good = self.value >= self.limit if self.least else self.value <= self.limit
        return f"{self.name:72} {self.value:9.3g}   {asked} {self.limit:g}   {'ok' if good else 'MISSED'}"
