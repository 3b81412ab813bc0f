"""The compile stage: every segment of a plan becomes files that run, engines through the cache."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.cache.engine_cache import DETAILS, GRAPH_TEXT, EngineCache, EngineRequest, Entry
from builder.cache.key import engine_key, key_components
from builder.compilers.base import BuildContext, Compiler, CompilerSession, Fingerprint, RefitError
from builder.compilers.registry import choose_compiler
from builder.lowering.program import save_program
from builder.partition.plan import Segment
from builder.progress import Progress
from builder.runtime.manifest import SegmentSpec
from builder.settings import Settings
from builder.verify.segments import SegmentReference

__all__ = ["CompiledSegment", "Origin", "SegmentCompiler", "SegmentCompilers", "engine_components"]

_FALLBACK_FILE = "model.pt2"


@dataclass(frozen=True, slots=True)
class CompiledSegment:
    """A segment and the files that run it.

    Args:
        segment: of the plan.
        compiler: its name; "torch" for a fallback segment.
        artifact: the file that the runner opens, relative to the segment's directory.
        files: existing file per path relative to the segment's directory.
        size: bytes of all files.
        seconds: what getting it took.
        key: the engine key, empty for a fallback segment.
        hit: whether the engine came from the cache, or from another segment of this build; None for a
            fallback segment.
        saved_seconds: what compiling it had taken, on a hit.
    """

    segment: Segment
    compiler: str
    artifact: str
    files: Mapping[str, Path]
    size: int
    seconds: float
    key: str = ""
    hit: bool | None = None
    saved_seconds: float = 0.0

    def spec(self) -> SegmentSpec:
        """As it stands in a manifest."""
        return SegmentSpec(
            name=self.segment.name,
            kind=self.segment.kind,
            compiler=self.compiler,
            artifact=f"{self.segment.name}/{self.artifact}",
            inputs=self.segment.inputs,
            outputs=self.segment.outputs,
            key=self.key,
            profiles=self.segment.profile_indices if self.segment.kind == "engine" else (),
            tensor_names=self.segment.tensor_names,
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose build it is, for the records of engines.

    Args:
        model: name in the repository.
        source: as the user named it.
        settings: of the build.
        versions: of the packages that build.
    """

    model: str
    source: str
    settings: Mapping[str, object]
    versions: Mapping[str, str]


def engine_components(
    compiler: Compiler, settings: Settings, fingerprint: Fingerprint, segment: Segment
) -> dict[str, object]:
    """What the engine key of a segment is made of."""
    return key_components(
        compiler=compiler.name,
        target=compiler.target(settings),
        fingerprint=fingerprint.components,
        refit=fingerprint.refit,
        inputs=segment.inputs,
        outputs=segment.outputs,
    )


class SegmentCompiler:
    """Compiles the segments of one build.

    Args:
        compiler, settings, session: of the build.
        cache: where engines come from and go to.
        origin: whose build it is.
        work: an existing directory that keeps what is made.
        device: where engines that come from the cache are compared with eager PyTorch; None where they are not.
        progress: told when something is off.
    """

    def __init__(
        self,
        compiler: Compiler,
        settings: Settings,
        session: CompilerSession,
        cache: EngineCache,
        origin: Origin,
        work: Path,
        device: str | None,
        progress: Progress,
    ) -> None:
        self._compiler = compiler
        self._settings = settings
        self._session = session
        self._cache = cache
        self._origin = origin
        self._work = work
        self._device = device
        self._progress = progress

    def compile(self, segment: Segment, reference: SegmentReference) -> CompiledSegment:
        """The files of a segment.

        An engine from the cache gets this model's weights and is compared with eager PyTorch at the opt
        point; where it does not agree, it is never used again and compiled anew.

        Args:
            reference: of the plan that the segment is part of.
        Raises:
            CompileError: when the compiler does not take the segment.
        """
        started = time.monotonic()
        if segment.kind == "fallback":
            return self._fallback(segment, started)
        fingerprint = self._session.fingerprint(segment)
        request = self._request(segment, fingerprint)
        if fingerprint.unsure:
            self._progress.note(f"{segment.name} is compiled at every build: {fingerprint.unsure[0]}")
        entry = self._engine(request, segment)
        if entry.hit:
            try:
                done = self._complete(segment, fingerprint, entry)
                reason = self._problem(done, reference) if fingerprint.refit == "weights" else ""
            except RefitError as error:
                reason = error.what
            if not reason:
                return dataclasses.replace(done, seconds=time.monotonic() - started)
            self._cache.reject(entry, reason)
            entry = self._engine(request, segment)
        try:
            done = self._complete(segment, fingerprint, entry)
        except RefitError as error:
            # Nobody can use it, now or later.
            self._cache.reject(entry, error.what)
            if not self._session.without_refit(segment):
                raise
            self._progress.note(f"{segment.name} keeps its weights in the engine: {error.what}")
            return self.compile(segment, reference)
        return dataclasses.replace(done, seconds=time.monotonic() - started)

    def _engine(self, request: EngineRequest, segment: Segment) -> Entry:
        return self._cache.get_or_build(request, lambda directory: self._session.compile(segment, directory).file)

    def _fallback(self, segment: Segment, started: float) -> CompiledSegment:
        path = self._directory(segment) / _FALLBACK_FILE
        save_program(segment, path)
        return CompiledSegment(
            segment,
            "torch",
            _FALLBACK_FILE,
            {_FALLBACK_FILE: path},
            size=path.stat().st_size,
            seconds=time.monotonic() - started,
        )

    def _request(self, segment: Segment, fingerprint: Fingerprint) -> EngineRequest:
        components = engine_components(self._compiler, self._settings, fingerprint, segment)
        return EngineRequest(
            key=engine_key(components),
            components=components,
            texts={GRAPH_TEXT: fingerprint.text, DETAILS: json.dumps(fingerprint.details, indent=1) + "\n"},
            refit=fingerprint.refit,
            fixed=tuple(dataclasses.asdict(f) for f in fingerprint.fixed),
            settings=self._origin.settings,
            versions=self._origin.versions,
            user={"model": self._origin.model, "source": self._origin.source, "segment": segment.name},
            shareable=not fingerprint.unsure,
        )

    def _complete(self, segment: Segment, fingerprint: Fingerprint, entry: Entry) -> CompiledSegment:
        """The engine with the segment's weights."""
        artifact, directory, names = entry.record.artifact, entry.files, entry.names
        if fingerprint.refit == "weights":
            directory = self._directory(segment)
            artifact = self._session.refit(segment, entry.files, directory).file
            names = tuple(p.relative_to(directory).as_posix() for p in sorted(directory.rglob("*")) if p.is_file())
        files = {name: directory / name for name in names}
        return CompiledSegment(
            segment,
            self._compiler.name,
            artifact,
            files,
            size=sum(p.stat().st_size for p in files.values()),
            seconds=0.0,
            key=entry.key,
            hit=entry.hit,
            saved_seconds=entry.record.build_seconds if entry.hit else 0.0,
        )

    def _problem(self, done: CompiledSegment, reference: SegmentReference) -> str:
        if self._device is None:
            return ""
        spec = dataclasses.replace(done.spec(), artifact=done.artifact)
        return reference.problem(done.segment, spec, done.files[done.artifact].parent, self._device)

    def _directory(self, segment: Segment) -> Path:
        return Path(tempfile.mkdtemp(dir=self._work, prefix=f"{segment.name}-"))

    def other(self, compiler: Compiler) -> SegmentCompiler:
        """The same build with another compiler."""
        session = compiler.session(BuildContext(self._work, self._settings))
        return SegmentCompiler(
            compiler,
            self._settings,
            session,
            self._cache,
            self._origin,
            self._work,
            self._device,
            self._progress,
        )


class SegmentCompilers:
    """Compiles each segment with the build's compiler, or for the backend that will run it.

    Args:
        own: of the build.
    """

    def __init__(self, own: SegmentCompiler) -> None:
        self._own = own
        self._inductor: SegmentCompiler | None = None

    def compile(self, segment: Segment, runner: str, reference: SegmentReference) -> CompiledSegment:
        """The files of a segment; a fallback segment that the PyTorch backend will run is compiled for it.

        Raises:
            CompileError: when the compiler does not take the segment.
        """
        if segment.kind == "engine" or runner != "inductor":
            return self._own.compile(segment, reference)
        if self._inductor is None:
            self._inductor = self._own.other(choose_compiler("inductor"))
        done = self._inductor.compile(dataclasses.replace(segment, kind="engine"), reference)
        return dataclasses.replace(done, segment=segment)
