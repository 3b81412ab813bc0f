"""Call a module, and trace it with torch.export at sizes that do not specialise."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from builder.collector import collector_paused
from builder.functional import functional
from builder.inputs import Input
from builder.recurrence import whole_recurrent_layers
from builder.shape_env import sizes_kept
from builder.signature import Signature
from builder.types import Range, SymbolName

__all__ = [
    "dim_name",
    "dynamic_dims",
    "examples",
    "own_name",
    "quiet_torch",
    "reshape_instead_of_view",
    "trace",
    "trace_sizes",
]


def trace_sizes(inputs: Sequence[Input]) -> dict[SymbolName, int]:
    """A size for each dynamic dimension at which torch does not specialise.

    0 and 1 are specialised by torch.export, and equal sizes of two dimensions could be taken for
    one dimension, so sizes are distinct and at least 2 wherever the ranges allow it. They are as
    divisible as opt is: a model that halves a size is traced at sizes that can be halved.
    """
    taken = {d.min for i in inputs for d in i.dims if d.is_static}
    sizes: dict[SymbolName, int] = {}
    for item, axis, dim in dynamic_dims(inputs):
        name = dim_name(item, axis, dim)
        if name in sizes:
            continue
        assert dim.max is not None
        low = max(dim.min, 2 * dim.multiple) if dim.max >= 2 * dim.multiple else dim.min
        candidates = range(low, min(dim.max, low + 4096 * dim.multiple) + 1, dim.multiple)
        power = dim.opt & -dim.opt
        around = sorted(candidates, key=lambda size: (size % power != 0, abs(size - dim.opt)))
        sizes[name] = next((s for s in around if s not in taken), around[0])
        taken.add(sizes[name])
    return sizes


def dynamic_dims(inputs: Sequence[Input]) -> Iterator[tuple[Input, int, Range]]:
    """Every dimension with a size of its own that is not static, with its input and axis."""
    for item in inputs:
        for axis, dim in enumerate(item.dims):
            if not dim.is_static and dim.derived is None:
                yield item, axis, dim


def dim_name(item: Input, axis: int, dim: Range) -> SymbolName:
    """The dimension's name for torch, which demands one: its own, else one made of input and axis."""
    return dim.name or f"{(item.name or '').replace('.', '_')}_{axis}"


def examples(inputs: Sequence[Input], sizes: Mapping[SymbolName, int]) -> list[torch.Tensor]:
    """A tensor for each input, of the given sizes by `dim_name`, filled with its lowest valid value."""
    # Distinct tensors, since torch.export takes one tensor passed twice for one input.
    return [
        torch.full(
            [_size(i, axis, d, sizes) for axis, d in enumerate(i.dims)],
            i.integer.opt if i.integer else i.value_range[0] if i.value_range else 0,
            dtype=getattr(torch, i.dtype),
        )
        for i in inputs
    ]


def _size(item: Input, axis: int, dim: Range, sizes: Mapping[SymbolName, int]) -> int:
    if dim.is_static:
        return dim.min
    if dim.derived is not None:
        return dim.derived.at(sizes[dim.derived.base])
    return sizes[dim_name(item, axis, dim)]


def _dynamic_shapes(inputs: Sequence[Input]) -> list[dict[int, Any]]:
    dims: dict[SymbolName, Any] = {}
    for item, axis, dim in dynamic_dims(inputs):
        name = dim_name(item, axis, dim)
        if name in dims:
            continue
        assert dim.max is not None
        if dim.multiple > 1:
            base = Dim(f"_{name}", min=dim.min // dim.multiple, max=dim.max // dim.multiple)
            dims[name] = dim.multiple * base
        else:
            dims[name] = Dim(name, min=dim.min, max=dim.max)
    for dim in (d for i in inputs for d in i.dims if d.derived is not None and not d.is_static):
        assert dim.derived is not None
        scaled = dims[dim.derived.base] if dim.derived.factor == 1 else dim.derived.factor * dims[dim.derived.base]
        dims[dim.name or ""] = scaled + dim.derived.offset if dim.derived.offset else scaled
    return [{axis: dims[dim_name(i, axis, d)] for axis, d in enumerate(i.dims) if not d.is_static} for i in inputs]


_WRAPPED = "_wrapped_by_triton_repo"


def own_name(name: str) -> str:
    """A module's, weight's or buffer's name in the user's model, for one in a traced program."""
    return "" if name == _WRAPPED else name.removeprefix(f"{_WRAPPED}.")


class _Rebuilt(torch.nn.Module):
    """A module as one of tensors alone: puts its arguments together while it is traced."""

    def __init__(self, module: torch.nn.Module, signature: Signature) -> None:
        super().__init__()
        self.add_module(_WRAPPED, module)
        self._signature = signature

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self._signature.call(getattr(self, _WRAPPED), tensors)


def trace(module: torch.nn.Module, signature: Signature, sizes: Mapping[SymbolName, int]) -> ExportedProgram:
    """Export a module, traced at the given sizes, and make it functional.

    Raises:
        Exception: whatever torch.export raises; `builder.explain` puts it into words.
    """
    inputs = signature.inputs
    tensors = examples(inputs, sizes)
    shapes = _dynamic_shapes(inputs)
    with quiet_torch(), torch.no_grad(), whole_recurrent_layers(), collector_paused():
        if signature.is_flat and signature.keywords:
            names = [i.name or "" for i in inputs]
            kwargs = dict(zip(names, tensors, strict=True))
            dynamic: Any = dict(zip(names, shapes, strict=True))
            program = torch.export.export(module, (), kwargs, dynamic_shapes=dynamic, strict=False)
        else:
            # `_Rebuilt.forward` has one parameter, for all of them.
            program = torch.export.export(
                _Rebuilt(module, signature), tuple(tensors), dynamic_shapes=(tuple(shapes),), strict=False
            )
        with sizes_kept(program):
            program = functional(program)
        reshape_instead_of_view(program)
        return program


def reshape_instead_of_view(program: ExportedProgram) -> None:
    """Let no operator ask for strides. Works in place.

    A view is right for the strides that its input had when the model was traced. A boundary tensor is contiguous,
    and an attention kernel of another device or another decomposition may give another order; a
    functional program has no use for a view that a reshape does not have.
    """
    aten = torch.ops.aten
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for view in (aten.view.default, aten._unsafe_view.default):
            for node in module.graph.find_nodes(op="call_function", target=view):
                node.target = aten.reshape.default
        module.recompile()


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
