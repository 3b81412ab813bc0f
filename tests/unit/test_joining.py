"""Joining requests to batches: rows, padding, what is left out; and whether a model may be served so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from builder.errors import RequestError, SpecError, VerificationError
from builder.export import EagerModel
from builder.inputs import Input, parse_input
from builder.runtime.joining import Joiner
from builder.runtime.manifest import Manifest
from builder.runtime.optional import with_defaults
from builder.runtime.sequences import SequenceStates
from builder.settings import Settings
from builder.signature import match_inputs
from builder.types import Derived, OutputSpec, Range, TensorSpec
from builder.verify.rows import check_padding, dependent_rows
from tests.unit.assemblies import BATCH, TOKENS, tensor


def manifest(inputs: list[TensorSpec], outputs: list[TensorSpec], **padding: float) -> Manifest:
    return Manifest(
        "net", tuple(inputs), tuple(OutputSpec(t, t.name) for t in outputs), (), max_batch_size=32, padding=padding
    )


def test_rows_are_joined_and_taken_apart_in_order() -> None:
    joiner = Joiner(manifest([tensor("x", "float32", BATCH, 2)], [tensor("y", "float32", BATCH)]))
    requests = [{"x": np.full((rows, 2), rows, np.float32)} for rows in (1, 3, 2)]
    joined = joiner.join(requests)
    assert joined["x"].shape == (6, 2)
    answers = joiner.split(requests, {"y": joined["x"].sum(1)})
    assert [a["y"].tolist() for a in answers] == [[2.0], [6.0] * 3, [4.0] * 2]


def test_only_equal_sizes_are_joined() -> None:
    joiner = Joiner(manifest([tensor("x", "float32", BATCH, TOKENS)], [tensor("y", "float32", BATCH)]))
    requests = [{"x": np.zeros((1, size), np.float32)} for size in (8, 9, 8, 10)]
    assert joiner.groups(requests) == [[0, 2], [1], [3]]


def test_padding_fills_up_and_is_cut_off_again() -> None:
    longer = Range(17, 129, 513, "2*T+1", derived=Derived("T", 2, 1))
    inputs = [tensor("ids", "int64", BATCH, TOKENS), tensor("mask", "int64", BATCH, TOKENS)]
    outputs = [tensor("y", "int64", BATCH, TOKENS), tensor("z", "int64", BATCH, longer)]
    joiner = Joiner(manifest(inputs, outputs, ids=7, mask=0))
    requests = [{n: np.ones((rows, size), np.int64) for n in ("ids", "mask")} for rows, size in ((1, 8), (2, 10))]
    assert joiner.groups(requests) == [[0, 1]]
    joined = joiner.join(requests)
    assert joined["ids"].tolist() == [[1] * 8 + [7] * 2, [1] * 10, [1] * 10]
    assert joined["mask"][0].tolist() == [1] * 8 + [0] * 2
    answers = joiner.split(requests, {"y": joined["ids"], "z": np.zeros((3, 21), np.int64)})
    assert [a["y"].shape for a in answers] == [(1, 8), (2, 10)]
    assert [a["z"].shape for a in answers] == [(1, 17), (2, 21)]


def test_tensors_of_torch_are_joined_where_they_are() -> None:
    joiner = Joiner(manifest([tensor("x", "bfloat16", BATCH, TOKENS)], [tensor("y", "bfloat16", BATCH)], x=0))
    joined = joiner.join([{"x": torch.ones(1, 8, dtype=torch.bfloat16)}, {"x": torch.ones(2, 9, dtype=torch.bfloat16)}])
    assert isinstance(joined["x"], torch.Tensor)
    assert joined["x"].dtype is torch.bfloat16
    assert joined["x"].sum(1).tolist() == [8, 9, 9]


def test_what_is_left_out_has_the_sizes_of_the_rest() -> None:
    wider = Range(9, 65, 257, "T+1", derived=Derived("T", 1, 1))
    inputs = [tensor("x", "float32", BATCH, TOKENS), tensor("mask", "int32", BATCH, wider), tensor("k", "bool", 3)]
    filled = with_defaults(inputs, {"x": np.zeros((2, 8), np.float32)}, {"mask": 1, "k": 0, "x": 5})
    assert filled["mask"].shape == (2, 9) and filled["mask"].dtype == np.int32 and filled["mask"].all()
    assert filled["k"].tolist() == [False] * 3
    assert not filled["x"].any(), "what is there stays"
    half = with_defaults([tensor("x", "float32", 2), tensor("b", "bfloat16", 2)], {"x": np.zeros(2)}, {"b": 0.5})
    assert half["b"].tolist() == [0.5, 0.5]
    with pytest.raises(RequestError, match="no other input says how large its B"):
        with_defaults([tensor("x", "float32", 2), tensor("m", "float32", BATCH)], {"x": np.zeros(2)}, {"m": 1})


def test_values_that_lie_in_different_places_are_joined() -> None:
    for padding in ({}, {"x": 0}):
        joiner = Joiner(manifest([tensor("x", "float32", BATCH, TOKENS)], [tensor("y", "float32", BATCH)], **padding))
        for order in (1, -1):
            values = [np.ones((1, 8), np.float32), torch.ones(2, 8)][::order]
            joined = joiner.join([{"x": v} for v in values])
            assert tuple(joined["x"].shape) == (3, 8) and float(joined["x"].sum()) == 24


def test_a_sequence_without_its_state_is_an_error() -> None:
    states = SequenceStates({"state": "new"}, {"sequence_batching": {"oldest": {"max_candidate_sequences": 3}}})
    with pytest.raises(RequestError, match="the state of sequence 5 is not here"):
        states.before(5, False)
    assert states.before(5, True) == {}
    states.after(5, False, {"new": np.ones(2)})
    assert states.before(5, False)["state"].tolist() == [1, 1]
    states.after(5, True, {"new": np.ones(2)})
    with pytest.raises(RequestError, match="begin it again"):
        states.before(5, False)


def test_states_of_sequences_that_nobody_ends_do_not_pile_up() -> None:
    states = SequenceStates({"state": "new"}, {})
    for sequence in range(10_000):
        states.before(sequence, True)
        states.after(sequence, False, {"new": np.zeros(1)})
    assert len(states._kept) < 10_000
    assert states.before(9_999, False)


class _Net(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "softmax":
            return torch.softmax(x, 0)
        if self.kind == "largest":
            return x / x.abs().max()
        if self.kind == "last":
            return torch.cat([x[:-1], x[-1:] + 1])
        if self.kind == "rolled":
            return x.roll(1, 0)
        if self.kind == "mean":
            return x - x.mean(1, keepdim=True)
        if self.kind == "cumulative":
            return x.cumsum(1)
        if self.kind == "nonzero":
            return (x * (x > 0)).sum(1, keepdim=True)
        return x * 2


def eager(kind: str) -> EagerModel:
    module = _Net(kind)
    given: list[Input] = [parse_input("x=float32[B=1:4:8, T=2:5:9]")]  # type: ignore[list-item]
    signature = match_inputs(module, given)
    return EagerModel(module, signature, ("y",), (signature.inputs,))


@pytest.mark.parametrize("kind", ["softmax", "largest", "last", "rolled"])
def test_rows_that_know_of_each_other_are_found(kind: str) -> None:
    assert "is another in a batch of 3 than alone" in dependent_rows(eager(kind), "B", Settings())


@pytest.mark.parametrize("kind", ["twice", "mean", "cumulative"])
def test_rows_that_do_not(kind: str) -> None:
    assert dependent_rows(eager(kind), "B", Settings()) == ""


def padded(kind: str, *, out: Range | None = None, **padding: float) -> None:
    model = eager(kind)
    x = TensorSpec("x", "float32", model.inputs[0].dims)
    y = TensorSpec("y", "float32", (x.dims[0], out or x.dims[1]))
    check_padding(model, [x], [OutputSpec(y, "y")], padding or {"x": 0}, Settings())


def test_padding_that_changes_nothing() -> None:
    padded("cumulative")
    padded("nonzero", out=Range(1, 1, 1))


def test_padding_that_changes_answers_is_refused() -> None:
    with pytest.raises(VerificationError, match="filling up a request changes its output 'y'"):
        padded("mean")
    with pytest.raises(VerificationError, match="filling up a request"):
        padded("nonzero", out=Range(1, 1, 1), x=3)


def test_padding_needs_to_know_what_to_cut_off() -> None:
    with pytest.raises(SpecError, match="is computed"):
        padded("twice", out=Range(2, 5, 9))


def test_all_inputs_of_a_size_are_padded_or_none() -> None:
    model = eager("twice")
    dims = model.inputs[0].dims
    inputs = [TensorSpec("x", "float32", dims), TensorSpec("mask", "float32", dims)]
    with pytest.raises(SpecError, match="'mask' has the size T too, and no value"):
        check_padding(model, inputs, [], {"x": 0}, Settings())
    with pytest.raises(SpecError, match="'z' has no size that varies"):
        check_padding(model, [*inputs, tensor("z", "float32", BATCH, 3)], [], {"x": 0, "mask": 0, "z": 0}, Settings())
