"""The middle of every build: an exported model is split, and each segment becomes files that run."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import torch

from builder.cache.engine_cache import EngineCache
from builder.cache.options import CacheOptions
from builder.compilers.base import BuildContext, Compiler, CompilerSession
from builder.compilers.registry import choose_compiler
from builder.engines import CompiledSegment, Origin, SegmentCompiler, SegmentCompilers
from builder.errors import CompileError, RepositoryError, SpecError
from builder.export import ExportedModel
from builder.partition.partitioner import partition
from builder.partition.plan import PartitionPlan, Segment
from builder.progress import Progress
from builder.runtime.manifest import Manifest
from builder.settings import Settings, TensorRTSettings
from builder.verify.segments import SegmentReference
from builder.versions import installed_versions

__all__ = ["Compilation", "ModelCompiler", "Placed", "start_session", "work_directory"]

# What compilers keep from build to build besides engines, below the engine cache.
_STATE = "state"
_TENSORRT = ("tensorrt", "tensorrt_rtx")


@dataclass(frozen=True, slots=True)
class Placed:
    """The segments of a plan as they will be compiled, and what will run each one.

    Args:
        segments: those of the plan, with the names that their engines need.
        runners: of the server, per segment; empty where all run in one process.
    """

    segments: tuple[Segment, ...]
    runners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """A model, split and compiled.

    Args:
        exported: that it was made of.
        plan: its segments.
        segments: and the files that run each of them.
        settings: of the build.
        target: what the engines are valid for.
        device: where they run here; None where they do not.
    """

    exported: ExportedModel = field(repr=False)
    plan: PartitionPlan
    segments: tuple[CompiledSegment, ...]
    settings: Settings
    target: Mapping[str, object]
    device: str | None

    def manifest(self, name: str, source: str, **more: object) -> Manifest:
        """What a runtime needs to know of it.

        Args:
            name, source: of the model.
            more: fields of the manifest that only some builds have.
        """
        plan = self.plan
        return dataclasses.replace(
            Manifest(
                name=name,
                inputs=plan.inputs,
                outputs=plan.outputs,
                segments=tuple(c.spec() for c in self.segments),
                versions=installed_versions(),
                target=self.target,
                settings=self.settings.model_dump(mode="json"),
                source=source,
                weights=self.exported.eager.weights_digest(),
                built_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                profiles=plan.profiles if len(plan.profiles) > 1 else (),
            ),
            **more,  # type: ignore[arg-type]
        )


def _as_it_is(plan: PartitionPlan) -> Placed:
    return Placed(plan.segments)


class ModelCompiler:
    """Splits and compiles models with the compiler that the settings name.

    Args:
        settings: of the build.
        cache: where engines are kept.
        name, source: of the model, for the records of engines.
        work: an existing directory that keeps what is made.
        progress: told about every stage.
        compare: engines that come from the cache with eager PyTorch.
    Raises:
        SpecError: when there is no such compiler, or it cannot honour a setting.
        CompileError: when it is not installed.
    """

    def __init__(
        self,
        settings: Settings,
        cache: CacheOptions,
        name: str,
        source: str,
        work: Path,
        progress: Progress,
        *,
        compare: bool = True,
    ) -> None:
        self.settings = settings
        self.compiler = choose_compiler(settings.compiler, settings.device)
        self.target = self.compiler.target(settings)
        self.device = _running_device(self.compiler, self.target)
        self._progress = progress
        self._session = start_session(self.compiler, BuildContext(work, settings, cache.directory / _STATE, progress))
        self._engines = EngineCache(cache, work, progress.warn, progress.note)
        origin = Origin(name, source, settings.model_dump(mode="json"), installed_versions())
        self._segments = SegmentCompilers(
            SegmentCompiler(
                self.compiler,
                settings,
                self._session,
                self._engines,
                origin,
                work,
                self.device if compare else None,
                progress,
            )
        )

    def compile(self, exported: ExportedModel, place: Callable[[PartitionPlan], Placed] = _as_it_is) -> Compilation:
        """Compile what the plan says; a segment whose build fails goes to PyTorch, and the plan is made again.

        Args:
            exported: the model.
            place: told each plan before it is compiled; says where its segments will live.
        Raises:
            PartitionError, SpecError: when the model cannot be split as the settings ask.
            CompileError: when a segment does not build, and PyTorch may not have it.
            CacheError: when the engine cache cannot be used.
        """
        refused: dict[str, str] = {}
        while True:
            self._progress.stage("partition")
            plan = partition(exported, self._session, self.settings, refused=refused)
            placed = place(plan)
            plan = dataclasses.replace(plan, segments=placed.segments)
            self._progress.stage("compile")
            compiled = self._compile(exported, plan, placed.runners, refused)
            if compiled is not None:
                return Compilation(exported, plan, tuple(compiled), self.settings, self.target, self.device)

    def _compile(
        self, exported: ExportedModel, plan: PartitionPlan, runners: Sequence[str], refused: dict[str, str]
    ) -> list[CompiledSegment] | None:
        reference = SegmentReference(exported, plan, self.settings)
        compiled = []
        for index, segment in enumerate(plan.segments):
            text = f"{segment.name} ({segment.kind}, operators: {segment.operator_count})"
            self._progress.step(text, index, len(plan.segments))
            try:
                compiled.append(self._segments.compile(segment, runners[index] if runners else "", reference))
            except CompileError as error:
                if self.settings.require_full_compilation or segment.kind == "fallback":
                    raise
                self._progress.warn(f"{segment.name} does not build and is left to PyTorch: {error.what}")
                refused.update(dict.fromkeys(segment.nodes, f"its segment does not build: {error.what}"))
                return None
        return compiled

    def refit(self, compilation: Compilation, names: Set[str]) -> Compilation:
        """The same compilation, with some of its segments compiled again: what the cache has is refitted.

        Args:
            compilation: whose plan holds segments with other weights than those that were compiled.
            names: of these segments.
        Raises:
            CompileError: when a segment does not build.
            CacheError: when the engine cache cannot be used.
        """
        self._progress.stage("refit")
        reference = SegmentReference(compilation.exported, compilation.plan, self.settings)
        segments = tuple(
            self._segments.compile(segment, "", reference) if segment.name in names else done
            for segment, done in zip(compilation.plan.segments, compilation.segments, strict=True)
        )
        return dataclasses.replace(compilation, segments=segments)

    def close(self) -> None:
        """Let the cache finish what it does in the background."""
        self._engines.close()


def _check_cuda_graphs(compiler: Compiler, settings: Settings) -> None:
    if not settings.cuda_graphs:
        return
    device = compiler.target(settings).get("device")
    if device != "cuda":
        raise SpecError(
            f"CUDA graphs run on a GPU alone, and engines of {compiler.name} are made for the {device} here",
            where="settings.cuda_graphs",
            fix="leave it out, or choose a compiler and a device with a GPU",
        )


def _check_tensorrt(compiler: Compiler, settings: Settings, progress: Progress) -> None:
    """What is said to TensorRT has no meaning for another compiler."""
    if compiler.name in _TENSORRT:
        return
    given = [n for n, value in settings.tensorrt if value != getattr(TensorRTSettings(), n)]
    if not given:
        return
    text = f"{', '.join(given)}: for TensorRT alone, and engines are those of {compiler.name}"
    if settings.compiler != "auto":
        raise SpecError(text, where="settings.tensorrt", fix=f"leave it out, or choose {' or '.join(_TENSORRT)}")
    progress.warn(f"settings.tensorrt has no effect here ({text})")


def start_session(compiler: Compiler, context: BuildContext) -> CompilerSession:
    """A session of a compiler; says so where it can only split.

    Raises:
        CompileError, SpecError: as `Compiler.session`.
    """
    _check_cuda_graphs(compiler, context.settings)
    _check_tensorrt(compiler, context.settings, context.progress)
    session = compiler.session(context)
    state = compiler.availability()
    if not state.can_build:
        context.progress.warn(f"{compiler.name} cannot compile here, so PyTorch runs everything: {state.detail}")
    return session


def _running_device(compiler: Compiler, target: Mapping[str, object]) -> str | None:
    """On the GPU if engines are for one and there is one; None where they do not run here."""
    if not compiler.availability().can_run:
        return None
    return "cuda:0" if target.get("device") == "cuda" and torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """A temporary directory, gone at the end; a full disk is said in a sentence."""
    try:
        with tempfile.TemporaryDirectory(prefix="triton-repo-", ignore_cleanup_errors=True) as work:
            yield Path(work)
    except OSError as error:
        told = _disk_error(error)
        if told is None:
            raise
        raise told from error


def _disk_error(error: OSError) -> RepositoryError | None:
    """A full or read-only disk in a sentence; None for another error."""
    where = str(error.filename or tempfile.gettempdir())
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RepositoryError(
            "the disk is full", where=where, fix="free space, or point TMPDIR and --cache at a larger disk"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return RepositoryError(
            f"cannot write: {error.strerror}", where=where, fix="choose a directory that you may write to"
        )
    return None
