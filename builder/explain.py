"""What to say when torch.export refuses a model: in the user's names, with the line and the spec that works."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from builder.dims import parse_dim
from builder.errors import BuilderError, ExportError
from builder.inputs import Input, resolve_names
from builder.signature import Signature
from builder.tracing import dim_name, dynamic_dims, examples, quiet_torch, trace, trace_sizes
from builder.types import Range, SymbolName

__all__ = ["check_runs", "code_place", "explained"]

_PACKAGE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_SIZE_SOURCE = re.compile(
    r"L\['(?P<root>[^']+)'\](?:\[(?P<index>\d+)\])?(?:\['(?P<key>[^']+)'\])?\.size\(\)\[(?P<axis>\d+)\]"
)


def explained(
    error: Exception,
    module: torch.nn.Module,
    signature: Signature,
    sizes: Mapping[SymbolName, int],
) -> BuilderError:
    """What to tell the user of torch's error.

    Torch names what a model requires of its sizes only when it is traced at sizes that meet the
    requirement, and guesses it from them. So the model is traced again at other sizes, until the
    ranges that torch's words lead to have been seen to work.

    Args:
        error: raised by `trace`.
        module, signature, sizes: what it was called with.
    """
    inputs = signature.inputs
    best: ExportError | None = None
    for attempt in (sizes, _common_sizes(inputs), _divisible_sizes(inputs)):
        guards: list[_Guard] = []
        with _observed_guards(guards):
            try:
                trace(module, signature, attempt)
                continue
            except Exception as again:
                text = str(again)
        requirements = _requirements(text, inputs)
        if not requirements:
            continue
        instead = _instead(inputs, requirements)
        works = instead is not None and _exports(module, signature.with_inputs(instead))
        said = _constraint_error(requirements, inputs, guards, instead if works else None)
        if works:
            return said
        best = best or said
    if best is not None:
        return best
    text = str(error)
    return ExportError(
        f"torch.export cannot export the model: {_shortened(error)}",
        where=_raised_at(error) or _place_in_text(text),
        fix=_advice(text, module, signature),
    )


def _exports(module: torch.nn.Module, signature: Signature) -> bool:
    try:
        trace(module, signature, trace_sizes(signature.inputs))
    except Exception:
        return False
    return True


def _common_sizes(inputs: Sequence[Input]) -> dict[SymbolName, int]:
    """One size for every dynamic dimension, where a common one exists; else opt."""
    low = max((max(d.min, 2) for _, _, d in dynamic_dims(inputs)), default=2)
    return {dim_name(i, axis, d): low if low in d else d.opt for i, axis, d in dynamic_dims(inputs)}


def _divisible_sizes(inputs: Sequence[Input]) -> dict[SymbolName, int]:
    """For each dynamic dimension the size that the highest power of two divides."""
    return {
        dim_name(i, axis, d): max(range(d.min, (d.max or d.opt) + 1, d.multiple), key=lambda size: size & -size)
        for i, axis, d in dynamic_dims(inputs)
    }


@dataclass(frozen=True, slots=True)
class _Guard:
    sources: frozenset[str]
    place: str


@contextlib.contextmanager
def _observed_guards(found: list[_Guard]) -> Iterator[None]:
    """Note the line of the model that each new guard on a size comes from.

    ShapeEnv keeps only the frame inside torch; its hook for logging a guard is the one place from
    which the model's own frame can still be seen. Where a torch has no such hook, nothing is noted.
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    original = getattr(ShapeEnv, "_log_guard", None)
    if original is None:
        yield
        return

    def observed(self: Any, prefix: str, guard: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            symbols: Iterable[Any] = getattr(guard, "free_symbols", ())
            known = getattr(self, "var_to_sources", None) or getattr(self, "source_to_var", {})
            names = {s.name if isinstance(s.name, str) else s.name() for v in symbols for s in known.get(v, ())}
            place = _user_frame(traceback.extract_stack())
            if place:
                found.append(_Guard(frozenset(names), place))
        return original(self, prefix, guard, *args, **kwargs)

    setattr(ShapeEnv, "_log_guard", observed)  # noqa: B010
    try:
        yield
    finally:
        setattr(ShapeEnv, "_log_guard", original)  # noqa: B010


def _user_frame(frames: Sequence[traceback.FrameSummary]) -> str | None:
    """The innermost frame of the model; torch.nn's own layers only where no other is inside torch's tracer."""
    inside = False
    place = None
    for frame in frames:
        if frame.filename.startswith(_TORCH):
            inside = True
        elif inside and not frame.filename.startswith(_PACKAGE) and "importlib" not in frame.filename:
            place = f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
    return place


def _raised_at(error: BaseException) -> str | None:
    return _user_frame(traceback.extract_tb(error.__traceback__))


def _place_in_text(text: str) -> str | None:
    found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    own = [f for f in found if not f[0].startswith(_TORCH)]
    return f"{own[-1][0]}:{own[-1][1]}, in {own[-1][2]}" if own else None


def _shortened(error: BaseException) -> str:
    text = str(error).split("\n\n")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("def forward", "# File", "For more", "Caused by"))]
    text = " ".join(lines) or type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."


def _advice(text: str, module: torch.nn.Module, signature: Signature) -> str:
    if "data-dependent" in text:
        return (
            "the model branches on a value that is known only at run time; use torch.where, torch.cond or torch._check"
        )
    failure = _eager_failure(module, signature, "opt")
    if failure is not None:
        said = f"{type(failure).__name__}: {_shortened(failure)}"
        return f"the model fails in eager PyTorch too, with the same inputs: {said}"
    return "change the named line so that torch.export can trace it; --debug shows torch's full message"


def _eager_failure(module: torch.nn.Module, signature: Signature, point: str) -> Exception | None:
    """What a plain forward pass at "min" or "opt" raises, so that a model that never worked is told apart."""
    sizes = {dim_name(i, axis, d): getattr(d, point) for i, axis, d in dynamic_dims(signature.inputs)}
    try:
        with quiet_torch(), torch.no_grad():
            signature.call(module, examples(signature.inputs, sizes))
    except Exception as error:
        return error
    return None


def check_runs(module: torch.nn.Module, signature: Signature) -> None:
    """Tracing does not notice every wrong dtype; one pass at the smallest sizes does."""
    failure = _eager_failure(module, signature, "min")
    if failure is not None:
        raise ExportError(
            f"the model does not run with these inputs: {type(failure).__name__}: {_shortened(failure)}",
            where=code_place(failure) or type(module).__name__,
            fix="check dtypes, sizes and value ranges (in LOW..HIGH): " + "  ".join(f"'{i}'" for i in signature.inputs),
        ) from failure


@dataclass(frozen=True, slots=True)
class _Requirement:
    what: str
    instead: Mapping[SymbolName, str]


def _requirements(text: str, inputs: Sequence[Input]) -> list[_Requirement]:
    """What torch's message says of the inputs' dimensions; empty if it is about something else."""
    by_name = {dim_name(i, axis, d): (i, axis, d) for i, axis, d in dynamic_dims(inputs)}
    fixes = text.partition("Suggested fixes:")[2].split("\n\n")[0].strip().splitlines()
    return [r for r in (_requirement(f.strip(), by_name) for f in fixes) if r]


def _instead(inputs: Sequence[Input], requirements: Sequence[_Requirement]) -> tuple[Input, ...] | None:
    """The inputs with ranges that meet the requirements; None where a range cannot express one."""
    replaced: dict[SymbolName, str] = {}
    for requirement in requirements:
        if not requirement.instead:
            return None
        replaced.update(requirement.instead)
    return resolve_names(
        [
            i.with_dims(
                parse_dim(replaced[name], "") if (name := dim_name(i, axis, d)) in replaced else d
                for axis, d in enumerate(i.dims)
            )
            for i in inputs
        ]
    )


def _constraint_error(
    requirements: Sequence[_Requirement],
    inputs: Sequence[Input],
    guards: Sequence[_Guard],
    instead: Sequence[Input] | None,
) -> ExportError:
    return ExportError(
        "the model does not take the whole range: " + "; ".join(r.what for r in requirements),
        where=_guard_places(requirements, inputs, guards),
        fix="narrow the range to sizes that meet this"
        if instead is None
        else "this works: " + "  ".join(f"--input '{i}'" for i in instead),
    )


def _requirement(fix: str, by_name: Mapping[SymbolName, tuple[Input, int, Range]]) -> _Requirement | None:
    """One line of torch's "Suggested fixes" in our words; None for a line that only helps another."""
    name, _, value = (part.strip() for part in fix.partition("="))
    if name not in by_name:
        return None
    item, axis, dim = by_name[name]
    subject = f"dimension {axis} of input {item.name!r} ({dim})"
    if re.fullmatch(r"\d+", value):
        return _Requirement(f"{subject} must be exactly {value}", {name: value})
    if value in by_name:
        other, other_axis, other_dim = by_name[value]
        assert dim.max is not None and other_dim.max is not None
        low, high = max(dim.min, other_dim.min), min(dim.max, other_dim.max)
        both = str(Range(low, min(max(other_dim.opt, low), high), high, other_dim.name or value))
        same = f"{subject} must equal dimension {other_axis} of input {other.name!r}"
        return _Requirement(same, {name: both, value: both} if low <= high else {})
    derived = re.fullmatch(r"(\d+)\*(\w+)", value)
    if derived:
        k = int(derived[1])
        assert dim.max is not None
        low, high = max(k, -(-dim.min // k) * k), dim.max // k * k
        opt = min(max(round(dim.opt / k) * k, low), high)
        return _Requirement(f"{subject} must be a multiple of {k}", {name: str(Range(low, opt, high, dim.name, k))})
    bounds = {k: int(v) for k, v in re.findall(r"(min|max)=(\d+)", value)}
    if bounds:
        assert dim.max is not None
        low, high = max(dim.min, bounds.get("min", dim.min)), min(dim.max, bounds.get("max", dim.max))
        said = " and ".join(f"{'at least' if k == 'min' else 'at most'} {v}" for k, v in bounds.items())
        opt = min(max(dim.opt, low), high)
        return _Requirement(f"{subject} must be {said}", {name: str(Range(low, opt, high, dim.name, dim.multiple))})
    return _Requirement(f"{subject} must be {value}", {})


def _guard_places(
    requirements: Sequence[_Requirement], inputs: Sequence[Input], guards: Sequence[_Guard]
) -> str | None:
    """The line of the model that asked for the first requirement that a line is known of."""
    names = {name for r in requirements for name in r.instead}
    concerned = {(i.name, axis) for i, axis, d in dynamic_dims(inputs) if dim_name(i, axis, d) in names}
    for guard in guards:
        for source in guard.sources:
            match = _SIZE_SOURCE.search(source)
            if match is None:
                continue
            name = inputs[int(match["index"])].name if match["index"] else match["key"] or match["root"]
            if (name, int(match["axis"])) in concerned:
                return guard.place
    return guards[0].place if guards else None


def code_place(error: BaseException) -> str | None:
    """`file:line, in function: code` of the innermost frame outside torch and this package."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith((_TORCH, _PACKAGE)) and "<frozen" not in f.filename
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}: {frames[-1].line}" if frames else None
