"""The pipeline: calls the stages in order and reports progress. Owns nothing else."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from builder.cache.options import CacheOptions
from builder.compilation import Compilation, ModelCompiler, Placed, start_session, work_directory
from builder.compilers.base import BuildContext
from builder.compilers.registry import choose_compiler
from builder.engines import CompiledSegment
from builder.errors import SpecError
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
from builder.runtime.model import RuntimeModel
from builder.runtime.precision import keep_float32
from builder.settings import Settings
from builder.spec import BuildSpec
from builder.verify.compare import VerificationReport, verify_model
from builder.verify.samples import Point, extreme_points, make_tensors
from builder.versions import installed_versions, tool_version

__all__ = ["BuildResult", "build", "load_exported", "plan", "plan_exported"]

# A server reads warm-up files at every load; larger samples cost more than they warm.
_WARMUP_LIMIT = 32 << 20


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build gave: the plan, the compiled segments, the report and the publication."""

    plan: PartitionPlan
    segments: tuple[CompiledSegment, ...]
    report: VerificationReport
    publication: Publication
    seconds: Mapping[str, float]
    placement: Placement


def load_exported(
    spec: BuildSpec, progress: Progress | None = None, module: torch.nn.Module | None = None
) -> ExportedModel:
    """Load the model of a spec and export it.

    Args:
        spec: of the model.
        progress: told about both stages.
        module: the model itself, where it is there already.
    Raises:
        SpecError: when there is no such model or its inputs are wrong.
        ExportError: when it cannot be exported with them.
    """
    progress = progress or Silent()
    progress.stage("load")
    if module is not None:
        loaded = LoadedModel(module)
    else:
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
    return plan_exported(lambda: load_exported(spec, progress), spec.settings, progress)


def plan_exported(load: Callable[[], ExportedModel], settings: Settings, progress: Progress) -> PartitionPlan:
    """How a model would be split.

    Args:
        load: gives the model, once the compiler has been found.
    """
    compiler = choose_compiler(settings.compiler, settings.device)
    with work_directory() as work:
        session = start_session(compiler, BuildContext(work, settings, progress=progress))
        exported = load()
        progress.stage("partition")
        return partition(exported, session, settings)


def build(
    spec: BuildSpec,
    *,
    root: Path | str,
    cache: CacheOptions | None = None,
    progress: Progress | None = None,
    command: str = "",
    publishing: PublishOptions | None = None,
    module: torch.nn.Module | None = None,
) -> BuildResult:
    """Build a model and publish it into a repository.

    Args:
        spec: what to build.
        root: the model repository, made if it is not there; or a URL of an object store that Triton reads.
        cache: where engines are kept; None takes what the environment says.
        progress: told about every stage.
        command: the command line, for the manifest.
        publishing: how the version gets to those who use it.
        module: the model, on the CPU; None loads it from the spec's source.
    Raises:
        BuilderError: one class per stage; then nothing was published.
    """
    clock = _Clock(progress or Silent())
    publishing = publishing or PublishOptions()
    check_target(root, publishing)
    with work_directory() as work:
        compiler = ModelCompiler(spec.settings, cache or CacheOptions.resolve(), spec.name, spec.source, work, clock)
        exported = load_exported(spec, clock, module)
        if compiler.device not in (None, "cpu"):
            # What is compared with eager PyTorch here is computed as it will be when it is served.
            keep_float32()
        return _Publisher(spec, exported, compiler, root, publishing, work, clock, command).publish()


class _Publisher:
    """The last stages of a build: where the parts will live is decided first, then they are compiled, verified and published."""

    def __init__(
        self,
        spec: BuildSpec,
        exported: ExportedModel,
        compiler: ModelCompiler,
        root: Path | str,
        publishing: PublishOptions,
        work: Path,
        clock: _Clock,
        command: str,
    ) -> None:
        self._spec = spec
        self._exported = exported
        self._compiler = compiler
        self._root = root
        self._publishing = publishing
        self._work = work
        self._clock = clock
        self._command = command
        self._samples = _warmup(exported, spec)
        self._placer = Placer(spec, exported, compiler.compiler.name, installed_versions())
        self._placement: Placement | None = None

    def publish(self) -> BuildResult:
        clock, spec = self._clock, self._spec
        compilation = self._compiler.compile(self._exported, self._place)
        placement = self._placement
        assert placement is not None
        clock.stage("assemble")
        plan = assemble(self._assembly(placement, compilation))
        report = self._verify(compilation, plan)
        self._compiler.close()
        clock.stage("publish")
        plan = dataclasses.replace(plan, manifest=dataclasses.replace(plan.manifest, verification=report.as_json()))
        publication = publish_plan(plan, self._root, self._publishing, spec, clock)
        for warning in (*placement.warnings, publication.note):
            if warning:
                clock.warn(warning)
        on_gpu = self._compiler.target.get("device") == "cuda"
        for need in (*placement.needs, *_pool(plan, on_gpu)):
            clock.note(f"the server needs {need}")
        return BuildResult(compilation.plan, compilation.segments, report, publication, clock.finished(), placement)

    def _place(self, plan: PartitionPlan) -> Placed:
        """What the user set is refused before the long part."""
        placement = self._placer.place(plan)
        compiler = self._compiler
        nothing = Compilation(self._exported, plan, (), compiler.settings, compiler.target, compiler.device)
        draft, warnings = check_options(self._assembly(placement, nothing))
        for warning in warnings:
            self._clock.warn(warning)
        check_draft(self._spec.name, draft, self._root, self._publishing)
        self._placement = placement
        return Placed(placement.segments, placement.layout.runners)

    def _assembly(self, placement: Placement, compilation: Compilation) -> Assembly:
        spec = self._spec
        return Assembly(
            manifest=compilation.manifest(
                spec.name,
                spec.source,
                command=self._command,
                optional=spec.triton.optional,
                padding=spec.triton.ragged,
            ),
            files={c.segment.name: SegmentFiles(c.artifact, c.files) for c in compilation.segments},
            layout=placement.layout,
            batching=placement.batching,
            options=spec.triton,
            release=placement.release,
            tool_version=tool_version(),
            work=self._work,
            warmup=self._samples,
            labels=spec.labels(),
            preprocessing=placement.preprocessing,
        )

    def _verify(self, compilation: Compilation, plan: RepositoryPlan) -> VerificationReport:
        self._clock.stage("verify")
        device = compilation.device
        if device is None and any(s.kind == "engine" for s in plan.manifest.segments):
            reason = self._compiler.compiler.availability().detail
            self._clock.warn(f"not verified here: {reason}")
            return VerificationReport(False, reason=reason)
        directory = lay_out(plan, self._work / "assembled")
        compiled = RuntimeModel(directory, manifest=plan.manifest, device=device or "cpu")

        def told(count: int, point: Point) -> None:
            self._clock.step(str(point), count, 0)

        return verify_model(self._exported.eager, compiled, compilation.settings, told)


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
