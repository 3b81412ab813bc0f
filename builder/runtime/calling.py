"""How a compiled module is called as the module that it was made of: arguments to tensors, tensors to what `forward` returns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from builder.errors import RequestError

__all__ = ["CallForm", "OutputForm"]

_MISSING = object()


@dataclass(frozen=True, slots=True)
class CallForm:
    """Where the tensors of a call lie in its arguments.

    Args:
        parameters: of `forward`, in order; empty for one that takes `*args`.
        inputs: the way to each tensor ("x", "batch.input_ids", "features.0"), in the model's order.
        constants: what an argument, or a part of one, must be wherever it is given.
        integers: inputs that are Python ints in the call.
    """

    parameters: tuple[str, ...]
    inputs: tuple[str, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    integers: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the positional arguments of a call are its tensors."""
        return not self.integers and (not self.parameters or self.parameters[: len(self.inputs)] == self.inputs)

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call, in the model's order.

        Raises:
            RequestError: when an argument is missing, unknown, of the wrong kind, or not what the model was built for.
        """
        if not self.parameters:
            if kwargs or len(args) != len(self.inputs):
                raise RequestError(
                    f"{len(args)} positional and {len(kwargs)} keyword arguments are given",
                    fix=f"the model takes {len(self.inputs)}, by position",
                )
            bound = dict(zip(self.inputs, args, strict=True))
        else:
            bound = self._bound(args, kwargs)
        for name, value in self.constants.items():
            found = _at(bound, name)
            if found is not _MISSING and (type(found) is not type(value) or found != value):
                raise RequestError(
                    f"{name!r} is {found!r}, and the model was built for {value!r}", fix="compile it for this value"
                )
        return [self._tensor(bound, name) for name in self.inputs]

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self.parameters):
            raise RequestError(f"{len(args)} arguments are given", fix=f"the model takes {', '.join(self.parameters)}")
        bound = dict(zip(self.parameters, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.parameters or name in bound:
                raise RequestError(
                    f"the argument {name!r} is {'given twice' if name in bound else 'unknown'}",
                    fix=f"the model takes {', '.join(self.parameters)}",
                )
            bound[name] = value
        used = {name.partition(".")[0] for name in (*self.inputs, *self.constants)}
        for name, value in bound.items():
            if name not in used and value is not None:
                raise RequestError(
                    f"the argument {name!r} was not there when the model was built",
                    fix=f"leave it out, or build with an Input for it; now there are {', '.join(self.inputs)}",
                )
        return bound

    def _tensor(self, bound: Mapping[str, Any], name: str) -> torch.Tensor:
        value = _at(bound, name)
        if value is _MISSING:
            raise RequestError(f"{name!r} is missing", fix=f"the model takes {', '.join(self.inputs)}")
        if name in self.integers and isinstance(value, int) and not isinstance(value, bool):
            return torch.tensor(value)
        if not isinstance(value, torch.Tensor):
            wanted = "an int" if name in self.integers else "a tensor"
            raise RequestError(f"{name!r} is a {type(value).__name__}, the model takes {wanted}")
        return value


def _at(bound: Mapping[str, Any], name: str) -> Any:
    """What lies at the end of a way; `_MISSING` where it leads nowhere."""
    first, *way = name.split(".")
    value = bound.get(first, _MISSING)
    for key in way:
        if isinstance(value, Mapping):
            value = value.get(key, _MISSING)
        elif isinstance(value, list | tuple) and key.isdigit():
            value = value[int(key)] if int(key) < len(value) else _MISSING
        else:
            value = getattr(value, key, _MISSING)
    return value


@dataclass(frozen=True, slots=True)
class OutputForm:
    """What `forward` returns.

    Args:
        spec: of the structure, whose leaves are tensors and None.
        tensors: for each leaf, whether it is a tensor.
    """

    spec: pytree.TreeSpec
    tensors: tuple[bool, ...]

    def restore(self, outputs: Sequence[torch.Tensor]) -> Any:
        """The structure, for output tensors in order."""
        if self.spec.is_leaf():
            return outputs[0]
        given = iter(outputs)
        return pytree.tree_unflatten([next(given) if is_tensor else None for is_tensor in self.tensors], self.spec)

    def to_json(self) -> Any:
        """As JSON values; None for a structure that torch has no text for."""
        try:
            return {"spec": json.loads(pytree.treespec_dumps(self.spec)), "tensors": list(self.tensors)}
        except (NotImplementedError, TypeError, ValueError):
            return None

    @classmethod
    def from_json(cls, data: Any) -> OutputForm | None:
        """From what `to_json` gave; None where this process does not know the structure's types."""
        if data is None:
            return None
        try:
            spec = pytree.treespec_loads(json.dumps(data["spec"]))
        except (NotImplementedError, KeyError, TypeError, ValueError):
            return None
        return cls(spec, tuple(data["tensors"]))
