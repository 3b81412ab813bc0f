"""`Finding`: one thing that is wrong with a repository."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Finding", "Severity"]

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, where, and what to do about it.

    Args:
        rule: which rule found it ("dims-missing").
        severity: "error" where a server refuses the model, crashes or answers wrongly; "warning" where it loads but
            does not do what its configuration says, or is dangerous.
        path: the file or directory that it concerns.
        line: counted from 1; None where no line is to blame.
        message: the fault, in the server's own words where it has any.
        fix: what the user can do.
    """

    rule: str
    severity: Severity
    path: str
    line: int | None
    message: str
    fix: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.severity}: {' '.join(self.message.split())}"
