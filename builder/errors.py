"""Every error that a user can meet.

BuilderError
├── SpecError            a model name, a spec file, an input or a setting is wrong
├── ExportError          the model cannot be exported as asked
├── PartitionError       the graph cannot be split as asked
├── CompileError         an engine compiler refused a segment
├── CacheError           the engine cache cannot be used
├── RepositoryError      the model repository cannot be written
├── ServingError         a server cannot be started or reached
├── VerificationError    the outputs differ from eager PyTorch
└── RequestError         a request does not fit the model (raised by the runtime)
    └── DataError        its values make a size that is out of bounds
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BuilderError",
    "CacheError",
    "CompileError",
    "DataError",
    "ExportError",
    "PartitionError",
    "RepositoryError",
    "RequestError",
    "ServingError",
    "SpecError",
    "VerificationError",
    "did_you_mean",
]


class BuilderError(Exception):
    """What is wrong, where, and what to do about it.

    Args:
        what: the fault, as a sentence without a full stop.
        where: the file, input, dimension or operator that it concerns.
        fix: what the user can do; one line or several.
    """

    stage = "build"

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {_indented(self.where)}")
        if self.fix:
            lines.append(f"  to do: {_indented(self.fix)}")
        return "\n".join(lines)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The nearest right word as a question with a space behind it, for a `fix`; empty where none is near."""
    names = list(known)
    close = [n for n in names if n.lower() == word.lower()] or difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def _indented(text: str) -> str:
    return text.replace("\n", "\n         ")


class SpecError(BuilderError):
    """A model name, a spec file, an input or a setting is wrong."""

    stage = "spec"


class ExportError(BuilderError):
    """The model cannot be exported with the inputs and ranges asked for."""

    stage = "export"


class PartitionError(BuilderError):
    """The graph cannot be split as the settings ask."""

    stage = "partition"


class CompileError(BuilderError):
    """An engine compiler refused a segment, or is not installed."""

    stage = "compile"


class CacheError(BuilderError):
    """The engine cache cannot be used."""

    stage = "cache"


class RepositoryError(BuilderError):
    """The model repository cannot be read or written."""

    stage = "repository"


class ServingError(BuilderError):
    """A server cannot be started or reached, or answered with an error."""

    stage = "serving"


class VerificationError(BuilderError):
    """The outputs of the compiled model differ from eager PyTorch."""

    stage = "verify"


class RequestError(BuilderError):
    """A request to a compiled model has a wrong input, dtype, rank or size."""

    stage = "request"


class DataError(RequestError):
    """The values of a request make a size that is out of its bounds."""
