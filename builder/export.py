"""A module and its Inputs in, an exported program with symbolic sizes out."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import logging
import re
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from builder.errors import BuilderError, ExportError, SpecError
from builder.inputs import Input, resolve_names
from builder.types import Range, SymbolName

__all__ = ["EagerModel", "ExportedModel", "code_place", "export_model", "match_inputs", "quiet_torch"]

_PACKAGE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True)
class EagerModel:
    """A module and how it is called: the reference that a compiled model is compared with.

    Args:
        module: in eval mode.
        inputs: in the order of `forward`, each with a name and known ranges.
        keywords: whether `forward` takes them by keyword (else by position).
        output_names: one per output tensor, in the order in which `forward` returns them.
    """

    module: torch.nn.Module
    inputs: tuple[Input, ...]
    keywords: bool
    output_names: tuple[str, ...]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Outputs by name, for tensors in the order of the inputs."""
        with torch.inference_mode():
            result = _call(self.module, self.inputs, self.keywords, tensors)
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return dict(zip(self.output_names, leaves, strict=True))


def _call(module: torch.nn.Module, inputs: Sequence[Input], keywords: bool, tensors: Sequence[torch.Tensor]) -> Any:
    if keywords:
        return module(**dict(zip((i.name or "" for i in inputs), tensors, strict=True)))
    return module(*tensors)


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """An exported program, and the eager model that it was made of.

    Args:
        eager: the reference; its inputs are in the order of the program's user inputs.
        program: functional, with parameters lifted to inputs.
        symbols: the range of each sympy symbol that stands for a declared dimension.
        notes: what the user should know but need not act on.
    """

    eager: EagerModel
    program: ExportedProgram
    symbols: Mapping[SymbolName, Range]
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs of the eager model."""
        return self.eager.inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of its outputs."""
        return self.eager.output_names


def export_model(
    module: torch.nn.Module, inputs: Sequence[Input], *, output_names: Sequence[str] | None = None
) -> ExportedModel:
    """Export a module for the whole range of its inputs.

    Args:
        module: put into eval mode if it is not.
        inputs: matched to the parameters of `forward` by name, or by position without names.
        output_names: names for the outputs, in order; else the keys of a dict output,
            "output" for a single tensor, "output_0", "output_1", ... for a tuple.
    Raises:
        SpecError: when the inputs do not match `forward`.
        ExportError: when torch.export refuses the module, or the module forces sizes that the
            ranges do not allow.
    """
    notes = []
    if module.training:
        module.eval()
        notes.append("the model was in training mode; it was put into eval mode")
    ordered, keywords = match_inputs(module, resolve_names(inputs))
    program = _export(module, ordered, keywords)
    _refuse_mutation(program)
    _check_runs(module, ordered, keywords)
    placeholders = _user_placeholders(program)
    if len(placeholders) != len(ordered):
        raise ExportError(
            f"the exported program has {len(placeholders)} inputs, {len(ordered)} were given",
            fix="give one input per tensor argument of `forward`",
        )
    for node, item in zip(placeholders, ordered, strict=True):
        if not any(True for _ in node.users):
            notes.append(f"the model does not use its input {item.name!r}")
    return ExportedModel(
        eager=EagerModel(module, ordered, keywords, _name_outputs(program, output_names)),
        program=program,
        symbols=_symbols(placeholders, ordered),
        notes=tuple(notes),
    )


def match_inputs(module: torch.nn.Module, inputs: Sequence[Input]) -> tuple[tuple[Input, ...], bool]:
    """Order inputs as `forward` takes them and name those that have no name.

    Returns: the inputs, and whether they can be passed by keyword.
    Raises:
        SpecError: for a missing, extra, doubled or misspelt input.
    """
    parameters = list(inspect.signature(module.forward).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return tuple(i if i.name else i.with_name(f"input_{n}") for n, i in enumerate(inputs)), False
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    where = f"{type(module).__name__}.forward({', '.join(p.name for p in parameters)})"
    given = _by_parameter(named, inputs, where)
    missing = [p.name for p in named if p.default is p.empty and p.name not in given]
    if missing:
        raise SpecError(
            f"no input is given for {_listed(missing)}; given: {_listed(given)}",
            where=where,
            fix="\n".join(f"add --input '{name}=DTYPE[SIZES]'" for name in missing),
        )
    keywords = not any(p.kind is p.POSITIONAL_ONLY for p in named)
    return tuple(given[p.name] for p in named if p.name in given), keywords


def _by_parameter(parameters: Sequence[inspect.Parameter], inputs: Sequence[Input], where: str) -> dict[str, Input]:
    names = [p.name for p in parameters]
    given: dict[str, Input] = {}
    for position, item in enumerate(inputs):
        if item.name is None:
            if position >= len(names):
                raise SpecError(
                    f"{len(inputs)} inputs are given, but `forward` takes {len(names)}",
                    where=where,
                    fix="give one input per tensor parameter",
                )
            item = item.with_name(names[position])
        name = item.name or ""
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the parameters are {_listed(names)}"
            raise SpecError(f"`forward` has no parameter {name!r}", where=where, fix=hint)
        if name in given:
            raise SpecError(f"the input {name!r} is given twice", where=where, fix="give it once")
        given[name] = item
    return given


def _listed(names: object) -> str:
    text = ", ".join(repr(n) for n in names)  # type: ignore[attr-defined]
    return text or "none"


def _trace_sizes(inputs: Sequence[Input]) -> dict[SymbolName, int]:
    """A size for each dynamic dimension at which torch does not specialise.

    0 and 1 are specialised by torch.export, and equal sizes of two dimensions could be taken for
    one dimension, so sizes are distinct and at least 2 wherever the ranges allow it.
    """
    taken = {d.min for i in inputs for d in i.dims if d.is_static}
    sizes: dict[SymbolName, int] = {}
    for item, axis, dim in _dynamic(inputs):
        name = _dim_name(item, axis, dim)
        if name in sizes:
            continue
        assert dim.max is not None
        low = max(dim.min, 2 * dim.multiple) if dim.max >= 2 * dim.multiple else dim.min
        around = sorted(
            range(low, min(dim.max, low + 4096 * dim.multiple) + 1, dim.multiple), key=lambda s: abs(s - dim.opt)
        )
        sizes[name] = next((s for s in around if s not in taken), around[0])
        taken.add(sizes[name])
    return sizes


def _dynamic(inputs: Sequence[Input]) -> Iterator[tuple[Input, int, Range]]:
    for item in inputs:
        for axis, dim in enumerate(item.dims):
            if not dim.is_static:
                yield item, axis, dim


def _dim_name(item: Input, axis: int, dim: Range) -> SymbolName:
    return dim.name or f"{(item.name or '').replace('.', '_')}_{axis}"


def _examples(inputs: Sequence[Input], sizes: Mapping[SymbolName, int]) -> list[torch.Tensor]:
    # Distinct tensors, since torch.export takes one tensor passed twice for one input.
    return [
        torch.full(
            [d.min if d.is_static else sizes[_dim_name(i, axis, d)] for axis, d in enumerate(i.dims)],
            i.value_range[0] if i.value_range else 0,
            dtype=getattr(torch, i.dtype),
        )
        for i in inputs
    ]


def _dynamic_shapes(inputs: Sequence[Input]) -> list[dict[int, Any]]:
    dims: dict[SymbolName, Any] = {}
    for item, axis, dim in _dynamic(inputs):
        name = _dim_name(item, axis, dim)
        if name in dims:
            continue
        assert dim.max is not None
        if dim.multiple > 1:
            base = Dim(f"_{name}", min=dim.min // dim.multiple, max=dim.max // dim.multiple)
            dims[name] = dim.multiple * base
        else:
            dims[name] = Dim(name, min=dim.min, max=dim.max)
    return [{axis: dims[_dim_name(i, axis, d)] for axis, d in enumerate(i.dims) if not d.is_static} for i in inputs]


def _export(module: torch.nn.Module, inputs: Sequence[Input], keywords: bool) -> ExportedProgram:
    sizes = _trace_sizes(inputs)
    try:
        return _torch_export(module, inputs, keywords, sizes)
    except BuilderError:
        raise
    except Exception as error:
        # Torch names its symbols and guards, not our inputs; a second, observed run tells which
        # line of the model asked for what.
        raise _explained(error, module, inputs, keywords, sizes) from error


def _torch_export(
    module: torch.nn.Module, inputs: Sequence[Input], keywords: bool, sizes: Mapping[SymbolName, int]
) -> ExportedProgram:
    tensors = _examples(inputs, sizes)
    shapes = _dynamic_shapes(inputs)
    with quiet_torch(), torch.no_grad():
        if keywords:
            names = [i.name or "" for i in inputs]
            kwargs = dict(zip(names, tensors, strict=True))
            dynamic: Any = dict(zip(names, shapes, strict=True))
            program = torch.export.export(module, (), kwargs, dynamic_shapes=dynamic, strict=False)
        else:
            program = torch.export.export(
                module, tuple(tensors), dynamic_shapes=_positional(module, shapes), strict=False
            )
        functional: ExportedProgram = program.run_decompositions({})
        return functional


def _positional(module: torch.nn.Module, shapes: list[dict[int, Any]]) -> Any:
    parameters = list(inspect.signature(module.forward).parameters.values())
    if parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return (tuple(shapes),)
    return tuple(shapes)


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
    """Keep torch's own warnings and logs off the user's terminal; errors still reach us as exceptions."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        sink = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _user_placeholders(program: ExportedProgram) -> list[torch.fx.Node]:
    user = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    return [n for n in program.graph.nodes if n.op == "placeholder" and n.name in user]


def _symbols(placeholders: Sequence[torch.fx.Node], inputs: Sequence[Input]) -> dict[SymbolName, Range]:
    """The declared range of each free symbol of the program's inputs."""
    symbols: dict[SymbolName, Range] = {}
    for node, item in zip(placeholders, inputs, strict=True):
        for axis, (size, dim) in enumerate(zip(node.meta["val"].shape, item.dims, strict=True)):
            if isinstance(size, int):
                continue
            (symbol,) = size.node.expr.free_symbols
            name, k = _dim_name(item, axis, dim), dim.multiple
            assert dim.max is not None
            if size.node.expr == symbol:
                symbols[str(symbol)] = Range(dim.min, dim.opt, dim.max, name)
            else:
                symbols[str(symbol)] = Range(dim.min // k, dim.opt // k, dim.max // k, f"({name}/{k})")
    return symbols


def _refuse_mutation(program: ExportedProgram) -> None:
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            raise ExportError(
                f"the model changes its buffer {spec.target!r} while it runs; a served model must be stateless",
                fix="return the new value as an output, or make the module not update it in eval mode",
            )
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise ExportError(
                f"the model changes its input {spec.target!r} in place",
                fix="work on a copy: x = x.clone()",
            )


def _name_outputs(program: ExportedProgram, wanted: Sequence[str] | None) -> tuple[str, ...]:
    specs = [s for s in program.graph_signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    names = _output_paths(program, len(specs))
    kept = []
    for name, spec in zip(names, specs, strict=True):
        node = next((n for n in program.graph.nodes if n.name == getattr(spec.arg, "name", None)), None)
        value = node.meta.get("val") if node is not None else None
        if isinstance(value, torch.Tensor):
            kept.append(name)
        elif getattr(spec.arg, "value", 0) is not None:
            raise ExportError(
                f"the output {name!r} is not a tensor", fix="return tensors only: torch.tensor(value), or leave it out"
            )
    if not kept:
        raise ExportError("the model returns no tensor", fix="return at least one tensor from `forward`")
    if wanted is not None:
        if len(wanted) != len(kept):
            raise SpecError(
                f"{len(wanted)} output names are given, but the model returns {len(kept)} tensors: {_listed(kept)}",
                fix="give one name per output, in order",
            )
        kept = list(wanted)
    double = {n for n in kept if kept.count(n) > 1}
    if double:
        raise SpecError(f"two outputs are named {_listed(sorted(double))}", fix="give each output its own name")
    return tuple(kept)


def _output_paths(program: ExportedProgram, count: int) -> list[str]:
    spec = program.call_spec.out_spec
    if spec is None or spec.num_leaves != count:
        return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    tree = pytree.tree_unflatten(list(range(count)), spec)
    paths, _ = pytree.tree_flatten_with_path(tree)
    names = [".".join(_key_text(k) for k in path) for path, _ in paths]
    if names == [""]:
        return ["output"]
    return [f"output_{n}" if n[:1].isdigit() else n for n in names]


def _key_text(key: Any) -> str:
    for field in ("key", "name", "idx"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


# --- what to say when torch.export refuses ---------------------------------------------------

_SIZE_SOURCE = re.compile(
    r"L\['(?P<root>[^']+)'\](?:\[(?P<index>\d+)\])?(?:\['(?P<key>[^']+)'\])?\.size\(\)\[(?P<axis>\d+)\]"
)


def _explained(
    error: Exception,
    module: torch.nn.Module,
    inputs: Sequence[Input],
    keywords: bool,
    sizes: Mapping[SymbolName, int],
) -> BuilderError:
    guards: list[_Guard] = []
    with _observed_guards(guards):
        try:
            _torch_export(module, inputs, keywords, sizes)
        except Exception as again:
            error = again
    if not _is_constraint(error):
        error = _constraint_at_other_sizes(module, inputs, keywords, guards) or error
    if _is_constraint(error):
        return _constraint_error(str(error), inputs, guards)
    text = str(error)
    place = _raised_at(error) or _place_in_text(text)
    return ExportError(
        f"torch.export cannot export the model: {_shortened(error)}",
        where=place,
        fix=_advice(text, module, inputs, keywords),
    )


def _is_constraint(error: Exception) -> bool:
    return "Constraints violated" in str(error) or "Suggested fixes" in str(error)


def _constraint_at_other_sizes(
    module: torch.nn.Module, inputs: Sequence[Input], keywords: bool, guards: list[_Guard]
) -> Exception | None:
    """What torch says the model requires, found by tracing at sizes that meet the usual requirements.

    A model that needs two dimensions to be equal, or one to be divisible, fails without a word of it
    at sizes that are not.
    """
    for sizes in (_common_sizes(inputs), _divisible_sizes(inputs)):
        guards.clear()
        with _observed_guards(guards):
            try:
                _torch_export(module, inputs, keywords, sizes)
            except Exception as error:
                if _is_constraint(error):
                    return error
    return None


def _common_sizes(inputs: Sequence[Input]) -> dict[SymbolName, int]:
    """One size for every dynamic dimension, where a common one exists; else opt."""
    low = max((max(d.min, 2) for _, _, d in _dynamic(inputs)), default=2)
    return {_dim_name(i, axis, d): low if low in d else d.opt for i, axis, d in _dynamic(inputs)}


def _divisible_sizes(inputs: Sequence[Input]) -> dict[SymbolName, int]:
    """For each dynamic dimension the size that the highest power of two divides."""
    return {
        _dim_name(i, axis, d): max(range(d.min, (d.max or d.opt) + 1, d.multiple), key=lambda size: size & -size)
        for i, axis, d in _dynamic(inputs)
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


def code_place(error: BaseException) -> str | None:
    """`file:line, in function: code` of the innermost frame outside torch and this package."""
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith((_TORCH, _PACKAGE)) and "<frozen" not in f.filename
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}: {frames[-1].line}" if frames else None


def _shortened(error: BaseException) -> str:
    text = str(error).split("\n\n")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("def forward", "# File", "For more", "Caused by"))]
    text = " ".join(lines) or type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."


def _advice(text: str, module: torch.nn.Module, inputs: Sequence[Input], keywords: bool) -> str:
    if "data-dependent" in text:
        return (
            "the model branches on a value that is known only at run time; use torch.where, torch.cond or torch._check"
        )
    failure = _eager_failure(module, inputs, keywords, "opt")
    if failure is not None:
        said = f"{type(failure).__name__}: {_shortened(failure)}"
        return f"the model fails in eager PyTorch too, with the same inputs: {said}"
    return "change the named line so that torch.export can trace it; --debug shows torch's full message"


def _eager_failure(module: torch.nn.Module, inputs: Sequence[Input], keywords: bool, point: str) -> Exception | None:
    """What a plain forward pass at "min" or "opt" raises, so that a model that never worked is told apart."""
    sizes = {_dim_name(i, axis, d): getattr(d, point) for i, axis, d in _dynamic(inputs)}
    try:
        with quiet_torch(), torch.no_grad():
            _call(module, inputs, keywords, _examples(inputs, sizes))
    except Exception as error:
        return error
    return None


def _check_runs(module: torch.nn.Module, inputs: Sequence[Input], keywords: bool) -> None:
    """Tracing does not notice every wrong dtype; one pass at the smallest sizes does."""
    failure = _eager_failure(module, inputs, keywords, "min")
    if failure is not None:
        raise ExportError(
            f"the model does not run with these inputs: {type(failure).__name__}: {_shortened(failure)}",
            where=code_place(failure) or type(module).__name__,
            fix="check dtypes, sizes and value ranges (in LOW..HIGH): " + "  ".join(f"'{i}'" for i in inputs),
        ) from failure


@dataclass(frozen=True, slots=True)
class _Requirement:
    what: str
    instead: Mapping[SymbolName, str]


def _constraint_error(text: str, inputs: Sequence[Input], guards: Sequence[_Guard]) -> ExportError:
    by_name = {_dim_name(i, axis, d): (i, axis, d) for i, axis, d in _dynamic(inputs)}
    fixes = text.partition("Suggested fixes:")[2].split("\n\n")[0].strip().splitlines()
    requirements = [r for r in (_requirement(f.strip(), by_name, fixes) for f in fixes) if r]
    if not requirements:
        return ExportError(
            f"the model cannot take the whole range: {_shortened(Exception(text))}", fix="narrow the range"
        )
    replaced: dict[SymbolName, str] = {}
    for requirement in requirements:
        replaced.update(requirement.instead)
    places = _guard_places(requirements, by_name, guards)
    return ExportError(
        "the model does not take the whole range: " + "; ".join(r.what for r in requirements),
        where=places,
        fix="this works: " + "  ".join(f"--input '{_rewritten(i, replaced)}'" for i in inputs),
    )


def _requirement(
    fix: str, by_name: Mapping[SymbolName, tuple[Input, int, Range]], fixes: Sequence[str]
) -> _Requirement | None:
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
        same = f"{subject} must equal dimension {other_axis} of input {other.name!r}"
        label = other_dim.name or value
        return _Requirement(same, {name: label, value: str(Range(other_dim.min, other_dim.opt, other_dim.max, label))})
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


def _rewritten(item: Input, replaced: Mapping[SymbolName, str]) -> str:
    dims = [replaced.get(_dim_name(item, axis, d), str(d)) for axis, d in enumerate(item.dims)]
    text = str(item.with_dims(()))
    return text.replace("[]", f"[{', '.join(dims)}]", 1)


def _guard_places(
    requirements: Sequence[_Requirement],
    by_name: Mapping[SymbolName, tuple[Input, int, Range]],
    guards: Sequence[_Guard],
) -> str | None:
    concerned = {(by_name[n][0].name, by_name[n][1]) for r in requirements for n in r.instead if n in by_name}
    for guard in guards:
        for source in guard.sources:
            match = _SIZE_SOURCE.search(source)
            if match and (match["key"] or match["root"], int(match["axis"])) in concerned:
                return guard.place
    return guards[0].place if guards else None
