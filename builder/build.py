"""The pipeline: calls the stages in order and reports progress. Owns nothing else."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import importlib.metadata
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from builder.cache.engine_cache import EngineCache
from builder.cache.options import CacheOptions
from builder.compilers.base import BuildContext, Compiler, CompilerSession
from builder.compilers.registry import choose_compiler
from builder.engines import CompiledSegment, Origin, SegmentCompiler, SegmentCompilers
from builder.errors import CompileError, RepositoryError, SpecError
from builder.export import ExportedModel, export_model
from builder.inputs import Constant, Input
from builder.models.loaded import LoadedModel
from builder.models.sources import load_model
from builder.partition.partitioner import partition
from builder.partition.plan import PartitionPlan
from builder.placement import Placement, Placer
from builder.progress import Progress, Silent
from builder.publishing import PublishOptions, check_draft, check_target, publish_plan
from builder.repository.assemble import assemble, check_options, lay_out
from builder.repository.assembly import Assembly, SegmentFiles
from builder.repository.ensemble import pool_bytes
from builder.repository.plan import Publication, RepositoryPlan
from builder.repository.warmup import WarmupSample, WarmupTensor
from builder.runtime.manifest import Manifest
from builder.runtime.model import RuntimeModel
from builder.runtime.precision import keep_float32
from builder.spec import BuildSpec
from builder.verify.compare import VerificationReport, verify_model
from builder.verify.samples import Point, extreme_points, make_tensors
from builder.verify.segments import SegmentReference

__all__ = ["BuildResult", "CompiledSegment", "build", "load_exported", "plan", "work_directory"]

# What compilers keep from build to build besides engines, below the engine cache.
_STATE = "state"

# A server reads warm-up files at every load; larger samples cost more than they warm.
_WARMUP_LIMIT = 32 << 20

_RECORDED = ("triton-repo-builder", "onnx", "onnxscript", "onnxruntime", "tensorrt_rtx", "tensorrt", "numpy")


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build gave: the plan, the compiled segments, the report and the publication."""

    plan: PartitionPlan
    segments: tuple[CompiledSegment, ...]
    report: VerificationReport
    publication: Publication
    seconds: Mapping[str, float]
    placement: Placement


def load_exported(spec: BuildSpec, progress: Progress | None = None) -> ExportedModel:
    """Load the model of a spec and export it.

    Raises:
        SpecError: when there is no such model or its inputs are wrong.
        ExportError: when it cannot be exported with them.
    """
    progress = progress or Silent()
    progress.stage("load")
    loaded = load_model(spec.source, arguments=spec.arguments, base=spec.base)
    inputs = _inputs(spec, loaded)
    for note in loaded.notes:
        progress.note(note)
    progress.stage("export")
    exported = export_model(
        loaded.module, inputs, output_names=spec.outputs, profiles=spec.profiles, bounds=spec.bounds
    )
    for note in exported.notes:
        progress.note(note)
    return exported


def _inputs(spec: BuildSpec, loaded: LoadedModel) -> tuple[Input | Constant, ...]:
    inputs: tuple[Input | Constant, ...] | None = spec.inputs if spec.inputs is not None else loaded.default_inputs
    if not inputs:
        raise SpecError(
            "no inputs are given, and the model's source suggests none",
            where=spec.source,
            fix="give each one: --input 'NAME=DTYPE[B=1:8:32, 3, 224, 224]', or an [inputs] table in a spec file",
        )
    return inputs


def plan(spec: BuildSpec, progress: Progress | None = None) -> PartitionPlan:
    """A dry run: how the model would be split. Compiles and writes nothing.

    Raises:
        BuilderError: as `build` does up to the partition stage.
    """
    progress = progress or Silent()
    compiler = choose_compiler(spec.settings.compiler)
    with work_directory() as work:
        session = _session(compiler, BuildContext(work, spec.settings, progress=progress))
        exported = load_exported(spec, progress)
        progress.stage("partition")
        return partition(exported, session, spec.settings)


def _session(compiler: Compiler, context: BuildContext) -> CompilerSession:
    session = compiler.session(context)
    state = compiler.availability()
    if not state.can_build:
        context.progress.warn(f"{compiler.name} cannot compile here, so PyTorch runs everything: {state.detail}")
    return session


def build(
    spec: BuildSpec,
    *,
    root: Path | str,
    cache: CacheOptions | None = None,
    progress: Progress | None = None,
    command: str = "",
    publishing: PublishOptions | None = None,
) -> BuildResult:
    """Build a model and publish it into a repository.

    Args:
        spec: what to build.
        root: the model repository, made if it is not there; or a URL of an object store that Triton reads.
        cache: where engines are kept; None takes what the environment says.
        progress: told about every stage.
        command: the command line, for the manifest.
        publishing: how the version gets to those who use it.
    Raises:
        BuilderError: one class per stage; then nothing was published.
    """
    progress = progress or Silent()
    clock = _Clock(progress)
    compiler = choose_compiler(spec.settings.compiler)
    publishing = publishing or PublishOptions()
    check_target(root, publishing)
    with work_directory() as work:
        options = cache or CacheOptions.resolve()
        session = _session(compiler, BuildContext(work, spec.settings, options.directory / _STATE, clock))
        exported = load_exported(spec, clock)
        device = _device(compiler, spec)
        if device not in (None, "cpu"):
            # What is compared with eager PyTorch here is computed as it will be when it is served.
            keep_float32()
        engines = EngineCache(options, work, progress.warn, progress.note)
        segments = SegmentCompilers(
            SegmentCompiler(compiler, spec.settings, session, engines, _origin(spec), work, device, progress)
        )
        on_gpu = compiler.target(spec.settings).get("device") == "cuda"
        placer = Placer(spec, exported, compiler.name, _versions())

        samples = _warmup(exported, spec)

        def parts(placement: Placement, split: PartitionPlan, compiled: list[CompiledSegment]) -> Assembly:
            return Assembly(
                manifest=_manifest(spec, exported, split, compiled, compiler, command),
                files={c.segment.name: SegmentFiles(c.artifact, c.files) for c in compiled},
                layout=placement.layout,
                batching=placement.batching,
                options=spec.triton,
                release=placement.release,
                tool_version=_version(),
                work=work,
                warmup=samples,
                labels=spec.labels(),
                preprocessing=placement.preprocessing,
            )

        def place(split: PartitionPlan) -> Placement:
            placement = placer.place(split)
            # What the user set is refused before the long part.
            draft, warnings = check_options(parts(placement, split, []))
            for warning in warnings:
                progress.warn(warning)
            check_draft(spec.name, draft, root, publishing)
            return placement

        split, placement, compiled = _partition_and_compile(exported, spec, session, place, segments, clock)
        clock.stage("assemble")
        plan = assemble(parts(placement, split, compiled))
        report = _verify(exported, plan, compiler, spec, work, clock)
        engines.close()
        clock.stage("publish")
        plan = dataclasses.replace(plan, manifest=dataclasses.replace(plan.manifest, verification=report.as_json()))
        publication = publish_plan(plan, root, publishing, spec, clock)
        for warning in (*placement.warnings, publication.note):
            if warning:
                progress.warn(warning)
        for need in (*placement.needs, *_pool(plan, on_gpu)):
            progress.note(f"the server needs {need}")
        return BuildResult(split, tuple(compiled), report, publication, clock.finished(), placement)


def _pool(plan: RepositoryPlan, on_gpu: bool) -> list[str]:
    """An ensemble hands tensors over in a pool; what does not fit goes through the host, with one warning in its log."""
    if not (plan.members and on_gpu):
        return []
    size = pool_bytes(plan.manifest)
    return [f"--cuda-memory-pool-byte-size=0:{size} for each request at a time, for the tensors between segments"]


class _Clock:
    """Passes progress on and keeps the time of each stage."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stages: dict[str, float] = {}
        self._current: tuple[str, float] | None = None
        self.step, self.note, self.warn = progress.step, progress.note, progress.warn

    def stage(self, name: str) -> None:
        self._close()
        self._current = (name, time.monotonic())
        self._progress.stage(name)

    def _close(self) -> None:
        if self._current is not None:
            name, started = self._current
            self._stages[name] = self._stages.get(name, 0.0) + time.monotonic() - started
            self._current = None

    def finished(self) -> dict[str, float]:
        self._close()
        return self._stages


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """A temporary directory, gone at the end; a full disk is said in a sentence."""
    try:
        with tempfile.TemporaryDirectory(prefix="triton-repo-", ignore_cleanup_errors=True) as work:
            yield Path(work)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RepositoryError(
                "the disk is full",
                where=str(error.filename or tempfile.gettempdir()),
                fix="free space, or point TMPDIR and --cache at a larger disk",
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise RepositoryError(
                f"cannot write: {error.strerror}",
                where=str(error.filename or tempfile.gettempdir()),
                fix="choose a directory that you may write to",
            ) from error
        raise


def _partition_and_compile(
    exported: ExportedModel,
    spec: BuildSpec,
    session: CompilerSession,
    place: Callable[[PartitionPlan], Placement],
    compilers: SegmentCompilers,
    progress: Progress,
) -> tuple[PartitionPlan, Placement, list[CompiledSegment]]:
    """Compile what the plan says; a segment whose build fails goes to PyTorch, and the plan is made again."""
    refused: dict[str, str] = {}
    while True:
        progress.stage("partition")
        split = partition(exported, session, spec.settings, refused=refused)
        placement = place(split)
        split = dataclasses.replace(split, segments=placement.segments)
        progress.stage("compile")
        reference = SegmentReference(exported, split, spec.settings)
        compiled = []
        for index, segment in enumerate(split.segments):
            runner = placement.layout.runners[index] if placement.layout.runners else ""
            progress.step(
                f"{segment.name} ({segment.kind}, operators: {segment.operator_count})", index, len(split.segments)
            )
            try:
                compiled.append(compilers.compile(segment, runner, reference))
            except CompileError as error:
                if spec.settings.require_full_compilation or segment.kind == "fallback":
                    raise
                progress.warn(f"{segment.name} does not build and is left to PyTorch: {error.what}")
                refused.update(dict.fromkeys(segment.nodes, f"its segment does not build: {error.what}"))
                break
        else:
            return split, placement, compiled


def _origin(spec: BuildSpec) -> Origin:
    return Origin(spec.name, spec.source, spec.settings.model_dump(mode="json"), _versions())


def _manifest(
    spec: BuildSpec,
    exported: ExportedModel,
    split: PartitionPlan,
    compiled: list[CompiledSegment],
    compiler: Compiler,
    command: str,
) -> Manifest:
    return Manifest(
        name=spec.name,
        inputs=split.inputs,
        outputs=split.outputs,
        segments=tuple(c.spec() for c in compiled),
        versions=_versions(),
        target=compiler.target(spec.settings),
        settings=spec.settings.model_dump(mode="json"),
        source=spec.source,
        weights=exported.eager.weights_digest(),
        command=command,
        built_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        profiles=split.profiles if len(split.profiles) > 1 else (),
        optional=spec.triton.optional,
        padding=spec.triton.ragged,
    )


def _verify(
    exported: ExportedModel,
    plan: RepositoryPlan,
    compiler: Compiler,
    spec: BuildSpec,
    work: Path,
    progress: Progress,
) -> VerificationReport:
    progress.stage("verify")
    device = _device(compiler, spec)
    if device is None and any(s.kind == "engine" for s in plan.manifest.segments):
        reason = compiler.availability().detail
        progress.warn(f"not verified here: {reason}")
        return VerificationReport(False, reason=reason)
    directory = lay_out(plan, work / "assembled")
    compiled = RuntimeModel(directory, manifest=plan.manifest, device=device or "cpu")

    def told(count: int, point: Point) -> None:
        progress.step(str(point), count, 0)

    return verify_model(exported.eager, compiled, spec.settings, told)


def _device(compiler: Compiler, spec: BuildSpec) -> str | None:
    """Where engines run here: on the GPU if they are for one and there is one; None where they do not run."""
    if not compiler.availability().can_run:
        return None
    on_gpu = compiler.target(spec.settings).get("device") == "cuda" and torch.cuda.is_available()
    return "cuda:0" if on_gpu else "cpu"


def _warmup(exported: ExportedModel, spec: BuildSpec) -> tuple[WarmupSample, ...]:
    """Real in-range samples at min, opt and max of all dimensions together, in each profile."""
    samples = []
    for index, inputs in enumerate(exported.profiles):
        prefix = f"profile_{index}_" if len(exported.profiles) > 1 else ""
        for name, point in extreme_points(inputs).items():
            tensors = make_tensors(inputs, point, spec.settings.verify.seed)
            if sum(t.nbytes for t in tensors) <= _WARMUP_LIMIT:
                named = zip(inputs, tensors, strict=True)
                given = {i.name or "": WarmupTensor(i.dtype, tuple(t.shape), _bytes(t)) for i, t in named}
                samples.append(WarmupSample(f"{prefix}{name}", given))
    return tuple(samples)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _versions() -> dict[str, str]:
    # torch's own version tells a CPU build from one for CUDA; its package's may not.
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in _RECORDED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _version() -> str:
    return importlib.metadata.version("triton-repo-builder")
