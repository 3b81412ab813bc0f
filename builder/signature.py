"""How `forward` is called with a flat list of named tensors: arguments may hold them in lists, tuples, dicts and dataclasses.

A tensor inside an argument is an input of its own, named by its way there: `batch.input_ids` for the
key or field `input_ids` of the argument `batch`, `features.0` for the first element of a list.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from builder.errors import SpecError, did_you_mean
from builder.inputs import Constant, Input, resolve_names

__all__ = ["Signature", "listed", "match_inputs"]

Given: TypeAlias = "Input | Constant"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The tensor at a place in the list of inputs."""

    index: int


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A value that the user has fixed."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Container:
    """Something that holds others; `make` takes them as keyword arguments, or as a list where `keys` is None."""

    make: Callable[..., Any]
    keys: tuple[str, ...] | None
    parts: tuple[_Tree, ...]


_Tree: TypeAlias = "_Leaf | _Fixed | _Container"


@dataclass(frozen=True, slots=True)
class Signature:
    """What `forward` takes.

    Args:
        inputs: its tensors, in order; each has a name and known ranges.
        arguments: what is made of them, by parameter.
        keywords: whether arguments are passed by keyword (else by position).
    """

    inputs: tuple[Input, ...]
    arguments: tuple[tuple[str, _Tree], ...]
    keywords: bool

    @property
    def is_flat(self) -> bool:
        """Whether every argument is one tensor."""
        return all(isinstance(tree, _Leaf) for _, tree in self.arguments) and not any(i.integer for i in self.inputs)

    def call(self, forward: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Any:
        """What `forward` returns for tensors in the order of the inputs."""
        values = [self._value(i, t) for i, t in zip(self.inputs, tensors, strict=True)]
        arguments = {name: _built(tree, values) for name, tree in self.arguments}
        return forward(**arguments) if self.keywords else forward(*arguments.values())

    def _value(self, item: Input, tensor: torch.Tensor) -> Any:
        if item.integer is None:
            return tensor
        number: Any = tensor.item()
        if not isinstance(number, int):
            # While it is traced, it stands for every number of the range.
            check: Callable[[Any], None] = torch._check
            check(number >= item.integer.min)
            check(number <= item.integer.max)
        return number

    def constants(self) -> Iterator[tuple[str, Any]]:
        """What the user has fixed, with the way to each ("causal", "options.scale")."""
        for name, tree in self.arguments:
            yield from _fixed(tree, name)

    def with_inputs(self, inputs: Sequence[Input]) -> Signature:
        """The same with other ranges."""
        return dataclasses.replace(self, inputs=tuple(inputs))


def _fixed(tree: _Tree, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, _Fixed):
        yield path, tree.value
    elif isinstance(tree, _Container):
        for index, part in enumerate(tree.parts):
            yield from _fixed(part, f"{path}.{tree.keys[index] if tree.keys else index}")


def _built(tree: _Tree, values: Sequence[Any]) -> Any:
    if isinstance(tree, _Leaf):
        return values[tree.index]
    if isinstance(tree, _Fixed):
        return tree.value
    parts = [_built(p, values) for p in tree.parts]
    return tree.make(parts) if tree.keys is None else tree.make(**dict(zip(tree.keys, parts, strict=True)))


def match_inputs(module: torch.nn.Module, given: Sequence[Given]) -> Signature:
    """Order inputs as `forward` takes them, name those that have no name, and put together what belongs together.

    Raises:
        SpecError: for a missing, extra, doubled or misspelt input, or one that has no place in its argument.
    """
    parameters = list(inspect.signature(module.forward).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        named = [i if i.name else i.with_name(f"input_{n}") for n, i in enumerate(given)]
        return _signature([(i.name or "", "", [([], i)]) for i in named], {}, keywords=False)
    where = f"{type(module).__name__}.forward({', '.join(p.name for p in parameters)})"
    wanted = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    groups = _by_parameter(wanted, given, where)
    missing = [p.name for p in wanted if p.default is p.empty and p.name not in groups]
    if missing:
        names = [i.name for items in groups.values() for _, i in items]
        raise SpecError(
            f"no input is given for {listed(missing)}; given: {listed(names)}",
            where=where,
            fix="\n".join(f"add --input '{name}=DTYPE[SIZES]'" for name in missing),
        )
    keywords = not any(p.kind is p.POSITIONAL_ONLY for p in wanted)
    ordered = [(p.name, where, groups[p.name]) for p in wanted if p.name in groups]
    return _signature(ordered, _annotations(module), keywords=keywords)


_Items: TypeAlias = "list[tuple[list[str], Given]]"


def _by_parameter(parameters: Sequence[inspect.Parameter], given: Sequence[Given], where: str) -> dict[str, _Items]:
    names = [p.name for p in parameters]
    groups: dict[str, _Items] = {}
    for position, item in enumerate(given):
        if item.name is None:
            if position >= len(names):
                raise SpecError(
                    f"{len(given)} inputs are given, but `forward` takes {len(names)}",
                    where=where,
                    fix="give one input per tensor parameter",
                )
            item = item.with_name(names[position])
        name, *way = (item.name or "").split(".")
        if name not in names:
            raise SpecError(
                f"`forward` has no parameter {name!r}",
                where=where,
                fix=f"{did_you_mean(name, names)}the parameters are {listed(names)}",
            )
        items = groups.setdefault(name, [])
        if any(known == way for known, _ in items):
            raise SpecError(f"the input {item.name!r} is given twice", where=where, fix="give it once")
        items.append((way, item))
    return groups


def _signature(
    groups: Sequence[tuple[str, str, _Items]], annotations: Mapping[str, Any], *, keywords: bool
) -> Signature:
    inputs: list[Input] = []
    arguments = [(name, _tree(name, items, annotations.get(name), inputs, where)) for name, where, items in groups]
    return Signature(resolve_names(inputs), tuple(arguments), keywords)


def _tree(path: str, items: _Items, annotation: Any, inputs: list[Input], where: str) -> _Tree:
    """What is made of the items of one argument, or of a part of it; adds tensors to `inputs`."""
    whole = [item for way, item in items if not way]
    if whole and len(items) > 1:
        raise SpecError(
            f"{path!r} is given as a whole and in parts", where=where, fix="give it once, or give only its parts"
        )
    if whole:
        (item,) = whole
        if isinstance(item, Constant):
            return _Fixed(item.value)
        inputs.append(item)
        return _Leaf(len(inputs) - 1)
    parts: dict[str, _Items] = {}
    for way, item in items:
        parts.setdefault(way[0], []).append((way[1:], item))
    kind = _unwrapped(annotation)
    make, order, inner = _container(path, list(parts), kind, where)
    trees = tuple(_tree(f"{path}.{key}", parts[key], inner(key), inputs, where) for key in order)
    listed = make in (list, tuple)
    return _Container(make, None if listed else tuple(order), trees)


def _container(
    path: str, keys: list[str], kind: Any, where: str
) -> tuple[Callable[..., Any], list[str], Callable[[str], Any]]:
    """How a container is made, the order of its parts, and the annotation of each."""
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        known, required = _fields(kind)
        for key in keys:
            if key not in known:
                raise SpecError(
                    f"{path!r} is a {kind.__name__}, which has no field {key!r}",
                    where=where,
                    fix=f"{did_you_mean(f'{path}.{key}', [f'{path}.{k}' for k in known])}its fields are {listed(known)}",
                )
        missing = [f for f in required if f not in keys]
        if missing:
            raise SpecError(
                f"{path!r} is a {kind.__name__}, and nothing is given for {listed(missing)}",
                where=where,
                fix="\n".join(f"add --input '{path}.{name}=DTYPE[SIZES]', or '{path}.{name}=None'" for name in missing),
            )
        hints = _hints(kind)
        return kind, [f for f in known if f in keys], hints.get
    origin = typing.get_origin(kind) or kind
    inside = typing.get_args(kind)
    if all(key.isdigit() for key in keys):
        order = sorted(keys, key=int)
        if [int(key) for key in order] != list(range(len(order))):
            raise SpecError(
                f"{path!r} has the elements {', '.join(order)}", where=where, fix="number them 0, 1, 2 without a gap"
            )
        if origin is tuple and inside and inside[-1] is not Ellipsis:
            return tuple, order, lambda key: inside[int(key)] if int(key) < len(inside) else None
        return (tuple if origin is tuple else list), order, lambda key: inside[0] if inside else None
    return dict, keys, lambda key: inside[1] if len(inside) == 2 else None


def _fields(kind: Any) -> tuple[list[str], list[str]]:
    """Names of all fields of a dataclass or named tuple, and of those without a default."""
    if dataclasses.is_dataclass(kind):
        fields = [f for f in dataclasses.fields(kind) if f.init]
        empty = dataclasses.MISSING
        return [f.name for f in fields], [f.name for f in fields if f.default is empty and f.default_factory is empty]
    return list(kind._fields), [f for f in kind._fields if f not in kind._field_defaults]


def _annotations(module: torch.nn.Module) -> dict[str, Any]:
    return _hints(module.forward)


def _hints(what: Any) -> dict[str, Any]:
    """Annotations; none where they name what cannot be found."""
    with contextlib.suppress(Exception):
        return typing.get_type_hints(what)
    return {}


def _unwrapped(annotation: Any) -> Any:
    """`X` for `X | None`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inside = [a for a in typing.get_args(annotation) if a is not type(None)]
        return inside[0] if len(inside) == 1 else None
    return annotation


def listed(names: Iterable[object]) -> str:
    """Names as they stand in a message."""
    text = ", ".join(map(repr, names))
    return text or "none"
