"""How a model sits in the repository: one engine, an ensemble, or one Python model; and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from builder.errors import RepositoryError, SpecError
from builder.releases import Release
from builder.repository.backends import NATIVE, tensor_fault
from builder.triton_options import RepositoryOptions, TritonOptions
from builder.types import OutputSpec, TensorSpec

__all__ = ["LayoutChoice", "Step", "choose_layout"]

# An ensemble costs a hop between schedulers, and a copy, for each step.
_MOST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """What a layout is told of a segment.

    Args:
        compiler: of its engine; "torch" for a fallback segment.
    """

    name: str
    compiler: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """A layout, why it is that, and for each segment who runs it: a compiler of `NATIVE`, or "python"."""

    layout: str
    reason: str
    runners: tuple[str, ...] = ()


def choose_layout(
    options: RepositoryOptions,
    triton: TritonOptions,
    release: Release | None,
    steps: Sequence[Step],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[OutputSpec],
    profiles: Sequence[Sequence[TensorSpec]],
    fallbacks_compile: str,
    *,
    preprocessed: bool = False,
) -> LayoutChoice:
    """Pick a layout, or check the one that is asked for.

    Args:
        options, triton: of the spec.
        release: that will serve the model; None for any.
        steps: the segments, in order.
        inputs, outputs, profiles: of the model.
        fallbacks_compile: "" where fallback segments can be compiled for the PyTorch backend, else why not.
        preprocessed: whether a function of the user's comes first.
    Raises:
        RepositoryError: when the layout that is asked for cannot be, with the reason.
    """
    if options.layout == "python":
        return LayoutChoice("python", "asked for")
    if options.layout == "auto" and release is None:
        return LayoutChoice("python", "it runs on any release; --triton names one whose own backends may be used")
    serving = release or _any_release()
    common = (
        _refused_by_options(triton, preprocessed) or _only_python_checks(inputs) or _renamed(steps, inputs, outputs)
    )
    sequences = "sequence_batching" in triton.fields
    plan = common or _refused_as_plan(steps, inputs, outputs, profiles, serving, options.layout == "plan")
    if not plan and sequences and NATIVE[steps[0].compiler].positional:
        plan = "the backend would not know the names of its states"
    if not plan and options.layout == "auto":
        plan = _unchecked(steps, inputs)
    if options.layout == "plan":
        if plan:
            raise _impossible("plan", plan)
        return LayoutChoice("plan", "asked for", (steps[0].compiler,))
    runners = _runners(steps, serving, options, fallbacks_compile)
    ensemble = common or ("an ensemble has no sequences" if sequences else "")
    ensemble = ensemble or _refused_as_ensemble(steps, runners, outputs, profiles)
    if options.layout == "ensemble":
        if ensemble:
            raise _impossible("ensemble", ensemble)
        return LayoutChoice("ensemble", "asked for", runners)
    if not plan:
        return LayoutChoice(
            "plan", f"nothing fell back, and Triton {serving.name} runs the engine", (steps[0].compiler,)
        )
    worse = ensemble or _unchecked(steps, inputs) or _better_as_python(steps, runners, inputs)
    if not worse:
        return LayoutChoice("ensemble", f"no plan: {plan}; Triton {serving.name} runs each segment itself", runners)
    return LayoutChoice("python", plan if plan == worse else f"no plan: {plan}; no ensemble: {worse}")


def _any_release() -> Release:
    raise SpecError(
        "which Triton release will serve the model is not said, and this layout depends on it",
        where="--layout",
        fix="name it: --triton 26.09, or triton under [repository]",
    )


def _impossible(layout: str, reason: str) -> RepositoryError:
    return RepositoryError(
        f"the model cannot have the layout {layout}: {reason}",
        where="--layout",
        fix="use --layout python, which takes every model, or --layout auto",
    )


def _refused_by_options(triton: TritonOptions, preprocessed: bool) -> str:
    if preprocessed:
        return "[preprocess] is what our Python model does, no other backend"
    for name in ("optional", "ragged"):
        if getattr(triton, name):
            return f"[triton].{name} is what our Python model does, no other backend"
    return ""


def _only_python_checks(inputs: Sequence[TensorSpec]) -> str:
    """What an engine would take, and answer wrongly."""
    for spec in inputs:
        if spec.values is not None:
            return f"the input {spec.name!r} is a number whose range only our Python model checks"
        for dim in spec.dims:
            if dim.multiple > 1 or dim.derived is not None:
                return f"that a size of {spec.name!r} is {dim} is checked by our Python model only"
    return ""


def _renamed(steps: Sequence[Step], inputs: Sequence[TensorSpec], outputs: Sequence[OutputSpec]) -> str:
    """Outputs that no step could name."""
    made = {t.name for step in steps for t in step.outputs}
    for output in outputs:
        if output.value not in made:
            return f"the output {output.tensor.name!r} is an input that goes through the model"
    twice = [value for value, count in Counter(o.value for o in outputs).items() if count > 1]
    if twice:
        names = [o.tensor.name for o in outputs if o.value == twice[0]]
        return f"the outputs {' and '.join(map(repr, names))} are one tensor"
    both = {i.name for i in inputs} & {o.tensor.name for o in outputs}
    if both:
        return f"{sorted(both)[0]!r} is the name of an input and of an output"
    used = {t.name for step in steps for t in step.inputs}
    unused = [i.name for i in inputs if i.name not in used]
    return f"the model does not use its input {unused[0]!r}" if unused else ""


def _refused_as_plan(
    steps: Sequence[Step],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[OutputSpec],
    profiles: Sequence[Sequence[TensorSpec]],
    release: Release,
    asked: bool,
) -> str:
    if len(steps) != 1:
        return f"there are {len(steps)} segments"
    compiler = steps[0].compiler
    if compiler == "torch":
        return "PyTorch runs all of it"
    if compiler not in NATIVE:
        return f"Triton has no backend for engines of {compiler}"
    native = NATIVE[compiler]
    if native.positional and not asked:
        return "the backend would call inputs and outputs INPUT__0 and OUTPUT__0, and checks no size"
    fault = tensor_fault(native, release, [*inputs, *(o.tensor for o in outputs)])
    return fault or (_overlapping(profiles) if compiler == "tensorrt" else "")


def _runners(
    steps: Sequence[Step], release: Release, options: RepositoryOptions, fallbacks_compile: str
) -> tuple[str, ...]:
    chosen = []
    for step in steps:
        compiler = step.compiler
        if compiler == "torch" and options.fallback != "python":
            compiler = "inductor"
        native = NATIVE.get(compiler)
        refused = "no backend" if native is None else tensor_fault(native, release, [*step.inputs, *step.outputs])
        if step.compiler == "torch":
            refused = refused or fallbacks_compile
            if refused and options.fallback == "torch_aoti":
                raise _impossible("ensemble", f"{step.name} cannot be compiled for the PyTorch backend: {refused}")
        chosen.append("python" if refused else compiler)
    return tuple(chosen)


def _refused_as_ensemble(
    steps: Sequence[Step],
    runners: Sequence[str],
    outputs: Sequence[OutputSpec],
    profiles: Sequence[Sequence[TensorSpec]],
) -> str:
    for step, runner in zip(steps, runners, strict=True):
        if len(profiles) > 1 and runner == "python" and step.compiler != "torch":
            return f"{step.name} would be a Python model of its own, which cannot choose among the model's profiles"
    for step in steps:
        if not step.inputs:
            return f"{step.name} has no input"
    tensors = {t.name for step in steps for t in step.outputs}
    renamed = {o.tensor.name for o in outputs} - {o.value for o in outputs}
    if clash := renamed & tensors:
        return f"{sorted(clash)[0]!r} is the name of an output and of another tensor between segments"
    if any(s.compiler == "tensorrt" for s in steps):
        return _overlapping(profiles)
    return ""


def _better_as_python(steps: Sequence[Step], runners: Sequence[str], inputs: Sequence[TensorSpec]) -> str:
    """An ensemble of Python models costs more than one that runs all of them; an AOTInductor package checks no sizes."""
    if len(steps) > _MOST_STEPS:
        return f"{len(steps)} segments would be as many hops between schedulers"
    python = [s.name for s, r in zip(steps, runners, strict=True) if r == "python"]
    if python:
        return f"{python[0]} would be a Python model of its own"
    if "inductor" in runners:
        checked = {t.name for s, r in zip(steps, runners, strict=True) if r == "tensorrt" for t in s.inputs}
        for spec in inputs:
            if spec.name not in checked and not all(d.is_static for d in spec.dims):
                return f"the PyTorch backend does not check the sizes of {spec.name!r}, and would answer wrongly"
    return ""


def _unchecked(steps: Sequence[Step], inputs: Sequence[TensorSpec]) -> str:
    """TensorRT compares sizes of one name; ONNX Runtime broadcasts where one of them is 1."""
    if all(s.compiler == "tensorrt" for s in steps):
        return ""
    shared = Counter(name for t in inputs for name in {d.name for d in t.dims[1:] if d.name and not d.is_static})
    for name, count in shared.items():
        if count > 1:
            return f"that {name} is one size in all inputs is checked by our Python model only"
    return ""


def _overlapping(profiles: Sequence[Sequence[TensorSpec]]) -> str:
    """Triton takes the nearest opt, so that only profiles that share no size are chosen right."""
    for index, one in enumerate(profiles):
        for other in range(index):
            if not any(_disjoint(a, b) for a, b in zip(one, profiles[other], strict=True)):
                return f"the profiles {other} and {index} overlap, and Triton would choose badly between them"
    return ""


def _disjoint(one: TensorSpec, other: TensorSpec) -> bool:
    return any(
        (a.max is not None and a.max < b.min) or (b.max is not None and b.max < a.min)
        for a, b in zip(one.dims, other.dims, strict=True)
    )
