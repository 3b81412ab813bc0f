"""Keep recurrent layers whole while a model is traced.

torch traces `nn.LSTM`, `nn.GRU` and `nn.RNN` step by step, which fixes the length of the sequence. As one
operator each they take any length, and compilers have a layer for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._decomp
from torch._C import DispatchKey
from torch._subclasses.fake_impls import op_implementations_dict

__all__ = ["RECURRENT", "whole_recurrent_layers"]

_aten = torch.ops.aten

RECURRENT = frozenset({_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input})


@contextlib.contextmanager
def whole_recurrent_layers() -> Iterator[None]:
    """Have torch.export and `run_decompositions` take recurrent layers for operators, as they do others.

    Both would replace them by what `torch._decomp` registers. The tables in which they look are put
    back afterwards.
    """
    with contextlib.ExitStack() as stack:
        for operator in RECURRENT:
            stack.enter_context(_whole(operator))
        yield


@contextlib.contextmanager
def _whole(operator: torch._ops.OpOverload) -> Iterator[None]:
    kernels = dict(operator.py_kernels)

    def fake(mode: Any, function: object, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return _shapes(*args, **kwargs)

    _replace_kernels(operator, {DispatchKey.CompositeImplicitAutograd: _shapes, DispatchKey.Autograd: _shapes})
    op_implementations_dict[operator] = fake
    torch._decomp.meta_table[operator] = _shapes
    try:
        yield
    finally:
        torch._decomp.meta_table.pop(operator, None)
        # `run_decompositions` removes it too.
        op_implementations_dict.pop(operator, None)
        _replace_kernels(operator, kernels)


def _replace_kernels(operator: torch._ops.OpOverload, kernels: dict[Any, Callable[..., Any]]) -> None:
    operator.py_kernels.clear()
    for key, kernel in kernels.items():
        operator.py_kernels[key] = kernel
    operator._dispatch_cache.clear()


def _shapes(
    x: torch.Tensor,
    states: torch.Tensor | Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """The output [first, second, directions * state's size], and the last states; an LSTM has two, the others one.

    Sequence and batch stay in the order in which they come.
    """
    given = [states] if isinstance(states, torch.Tensor) else states
    output = x.new_empty((x.shape[0], x.shape[1], given[0].shape[2] * (2 if bidirectional else 1)))
    return output, *map(torch.empty_like, given)
