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
from typing import Any

import torch

from builder.cache.options import CacheOptions
from builder.compilation import Compilation, ModelCompiler
from builder.engines import CompiledSegment
from builder.errors import BuilderError, CompileError, DataError, ExportError, RequestError
from builder.export import ExportedModel, export_model
from builder.inputs import Constant, Input
from builder.library_options import LibraryOptions
from builder.profiles import Profile
from builder.progress import Progress
from builder.runtime.check import check_request
from builder.runtime.manifest import Manifest, SegmentSpec
from builder.runtime.precision import keep_float32
from builder.runtime.profiles import ProfileChooser
from builder.runtime.runners import load_runner
from builder.runtime.steps import Steps, fits
from builder.runtime.values import Value, to_torch
from builder.runtime.weights import WeightWatch
from builder.tracing import own_name
from builder.types import Range
from builder.verify.compare import compare_tensors, verify_model

__all__ = ["CompiledGraph", "Subject"]

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
    outputs: tuple[str, ...] | None = None
    profiles: tuple[Profile, ...] = ()


@dataclass(frozen=True)
class _State:
    """One compilation that runs, and the weights that it has."""

    compilation: Compilation
    manifest: Manifest
    steps: Steps
    fits: Callable[[Sequence[Value]], bool]
    profiles: ProfileChooser | None
    watch: WeightWatch


class _Directory:
    """A temporary directory that goes when nobody holds it any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="triton-repo-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


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
        self._work = _Directory()
        # What comes from the cache is compared segment by segment, or, where that comes for nothing, with the first answer.
        self._compare = verify
        self._state = self._compiled(subject, weights)
        self._checked = verify

    @property
    def compilation(self) -> Compilation:
        """With the weights of the last call."""
        return self._state.compilation

    @property
    def manifest(self) -> Manifest:
        """Its artifacts are relative to the directories of `compilation`."""
        return self._state.manifest

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Named and in order, with the ranges that hold now."""
        return self.compilation.exported.inputs

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
        if state.watch.changed(weights):
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
        if self._state.watch.changed(weights):
            self._refitted(weights)

    def refit(self, weights: Tensors) -> None:
        """Take the weights as they are now, whether or not a change can be seen.

        Raises:
            BuilderError: when they cannot be taken.
        """
        with self._lock:
            self._state = self._with_weights(self._state, weights, range(len(weights)))

    def _brought_home(self, value: Value) -> torch.Tensor:
        tensor = value if isinstance(value, torch.Tensor) else to_torch(value)
        return tensor if tensor.device == self._subject.device else tensor.to(self._subject.device)

    def _named(self, tensors: Tensors) -> dict[str, Value]:
        return {i.name or "": t for i, t in zip(self.inputs, tensors, strict=True)}

    def _answer(self, state: _State, tensors: Tensors) -> list[torch.Tensor]:
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
            wider = _wider(self.inputs, tensors, self._subject.assumed, self._options.out_of_range == "recompile")
            if wider is None:
                raise error
            for inputs in wider:
                subject = dataclasses.replace(self._subject, inputs=inputs, profiles=())
                try:
                    self._state = self._compiled(subject, weights)
                    self._checked = self._verify
                    break
                except BuilderError as failure:
                    problem = failure
            else:
                raise problem
            self._subject = subject
            self._progress.note(f"compiled again for {', '.join(map(str, inputs))}, since {error.what}")
        return self(tensors, weights)

    def _compiled(self, subject: Subject, weights: Tensors) -> _State:
        settings = self._options.settings
        self._progress.stage("export")
        with torch.inference_mode(False), torch.no_grad():
            compiler = self._compiler(subject, compare=self._compare)
            subject.bind(weights)
            exported = export_model(
                subject.module, subject.inputs, output_names=subject.outputs, profiles=subject.profiles
            )
            _refuse_random(exported)
            for note in exported.notes:
                self._progress.note(note)
            compilation = compiler.compile(exported)
            compiler.close()
            try:
                state = self._loaded(compilation, weights)
            except (BuilderError, RuntimeError):
                if self._compare:
                    raise
                self._compare = True
                return self._compiled(subject, weights)
            if self._verify:
                self._progress.stage("verify")
                verify_model(exported.eager, lambda request: self._answers(state, request), settings)
        return state

    def _compiler(self, subject: Subject, *, compare: bool = True) -> ModelCompiler:
        work = Path(tempfile.mkdtemp(dir=self._work.path))
        cache = self._options.cache or CacheOptions(work / "cache")
        return ModelCompiler(
            self._options.settings, cache, subject.name, subject.source, work, self._progress, compare=compare
        )

    def _answers(self, state: _State, request: Mapping[str, Value]) -> dict[str, Value]:
        profile = state.profiles.choose(request) if state.profiles else 0
        outputs = state.steps.run([request[i.name] for i in state.manifest.inputs], profile)
        return {o.tensor.name: value for o, value in zip(state.manifest.outputs, outputs, strict=True)}

    def _loaded(self, compilation: Compilation, weights: Tensors) -> _State:
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
        return _State(
            compilation, manifest, Steps(manifest, runners), fits(manifest.inputs), profiles, WeightWatch(weights)
        )

    def _refitted(self, weights: Tensors) -> _State:
        with self._lock:
            state = self._state
            # Another thread may have done it.
            if state.watch.changed(weights):
                self._state = state = self._with_weights(state, weights, state.watch.changes(weights))
            return state

    def _with_weights(self, state: _State, weights: Tensors, changed: Sequence[int]) -> _State:
        """Refit the segments that use a changed weight; the others stay as they run."""
        new = {self._subject.weights[index]: weights[index] for index in changed}
        old = state.compilation
        with torch.inference_mode(False), torch.no_grad():
            program = _reweighted(old.exported.program, new)
            exported = dataclasses.replace(old.exported, program=program)
            segments = tuple(
                dataclasses.replace(s, program=_reweighted(s.program, new)) if _uses(s.program, new) else s
                for s in old.plan.segments
            )
            touched = {s.name for s, before in zip(segments, old.plan.segments, strict=True) if s is not before}
            plan = dataclasses.replace(old.plan, segments=segments)
            compiler = self._compiler(self._subject)
            compilation = compiler.refit(dataclasses.replace(old, exported=exported, plan=plan), touched)
            compiler.close()
            return self._loaded(compilation, weights)

    def copied(self, subject: Subject, weights: Tensors) -> CompiledGraph:
        """The same engines for a copy of the module, which may go its own way.

        Args:
            subject: the copy.
            weights: its own, with the same values.
        """
        other = copy.copy(self)
        other._subject = dataclasses.replace(subject, inputs=self._subject.inputs)
        other._lock = threading.RLock()
        # Both may still read the files of the one that is there.
        other._work = self._work
        other._state = dataclasses.replace(self._state, watch=WeightWatch(weights))
        return other


def _refuse_random(exported: ExportedModel) -> None:
    for module in exported.program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if _draws(node):
                raise ExportError(
                    f"the model draws random numbers ({node.target}), and no engine draws those that PyTorch does",
                    where=str(node.meta.get("stack_trace") or "").strip().rpartition("\n")[2].strip() or None,
                    fix="call eval(), or give the random numbers as an input",
                )


def _draws(node: torch.fx.Node) -> bool:
    """Attention, dropout and recurrent layers say that they may draw, and do not where their dropout is off."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = {a.name: a.default_value for a in arguments}
    given.update(zip((a.name for a in arguments), node.args, strict=False))
    given.update(node.kwargs)
    off = given.get("train", True) is False or given.get("training", True) is False
    return not (off or given.get("dropout_p", 1) == 0 or given.get("dropout", 1) == 0)


def _in_place(compiled: CompiledSegment) -> tuple[SegmentSpec, Path]:
    """A segment as a runner takes it, where its files lie now."""
    path = compiled.files[compiled.artifact]
    return dataclasses.replace(compiled.spec(), artifact=compiled.artifact), path.parent


def _uses(program: torch.export.ExportedProgram, new: Mapping[str, torch.Tensor]) -> bool:
    return any(own_name(name) in new for name in (*program.state_dict, *program.constants))


def _reweighted(program: torch.export.ExportedProgram, new: Mapping[str, torch.Tensor]) -> torch.export.ExportedProgram:
    """The same program with other tensors as its weights; the first one keeps its own."""
    other = copy.copy(program)
    other._state_dict = {n: _instead(t, new.get(own_name(n), t)) for n, t in program.state_dict.items()}
    other._constants = {n: _instead(t, new.get(own_name(n), t)) for n, t in program.constants.items()}
    return other


def _instead(old: Any, new: Any) -> Any:
    """A weight in the place of another, on the host; torch asks for a parameter where it had one."""
    if not isinstance(new, torch.Tensor):
        return new
    tensor = new if new.device.type == "cpu" else new.detach().cpu()
    if isinstance(old, torch.nn.Parameter) and not isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor.detach(), requires_grad=old.requires_grad)
    return tensor


def _wider(
    inputs: Sequence[Input], tensors: Tensors, assumed: frozenset[str], every: bool
) -> list[tuple[Input, ...]] | None:
    """Inputs whose ranges hold the sizes of tensors, with room to grow, and without; None where no range will do."""
    if len(tensors) != len(inputs):
        return None
    needed: dict[str, list[int]] = {}
    for item, tensor in zip(inputs, tensors, strict=True):
        if item.integer is not None or str(tensor.dtype) != f"torch.{item.dtype}" or tensor.dim() != len(item.dims):
            return None
        for axis, (size, dim) in enumerate(zip(tensor.shape, item.dims, strict=True)):
            needed.setdefault(dim.name or f"{item.name}[{axis}]", []).append(int(size))
    if any(len({*sizes}) > 1 for sizes in needed.values()):
        return None

    def widened(growth: int) -> tuple[Input, ...] | None:
        new = []
        for item in inputs:
            dims = []
            for axis, dim in enumerate(item.dims):
                label = dim.name or f"{item.name}[{axis}]"
                size = needed[label][0]
                if size in dim or dim.derived is not None:
                    dims.append(dim)
                    continue
                if not every and label not in assumed:
                    return None
                high = dim.max or size
                multiple = dim.multiple if size % dim.multiple == 0 else 1
                high = max(size, high * growth // multiple * multiple) if size > high else high
                dims.append(Range(min(size, dim.min), dim.opt, high, dim.name, multiple))
            new.append(item.with_dims(dims))
        return tuple(new)

    found = [widened(growth) for growth in (2, 1)]
    return [f for f in dict.fromkeys(found) if f is not None] or None
