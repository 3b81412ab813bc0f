"""The one protocol of engine compilers, and the types around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from builder.partition.plan import Segment, SupportOracle

__all__ = ["Availability", "CompiledArtifact", "Compiler", "CompilerSession"]


@dataclass(frozen=True, slots=True)
class Availability:
    """What a compiler can do on this machine.

    Args:
        installed: whether its package can be imported.
        can_build: whether it can compile here.
        can_run: whether engines for its target can run here.
        version: of its package.
        detail: what is missing and how to get it; empty when nothing is.
    """

    installed: bool
    can_build: bool
    can_run: bool
    version: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CompiledArtifact:
    """What a compiler wrote into a directory: the engine's file name, the one that the runner opens."""

    file: str


class CompilerSession(SupportOracle, Protocol):
    """One build with one compiler: answers for the partitioner, then compiles what it accepted."""

    def fingerprint(self, segment: Segment) -> Mapping[str, Any]:
        """What decides the engine of a segment, as JSON values: its graph and weights by digest.

        Goes into the engine key, beside the profiles, the compiler and the target.
        """
        ...

    def compile(self, segment: Segment, directory: Path) -> CompiledArtifact:
        """Write the engine of a segment into an empty directory.

        Raises:
            CompileError: with the compiler's own messages.
        """
        ...


class Compiler(Protocol):
    """Turns lowered segments into engines. Registered under the entry point group `triton_repo_builder.compilers`.

    A compiler is a class without constructor arguments; its package is imported only when used.
    """

    name: ClassVar[str]

    def availability(self) -> Availability:
        """What it can do here. Never raises."""
        ...

    def target(self) -> Mapping[str, Any]:
        """What its engines are valid for: device kind, versions, architecture. Part of the key."""
        ...

    def session(self, work: Path) -> CompilerSession:
        """Start a build that keeps its files under an existing directory.

        Raises:
            CompileError: when the compiler cannot build here; says what to install.
        """
        ...
