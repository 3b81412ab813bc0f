"""A compiled model in this process: it follows its weights, and knows what to do outside its ranges."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from builder.cache.options import CacheOptions
from builder.compilation import Compilation, ModelCompiler
from builder.engines import CompiledSegment
from builder.errors import BuilderError, CompileError, DataError, RequestError
from builder.export import export_model
from builder.inputs import Constant, Input
from builder.library_options import LibraryOptions
from builder.profiles import Profile
from builder.progress import Progress
from builder.randomness import refuse_random
from builder.reweighting import reweighted, uses
from builder.runtime.check import check_request
from builder.runtime.manifest import Manifest, SegmentSpec
from builder.runtime.precision import keep_float32
from builder.runtime.profiles import ProfileChooser
from builder.runtime.runners import load_runner
from builder.runtime.steps import Steps, fits
from builder.runtime.values import Value, to_torch
from builder.runtime.weights import WeightWatch
from builder.verify.compare import compare_tensors, verify_model
from builder.widening import wider_inputs

__all__ = ["CompiledGraph", "Running", "Subject"]

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is compiled.

    Args:
        module: on the CPU, to be exported.
        inputs: of its `forward`.
        weights: names of its parameters and buffers, in the order in which calls bring them.
        name, source: for records.
        device: where its tensors are in calls.
        eager: what PyTorch gives for the tensors and weights of a call.
        bind: gives `module` the weights of a call; it is the caller's own module, or holds others.
        assumed: names of dimensions whose range nobody has declared; a size outside it makes the range wider.
        counts: tensors that change where weights do without a version counter that tells.
        outputs, profiles: as in a spec.
    """

    module: torch.nn.Module
    inputs: tuple[Input | Constant, ...]
    weights: tuple[str, ...]
    name: str
    source: str
    device: torch.device
    eager: Callable[[Tensors, Tensors], list[torch.Tensor]]
    bind: Callable[[Tensors], None]
    assumed: frozenset[str] = frozenset()
    counts: Callable[[], list[torch.Tensor]] | None = None
    outputs: tuple[str, ...] | None = None
    profiles: tuple[Profile, ...] = ()


class _Directory:
    """A temporary directory that goes when nobody holds it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="triton-repo-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True)
class Running:
    """One compilation that runs, and the weights that it has.

    Args:
        compilation: whose files stay as long as this does.
        manifest: its artifacts are relative to the directories of `compilation`.
        directories: where these files lie.
        steps, fits, profiles: run it.
        watch: on the weights.
    """

    compilation: Compilation
    manifest: Manifest
    directories: tuple[_Directory, ...]
    steps: Steps
    fits: Callable[[Sequence[Value]], bool]
    profiles: ProfileChooser | None
    watch: WeightWatch


class CompiledGraph:
    """Calls engines and fallback segments with tensors by position. Safe to call from several threads.

    Args:
        subject: what to compile.
        weights: its weights as they are now, in the order of `subject.weights`.
        options: settings, cache and what to do out of range.
        progress: told about every stage.
        verify: compare with eager PyTorch over the whole range; else the first answer is compared.
    Raises:
        BuilderError: of the stage that fails.
    """

    def __init__(
        self, subject: Subject, weights: Tensors, options: LibraryOptions, progress: Progress, *, verify: bool
    ) -> None:
        self._subject = subject
        self._options = options
        self._progress = progress
        self._verify = verify
        self._lock = threading.RLock()
        # Where no engines are kept for others, new weights still go into those that are here.
        self._own_cache = None if options.cache else _Directory()
        # What comes from the cache is compared segment by segment, or, where that comes for nothing, with the first answer.
        self._compare = verify
        self._state = self._compiled(subject, weights)
        self._checked = verify

    @property
    def running(self) -> Running:
        """With the weights of the last call."""
        return self._state

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Named and in order, with the ranges that hold now."""
        return self._state.compilation.exported.inputs

    def __call__(self, tensors: Tensors, weights: Tensors) -> list[torch.Tensor]:
        """The outputs in order.

        Args:
            tensors: in the order of the inputs.
            weights: as they are now, in the order of `Subject.weights`.
        Raises:
            RequestError: when the tensors do not fit the ranges, and that is to be an error.
            BuilderError: when new weights cannot be taken.
        """
        state = self._state
        if state.watch.changed(self._watched(weights)):
            state = self._refitted(weights)
        if not state.fits(tensors):
            try:
                check_request(state.manifest.inputs, self._named(tensors))
            except RequestError as error:
                return self._outside(error, tensors, weights)
        try:
            return self._answer(state, tensors) if self._checked else self._first_answer(tensors, weights)
        except DataError:
            if self._options.out_of_range == "eager":
                return self._subject.eager(tensors, weights)
            raise

    def follow(self, weights: Tensors) -> None:
        """Take the weights as they are now, where a change can be seen.

        Raises:
            BuilderError: when they cannot be taken.
        """
        if self._state.watch.changed(self._watched(weights)):
            self._refitted(weights)

    def refit(self, weights: Tensors) -> None:
        """Take the weights as they are now, whether or not a change can be seen.

        Raises:
            BuilderError: when they cannot be taken.
        """
        with self._lock:
            self._state = self._with_weights(self._state, weights, range(len(weights)))

    def _watched(self, weights: Tensors) -> Tensors:
        counts = self._subject.counts
        return weights if counts is None else [*weights, *counts()]

    def _brought_home(self, value: Value) -> torch.Tensor:
        tensor = value if isinstance(value, torch.Tensor) else to_torch(value)
        return tensor if tensor.device == self._subject.device else tensor.to(self._subject.device)

    def _named(self, tensors: Tensors) -> dict[str, Value]:
        return {i.name or "": t for i, t in zip(self.inputs, tensors, strict=True)}

    def _answer(self, state: Running, tensors: Tensors) -> list[torch.Tensor]:
        profile = state.profiles.choose(self._named(tensors)) if state.profiles else 0
        return [self._brought_home(value) for value in state.steps.run(tensors, profile)]

    def _first_answer(self, tensors: Tensors, weights: Tensors) -> list[torch.Tensor]:
        """An answer that PyTorch gives too, which costs one call of it.

        Raises:
            CompileError: when there is none; the next call tries again.
        """
        with self._lock:
            with torch.no_grad():
                reference = self._subject.eager(tensors, weights)
            outputs, problem = self._compared(tensors, reference)
            if problem and not self._compare:
                # An engine out of the cache may be wrong: each is compared now, and a wrong one is compiled anew.
                self._compare = True
                self._state = self._compiled(self._subject, weights)
                outputs, problem = self._compared(tensors, reference)
            if problem:
                raise CompileError(
                    problem,
                    where=self._subject.source,
                    fix="find the operator with torch_executed_ops, or use precision='fp32'",
                )
            self._checked = True
            return outputs

    def _compared(self, tensors: Tensors, reference: Tensors) -> tuple[list[torch.Tensor], str]:
        """The outputs, and what is wrong with them."""
        try:
            outputs = self._answer(self._state, tensors)
        except DataError:
            raise
        except (BuilderError, RuntimeError, ValueError) as error:
            if self._compare:
                raise
            return [], f"an engine does not run: {' '.join(str(error).split())[:300]}"
        for index, (expected, given) in enumerate(zip(reference, outputs, strict=True)):
            problem = compare_tensors(expected.cpu(), given, self._options.settings).problem
            if problem:
                return outputs, f"output {index} differs from eager PyTorch: {problem}"
        return outputs, ""

    def _outside(self, error: RequestError, tensors: Tensors, weights: Tensors) -> list[torch.Tensor]:
        if self._options.out_of_range == "eager":
            return self._subject.eager(tensors, weights)
        with self._lock:
            # Another thread may have done it.
            if not self._state.fits(tensors):
                self._widen(error, tensors, weights)
        return self(tensors, weights)

    def _widen(self, error: RequestError, tensors: Tensors, weights: Tensors) -> None:
        wider = wider_inputs(self.inputs, tensors, self._subject.assumed, self._options.out_of_range == "recompile")
        if wider is None:
            raise error
        for inputs in wider:
            subject = dataclasses.replace(self._subject, inputs=inputs, profiles=())
            try:
                state = self._compiled(subject, weights)
                break
            except BuilderError as failure:
                problem = failure
        else:
            raise problem
        self._checked = self._verify
        self._subject, self._state = subject, state
        self._progress.note(f"compiled again for {', '.join(map(str, inputs))}, since {error.what}")

    def _compiled(self, subject: Subject, weights: Tensors) -> Running:
        settings = self._options.settings
        self._progress.stage("export")
        directory = _Directory()
        with torch.inference_mode(False), torch.no_grad():
            compiler = self._compiler(subject, directory, compare=self._compare)
            subject.bind(weights)
            exported = export_model(
                subject.module, subject.inputs, output_names=subject.outputs, profiles=subject.profiles
            )
            refuse_random(exported.program)
            for note in exported.notes:
                self._progress.note(note)
            compilation = compiler.compile(exported)
            compiler.close()
            try:
                state = self._loaded(compilation, weights, (directory,))
            except (BuilderError, RuntimeError):
                if self._compare:
                    raise
                self._compare = True
                return self._compiled(subject, weights)
            if self._verify:
                self._progress.stage("verify")
                verify_model(exported.eager, lambda request: self._answers(state, request), settings)
        return state

    def _compiler(self, subject: Subject, directory: _Directory, *, compare: bool = True) -> ModelCompiler:
        cache = self._options.cache or CacheOptions(self._own_cache.path)  # type: ignore[union-attr]
        return ModelCompiler(
            self._options.settings, cache, subject.name, subject.source, directory.path, self._progress, compare=compare
        )

    def _answers(self, state: Running, request: Mapping[str, Value]) -> dict[str, Value]:
        profile = state.profiles.choose(request) if state.profiles else 0
        outputs = state.steps.run([request[i.name] for i in state.manifest.inputs], profile)
        return {o.tensor.name: value for o, value in zip(state.manifest.outputs, outputs, strict=True)}

    def _loaded(self, compilation: Compilation, weights: Tensors, directories: Sequence[_Directory]) -> Running:
        if compilation.device is None:
            raise CompileError(
                f"engines of {self._options.settings.compiler} do not run here",
                fix="choose another compiler, or build a repository for the machine that runs it",
            )
        if compilation.device != "cpu":
            keep_float32()
        manifest = compilation.manifest(self._subject.name, self._subject.source)
        segments = [_in_place(c) for c in compilation.segments]
        runners = [
            load_runner(spec, directory, device=compilation.device, settings=manifest.settings)
            for spec, directory in segments
        ]
        profiles = ProfileChooser(manifest.profiles) if len(manifest.profiles) > 1 else None
        files = [file for segment in compilation.segments for file in segment.files.values()]
        return Running(
            compilation,
            manifest,
            tuple(d for d in directories if any(file.is_relative_to(d.path) for file in files)),
            Steps(manifest, runners),
            fits(manifest.inputs),
            profiles,
            WeightWatch(self._watched(weights)),
        )

    def _refitted(self, weights: Tensors) -> Running:
        with self._lock:
            state = self._state
            # Another thread may have done it.
            watched = self._watched(weights)
            if state.watch.changed(watched):
                changed = [i for i in state.watch.changes(watched) if i < len(weights)]
                self._state = state = self._with_weights(state, weights, changed)
            return state

    def _with_weights(self, state: Running, weights: Tensors, changed: Sequence[int]) -> Running:
        """Refit the segments that use a changed weight; the others stay as they run."""
        new = {self._subject.weights[index]: weights[index] for index in changed}
        old = state.compilation
        with torch.inference_mode(False), torch.no_grad():
            program = reweighted(old.exported.program, new)
            exported = dataclasses.replace(old.exported, program=program)
            segments = tuple(
                dataclasses.replace(s, program=reweighted(s.program, new)) if uses(s.program, new) else s
                for s in old.plan.segments
            )
            touched = {s.name for s, before in zip(segments, old.plan.segments, strict=True) if s is not before}
            plan = dataclasses.replace(old.plan, segments=segments)
            directory = _Directory()
            compiler = self._compiler(self._subject, directory)
            compilation = compiler.refit(dataclasses.replace(old, exported=exported, plan=plan), touched)
            compiler.close()
            return self._loaded(compilation, weights, (*state.directories, directory))

    def copied(self, subject: Subject, weights: Tensors) -> CompiledGraph:
        """The same engines for a copy of the module, which may go its own way.

        Args:
            subject: the copy.
            weights: its own, with the same values.
        """
        other = copy.copy(self)
        other._subject = dataclasses.replace(subject, inputs=self._subject.inputs)
        other._lock = threading.RLock()
        other._state = dataclasses.replace(self._state, watch=WeightWatch(other._watched(weights)))
        return other


def _in_place(compiled: CompiledSegment) -> tuple[SegmentSpec, Path]:
    """A segment as a runner takes it, where its files lie now."""
    path = compiled.files[compiled.artifact]
    return dataclasses.replace(compiled.spec(), artifact=compiled.artifact), path.parent
