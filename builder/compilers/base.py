"""The one protocol of engine compilers, and the types around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from builder.errors import CompileError, SpecError
from builder.lowering.weights import FixedWeight, WeightSpec
from builder.partition.plan import Segment, SupportOracle
from builder.progress import Progress, Silent
from builder.settings import Settings

__all__ = [
    "Availability",
    "BuildContext",
    "CompiledArtifact",
    "Compiler",
    "CompilerSession",
    "Fingerprint",
    "RefitError",
    "check_precision",
]


class RefitError(CompileError):
    """An engine does not take the weights that it is given; it must be compiled again."""


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
class BuildContext:
    """What a session works with.

    Args:
        work: an existing directory that keeps its files for the time of the build.
        settings: of the build.
        state: a directory that stays from build to build, made when it is needed; None where nothing is to stay.
        progress: told what a compilation is at.
    """

    work: Path
    settings: Settings = field(default_factory=Settings)
    state: Path | None = None
    progress: Progress = field(default_factory=Silent)


def check_precision(compiler: str, settings: Settings, taken: Sequence[str]) -> None:
    """Refuse a precision that a compiler does not have.

    Raises:
        SpecError: naming those that it has.
    """
    if settings.precision not in taken:
        raise SpecError(
            f"the compiler {compiler} has no precision {settings.precision!r}",
            where="settings.precision",
            fix=f"use one of {', '.join(taken)}, or another compiler",
        )


@dataclass(frozen=True, slots=True)
class CompiledArtifact:
    """What a compiler wrote into a directory: the engine's file name, the one that the runner opens."""

    file: str


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What decides the engine of a segment.

    Args:
        components: JSON values that enter the engine key: digests of the graph and of what else
            decides the engine. Equal for two segments only if one engine serves both.
        text: the graph, for people to read and to compare line by line.
        details: JSON values for people to read; whatever in them matters is in `components` by digest.
        refit: "weights" when the engine is kept without weights and takes any of their dtypes and
            shapes; "none" when weights are part of it, and then `components` covers their values.
        weights: what a refit puts in, in the engine's order.
        fixed: tensors of the model whose values `components` covers although the compiler refits.
        unsure: why no other build may share the engine, where something cannot be fingerprinted.
    """

    components: Mapping[str, Any]
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)
    refit: str = "none"
    weights: tuple[WeightSpec, ...] = ()
    fixed: tuple[FixedWeight, ...] = ()
    unsure: tuple[str, ...] = ()


class CompilerSession(SupportOracle, Protocol):
    """One build with one compiler: answers for the partitioner, then compiles what it accepted."""

    def fingerprint(self, segment: Segment) -> Fingerprint:
        """What decides the engine of a segment, beside the profiles, the compiler and the target."""
        ...

    def compile(self, segment: Segment, directory: Path) -> CompiledArtifact:
        """Write the engine of a segment into an empty directory; without weights where it can be refitted.

        Raises:
            CompileError: with the compiler's own messages.
        """
        ...

    def refit(self, segment: Segment, engine: Path, directory: Path) -> CompiledArtifact:
        """Write an engine with the segment's weights into an empty directory. Called where `Fingerprint.refit` is "weights".

        Args:
            segment: of the same fingerprint as the one that the engine was compiled for.
            engine: the directory that `compile` wrote; it stays as it is.
            directory: where the complete engine goes.
        Raises:
            RefitError: when a weight's name, dtype or shape is not the engine's.
        """
        ...

    def without_refit(self, segment: Segment) -> bool:
        """Told when an engine that was just compiled does not take its weights.

        Returns: whether the segment's engines are with weights from now on, so that it is worth compiling again.
        """
        ...


class Compiler(Protocol):
    """Turns lowered segments into engines. Registered under the entry point group `triton_repo_builder.compilers`.

    A compiler is a class without constructor arguments; its package is imported only when used.
    """

    name: ClassVar[str]
    # What its engines can be for: "cpu", "cuda".
    devices: ClassVar[tuple[str, ...]]

    def availability(self) -> Availability:
        """What it can do here. Never raises."""
        ...

    def target(self, settings: Settings) -> Mapping[str, Any]:
        """What its engines are valid for: device kind, versions, architecture. Part of the key."""
        ...

    def session(self, context: BuildContext) -> CompilerSession:
        """Start a build.

        Raises:
            CompileError: when the compiler cannot build here; says what to install.
            SpecError: when a setting is not one that it can honour.
        """
        ...
