"""Which layout a model gets, whether requests are joined, and why."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from builder.errors import RepositoryError, SpecError
from builder.releases import release
from builder.repository.batching import batch_symbol, choose_batching
from builder.repository.layout import LayoutChoice, Step, choose_layout
from builder.triton_options import RepositoryOptions, TritonOptions
from builder.types import Derived, OutputSpec, Range, TensorSpec
from tests.unit.assemblies import BATCH, TOKENS, tensor

X, H, Y = (tensor(n, "float32", BATCH, TOKENS, 16) for n in ("x", "h", "y"))


def choose(
    steps: Sequence[Step],
    *,
    layout: str = "auto",
    triton: str | None = "26.09",
    fallback: str = "auto",
    options: TritonOptions | None = None,
    inputs: Sequence[TensorSpec] = (X,),
    outputs: Sequence[OutputSpec] = (OutputSpec(Y, "y"),),
    profiles: Sequence[Sequence[TensorSpec]] = (),
    uncompilable: str = "",
    preprocessed: bool = False,
) -> LayoutChoice:
    return choose_layout(
        RepositoryOptions(layout=layout, triton=triton, fallback=fallback),  # type: ignore[arg-type]
        options or TritonOptions(),
        release(triton) if triton else None,
        steps,
        inputs,
        outputs,
        profiles,
        uncompilable,
        preprocessed=preprocessed,
    )


def one(compiler: str, x: TensorSpec = X, y: TensorSpec = Y) -> list[Step]:
    return [Step("segment_0", compiler, (x,), (y,))]


def two(first: str, second: str) -> list[Step]:
    return [Step("segment_0", first, (X,), (H,)), Step("segment_1", second, (H,), (Y,))]


@pytest.mark.parametrize(
    ("steps", "more", "layout", "reason"),
    [
        (one("onnxruntime"), {}, "plan", "nothing fell back"),
        (one("tensorrt"), {}, "plan", "Triton 26.09 runs the engine"),
        (one("onnxruntime"), {"triton": None}, "python", "runs on any release"),
        (one("tensorrt_rtx"), {}, "python", "no backend for engines of tensorrt_rtx"),
        (one("inductor"), {}, "python", "INPUT__0"),
        (one("torch"), {}, "python", "PyTorch runs all of it"),
        (two("tensorrt", "torch"), {}, "ensemble", "runs each segment itself"),
        (two("tensorrt", "torch"), {"triton": "26.02"}, "python", "segment_1 would be a Python model"),
        (two("tensorrt", "torch"), {"uncompilable": "no C++"}, "python", "segment_1 would be a Python model"),
        (two("tensorrt", "torch"), {"fallback": "python"}, "python", "segment_1 would be a Python model"),
        (two("torch", "tensorrt"), {}, "python", "does not check the sizes of 'x'"),
        (two("onnxruntime", "torch"), {}, "python", "does not check the sizes of 'x'"),
        (two("onnxruntime", "onnxruntime"), {}, "ensemble", "runs each segment itself"),
        (one("onnxruntime"), {"options": TritonOptions(optional={"x": 0})}, "python", "optional"),
    ],
)
def test_auto(steps: list[Step], more: dict[str, object], layout: str, reason: str) -> None:
    chosen = choose(steps, **more)  # type: ignore[arg-type]
    assert chosen.layout == layout
    assert reason in chosen.reason


def test_auto_makes_no_ensemble_of_many_steps() -> None:
    names = ["x", "a", "b", "c", "y"]
    tensors = [tensor(n, "float32", BATCH, TOKENS, 16) for n in names]
    steps = [Step(f"segment_{i}", "tensorrt", (tensors[i],), (tensors[i + 1],)) for i in range(4)]
    assert "4 segments" in choose(steps).reason
    assert choose(steps, layout="ensemble").runners == ("tensorrt",) * 4


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (tensor("x", "int64", values=(1, 8)), "a number whose range only our Python model checks"),
        (tensor("x", "float32", BATCH, Range(32, 64, 128, "H", 32)), "H=32:64:128%32"),
        (tensor("x", "float32", TOKENS, Range(9, 65, 257, "T+1", derived=Derived("T", 1, 1))), "T+1"),
    ],
)
def test_what_only_our_runtime_checks_stays_with_it(spec: TensorSpec, reason: str) -> None:
    chosen = choose(one("onnxruntime", spec), inputs=[spec])
    assert chosen.layout == "python"
    assert reason in chosen.reason


@pytest.mark.parametrize(
    ("compiler", "spec", "triton", "reason"),
    [
        ("tensorrt", tensor("x", "float64", BATCH), "26.09", "TensorRT backend has no float64"),
        ("tensorrt", tensor("x", "int16", BATCH), "26.09", "TensorRT backend has no int16"),
        ("tensorrt", tensor("x", "float32"), "26.09", "TensorRT backend has no scalars"),
        ("onnxruntime", tensor("x", "bfloat16", BATCH), "26.01", "has no bfloat16"),
        ("onnxruntime", tensor("x", "bfloat16", BATCH), "26.03", ""),
        ("onnxruntime", tensor("x", "float32"), "26.09", ""),
        ("inductor", tensor("x", "float32", BATCH), "26.02", "Triton 26.02 has no PyTorch (torch_aoti) backend"),
        ("inductor", tensor("x", "bfloat16", BATCH), "26.09", "has no bfloat16"),
        ("inductor", tensor("x", "bfloat16", BATCH), "26.11", ""),
    ],
)
def test_a_plan_needs_a_backend_that_takes_its_tensors(
    compiler: str, spec: TensorSpec, triton: str, reason: str
) -> None:
    steps = one(compiler, spec)
    if not reason:
        assert choose(steps, layout="plan", triton=triton, inputs=[spec]).layout == "plan"
        return
    with pytest.raises(RepositoryError) as caught:
        choose(steps, layout="plan", triton=triton, inputs=[spec])
    assert reason in caught.value.what
    assert "--layout python" in str(caught.value)


def test_sizes_that_inputs_share_are_compared_by_who_can() -> None:
    inputs = [tensor("a", "float32", BATCH, TOKENS), tensor("b", "float32", BATCH, TOKENS)]
    for compiler, layout in (("tensorrt", "plan"), ("onnxruntime", "python")):
        chosen = choose([Step("segment_0", compiler, tuple(inputs), (Y,))], inputs=inputs)
        assert chosen.layout == layout
    assert "T is one size in all inputs" in chosen.reason
    asked = choose([Step("segment_0", "onnxruntime", tuple(inputs), (Y,))], inputs=inputs, layout="plan")
    assert asked.layout == "plan"


def test_sequences_and_layouts() -> None:
    options = TritonOptions.model_validate({"sequence_batching": {"direct": {}}})
    assert "an ensemble has no sequences" in choose(two("tensorrt", "torch"), options=options).reason
    assert choose(one("onnxruntime"), options=options).layout == "plan"
    with pytest.raises(RepositoryError, match="would not know the names of its states"):
        choose(one("inductor"), options=options, layout="plan")


def test_a_python_member_cannot_choose_among_profiles() -> None:
    profiles = [[tensor("x", "float32", BATCH, Range(low, low, high, "T"), 16)] for low, high in ((8, 63), (64, 256))]
    with pytest.raises(RepositoryError, match="cannot choose among the model's profiles"):
        choose(two("tensorrt_rtx", "torch"), layout="ensemble", profiles=profiles)


def test_asking_needs_a_release() -> None:
    with pytest.raises(SpecError, match="which Triton release"):
        choose(one("onnxruntime"), layout="plan", triton=None)
    assert choose(one("onnxruntime"), layout="python", triton=None) == LayoutChoice("python", "asked for")


@pytest.mark.parametrize(
    ("outputs", "inputs", "reason"),
    [
        ([OutputSpec(X, "x")], [X], "an input that goes through"),
        ([OutputSpec(Y, "y"), OutputSpec(H, "y")], [X], "are one tensor"),
        ([OutputSpec(X, "y")], [X], "the name of an input and of an output"),
        ([OutputSpec(Y, "y")], [X, H], "does not use its input 'h'"),
    ],
)
def test_tensors_that_no_step_can_name(outputs: list[OutputSpec], inputs: list[TensorSpec], reason: str) -> None:
    for layout in ("plan", "ensemble"):
        with pytest.raises(RepositoryError, match=reason):
            choose(one("onnxruntime"), layout=layout, outputs=outputs, inputs=inputs)
    assert choose(one("onnxruntime"), outputs=outputs, inputs=inputs).layout == "python"


def test_profiles_that_overlap_are_chosen_by_our_runtime() -> None:
    def profile(low: int, high: int) -> list[TensorSpec]:
        return [tensor("x", "float32", BATCH, Range(low, low, high, "T"), 16)]

    disjoint, overlapping = [profile(8, 63), profile(64, 256)], [profile(8, 64), profile(64, 256)]
    assert choose(one("tensorrt"), profiles=disjoint).layout == "plan"
    assert "the profiles 0 and 1 overlap" in choose(one("tensorrt"), profiles=overlapping).reason


def test_torch_aoti_is_asked_for_in_vain() -> None:
    with pytest.raises(RepositoryError, match="segment_1 cannot be compiled for the PyTorch backend: no C"):
        choose(two("onnxruntime", "torch"), layout="ensemble", fallback="torch_aoti", uncompilable="no C++")


NO_BATCH = [
    ([tensor("x", "float32")], [tensor("y", "float32", BATCH)], "the input 'x' is a scalar"),
    ([tensor("x", "float32", 3, BATCH)], [tensor("y", "float32", BATCH)], "of the input 'x' is always 3"),
    ([tensor("x", "float32", BATCH)], [tensor("y", "float32", 1)], "of the output 'y' is always 1"),
    ([tensor("x", "float32", BATCH)], [tensor("y", "float32", TOKENS)], "of the output 'y' is T, not B"),
    ([tensor("x", "float32", BATCH), tensor("z", "int8", TOKENS)], [tensor("y", "float32", BATCH)], "'z' is T, not B"),
    ([tensor("x", "float32", BATCH)], [tensor("y", "float32", Range(2, 16, 64))], "is not one of the inputs'"),
    ([tensor("x", "float32", BATCH, BATCH)], [tensor("y", "float32", BATCH)], "B is a dimension of 'x' twice"),
    ([tensor("x", "float32", Range(2, 4, 8, "B"))], [tensor("y", "float32", Range(2, 4, 8, "B"))], "grows from 1"),
    (
        [tensor("x", "float32", Range(1, 4, 8, "B", 4))],
        [tensor("y", "float32", Range(1, 4, 8, "B", 4))],
        "grows from 1",
    ),
    (
        [tensor("x", "float32", BATCH)],
        [tensor("y", "float32", BATCH, Range(2, 16, 64, "2*B", derived=Derived("B", 2)))],
        "a dimension of 'y' follows from B",
    ),
    ([], [tensor("y", "float32", BATCH)], "there is no input or no output"),
]


@pytest.mark.parametrize(("inputs", "outputs", "reason"), NO_BATCH)
def test_no_batch(inputs: list[TensorSpec], outputs: list[TensorSpec], reason: str) -> None:
    symbol, said = batch_symbol(inputs, outputs)
    assert symbol == ""
    assert reason in said


def test_a_batch() -> None:
    assert batch_symbol([X], [Y]) == ("B", "")
    narrow = [tensor("x", "float32", Range(1, 1, 4, "B"), TOKENS, 16)]
    assert "profile 1 takes B from 1 to 4 only" in batch_symbol([X], [Y], [[X], narrow])[1]


def test_the_size_of_a_batch() -> None:
    assert choose_batching(32, "B", "", None).max_batch_size == 32
    assert choose_batching(32, "B", "", 8).max_batch_size == 8
    assert choose_batching(32, "B", "", 0).reason == "asked for"
    assert choose_batching(0, "", "x is a scalar", None).reason == "x is a scalar"
    with pytest.raises(SpecError, match="B is at most 32"):
        choose_batching(32, "B", "", 64)
    with pytest.raises(SpecError, match="cannot be joined to batches: x is a scalar"):
        choose_batching(0, "", "x is a scalar", 8)
    with pytest.raises(SpecError, match="is below 0"):
        choose_batching(32, "B", "", -1)
