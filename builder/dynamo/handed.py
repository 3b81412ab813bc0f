"""What Dynamo hands over: a graph whose arguments are weights, tensors of the call, and sizes."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import external_utils
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX
from torch._dynamo.symbolic_convert import InstructionTranslator

__all__ = ["COUNT", "Argument", "Frame", "current_frame", "frame_of", "hand_over", "leaves"]

# Kernels of batch normalisation write their statistics, and only this buffer's version counter tells of it.
COUNT = "num_batches_tracked"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the graph.

    Args:
        kind: "weight", "input", "size" (of an input), "number" (any other int), or "other".
        name: the way to it, as the user would write it ("x", "batch.input_ids", "encoder.weight").
        value: the real tensor or number.
        fake: what the graph was traced with.
        of, axis: for a size, the position of the argument that it is a size of, and the axis.
        source: Dynamo's name of it.
        owner: for a number that is a size of a tensor that the graph does not take, that tensor.
        buffers: for a statistic of normalisation, the buffers of its module by name.
    """

    kind: str
    name: str
    value: Any
    fake: Any
    of: int = -1
    axis: int = -1
    source: str = ""
    owner: torch.Tensor | None = None
    buffers: Mapping[str, torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """The function that Dynamo compiles.

    Args:
        code: of the function, or of the rest of one behind a graph break.
        resumed: whether it is such a rest.
        local: its variables by name.
        parameters: names of its arguments, in order.
        wrapped: where Dynamo compiles a function of its own around a module's forward (`fn(*args, **kwargs)`), that module.
    """

    code: types.CodeType
    resumed: bool
    local: Mapping[str, Any]
    parameters: tuple[str, ...]
    wrapped: torch.nn.Module | None = None

    @property
    def label(self) -> str:
        """For messages: the function and its parameters."""
        if self.wrapped is not None:
            return f"{type(self.wrapped).__name__}.forward({', '.join(_forward_parameters(self.wrapped))})"
        owner = self.local.get("self")
        name = f"{type(owner).__name__}.{self.code.co_name}" if owner is not None else self.code.co_name
        return f"{name}({', '.join(p for p in self.parameters if p != 'self')})"

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """Modules among its variables."""
        found = [v for v in map(_content, self.local.values()) if isinstance(v, torch.nn.Module)]
        return tuple(found) if self.wrapped is None else (self.wrapped, *found)

    def named(self, way: str) -> str:
        """The way to a tensor as the user would write it."""
        if self.wrapped is None:
            return way
        first, _, rest = way.partition(".")
        key, _, inside = rest.partition(".")
        names = _forward_parameters(self.wrapped)
        if first == "args" and key.isdigit() and int(key) < len(names):
            key = names[int(key)]
        elif first != "kwargs":
            return way
        return f"{key}.{inside}" if inside else key


def _forward_parameters(module: torch.nn.Module) -> list[str]:
    return [p.name for p in inspect.signature(module.forward).parameters.values() if p.kind is not p.VAR_POSITIONAL]


def current_frame() -> Frame:
    """The one that Dynamo is at."""
    translator: Any = InstructionTranslator.current_tx()
    return frame_of(translator.f_code, translator.f_locals)


def frame_of(code: types.CodeType, variables: Mapping[str, Any]) -> Frame:
    """The one that runs a function's code with these variables."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    resumed = code.co_name.startswith(TORCH_DYNAMO_RESUME_IN_PREFIX)
    local = dict(variables)
    inner = _content(local.get("fn")) if code.co_filename == external_utils.__file__ else None
    inner = getattr(inner, "__self__", inner)
    wrapped = inner if isinstance(inner, torch.nn.Module) else None
    return Frame(code, resumed, local, code.co_varnames[:count], wrapped)


def hand_over(graph: torch.fx.GraphModule, examples: list[Any], frame: Frame) -> list[Argument]:
    """The arguments of a graph that Dynamo gives to a backend, in order."""
    nodes = graph.graph.find_nodes(op="placeholder")
    sources = [node.meta["grapharg"].source if node.meta.get("grapharg") else None for node in nodes]
    position = {source.name: index for index, source in enumerate(sources) if source is not None}
    found = []
    for node, source, example in zip(nodes, sources, examples, strict=True):
        fake = node.meta.get("example_value", example)
        if source is None:
            found.append(Argument("other", node.name, example, fake))
        elif isinstance(example, torch.Tensor):
            value = node.meta["grapharg"].example
            kind = "weight" if _is_weight(source, value, frame) else "input"
            name = _way(source.name)
            if kind == "input":
                name = frame.named(name)
            buffers = _counted_buffers(source.name) if kind == "weight" else None
            found.append(Argument(kind, name, value, fake, source=source.name, buffers=buffers))
        elif isinstance(example, int | torch.SymInt):
            found.append(_number(source, node, fake, position, frame))
        else:
            found.append(Argument("other", _way(source.name), example, fake))
    return found


def _number(source: Any, node: torch.fx.Node, fake: Any, position: Mapping[str, int], frame: Frame) -> Argument:
    value = node.meta["grapharg"].example
    hint = int(fake.node.hint) if isinstance(fake, torch.SymInt) else int(fake)
    axis = getattr(source, "idx", None)
    base = getattr(source, "base", None)
    if axis is None or base is None or "SIZE" not in str(getattr(source, "prop", "")):
        return Argument("number", _way(source.name), value if isinstance(value, int) else hint, fake)
    if base.name in position:
        return Argument("size", _way(source.name), hint, fake, position[base.name], axis)
    return Argument("number", _way(source.name), hint, fake, axis=axis, owner=_evaluated(base, frame))


def _evaluated(source: Any, frame: Frame) -> torch.Tensor | None:
    """The tensor at a source, where it is found among the variables."""
    way = _way(source.name).split(".")
    value = _content(frame.local.get(way[0]))
    for key in way[1:]:
        try:
            value = value[int(key)] if isinstance(value, list | tuple) else getattr(value, key, None) or value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value if isinstance(value, torch.Tensor) else None


def _counted_buffers(source: str) -> Mapping[str, torch.Tensor] | None:
    """The buffers that one is kept among, where a count of batches is among them too."""
    owner, found, _ = source.rpartition("._buffers[")
    if not found:
        return None
    output: Any = InstructionTranslator.current_tx().output
    names = {"L": {n: _content(v) for n, v in output.local_scope.items()}, "G": output.global_scope}
    try:
        # Dynamo writes where a value is from as an expression over these two, for its guards.
        buffers = eval(f"{owner}._buffers", names)
    except Exception:
        return None
    return buffers if isinstance(buffers.get(COUNT), torch.Tensor) else None


def _is_weight(source: Any, value: Any, frame: Frame) -> bool:
    """Weights belong to a module or to the program, not to the call."""
    if isinstance(value, torch.nn.Parameter):
        return True
    root = source
    while hasattr(root, "base"):
        root = root.base
    name = getattr(root, "local_name", None)
    if name is None:
        return True
    return isinstance(_content(frame.local.get(name)), torch.nn.Module)


def _content(value: Any) -> Any:
    if isinstance(value, types.CellType):
        try:
            return value.cell_contents
        except ValueError:
            return None
    return value


def _way(source: str) -> str:
    """`L['self']._modules['fc']._parameters['weight']` as "fc.weight", `L['batch']['ids']` as "batch.ids"."""
    text = re.sub(r"\._(modules|parameters|buffers)\b", "", source)
    parts = re.findall(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\d+)\]|\.([A-Za-z_]\w*)(?!\w*\()", text)
    words = [next(p for p in part if p) for part in parts if any(part)]
    if words[:1] == ["self"] and len(words) > 1:
        words = words[1:]
    return ".".join(words) or source


def leaves(frame: Frame) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among the arguments of a frame with the way to each, in the order in which they are passed."""
    for name in frame.parameters:
        value = _content(frame.local.get(name))
        if not isinstance(value, torch.nn.Module):
            for way, tensor in _inside(name, value):
                yield frame.named(way), tensor


def _inside(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _inside(f"{path}.{key}", inner)
    elif isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        for index, inner in enumerate(value):
            yield from _inside(f"{path}.{index}", inner)
    elif hasattr(value, "__dataclass_fields__"):
        for key in value.__dataclass_fields__:
            yield from _inside(f"{path}.{key}", getattr(value, key, None))
    elif hasattr(value, "_fields"):
        for key in value._fields:
            yield from _inside(f"{path}.{key}", getattr(value, key))
