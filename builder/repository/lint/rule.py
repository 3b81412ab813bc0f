"""`Rule`: one check of a model, and `Problem`: what it says before it is known in which file that stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from builder.repository.lint.finding import Finding, Severity
from builder.repository.lint.model import Model
from builder.repository.lint.positions import Field

__all__ = ["Check", "Problem", "Rule", "rule"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, what to do, and the field of the configuration (`at`) or the file that it concerns."""

    message: str
    fix: str
    at: Field = ()
    file: Path | None = None
    line: int | None = None


Check: TypeAlias = Callable[[Model], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A named check.

    Args:
        name: as findings carry it.
        severity: of all its findings.
        check: yields what is wrong with a model.
    """

    name: str
    severity: Severity
    check: Check

    def findings(self, model: Model) -> Iterator[Finding]:
        """What is wrong with a model, with path and line."""
        for problem in self.check(model):
            if problem.file is None:
                path, line = model.path, model.positions.line(problem.at)
            else:
                path, line = str(problem.file), problem.line
            yield Finding(self.name, self.severity, path, line, problem.message, problem.fix)


def rule(name: str, severity: Severity) -> Callable[[Check], Rule]:
    """Make a rule of a generator function."""
    return lambda check: Rule(name, severity, check)
