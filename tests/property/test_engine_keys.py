"""Engine keys over generated modules: never a wrong hit, never a needless miss.

Each module is a chain of steps over a tensor of shape [B, 8, 4, 4]; a mutation changes one thing of it.
Keys are made the way a build makes them, for a compiler that reads ONNX and for one that reads PyTorch.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from builder.cache.key import engine_key
from builder.compilers.base import BuildContext
from builder.compilers.inductor import InductorCompiler
from builder.compilers.onnxruntime import OnnxRuntimeCompiler
from builder.engines import engine_components
from builder.export import export_model
from builder.inputs import parse_input
from builder.partition.partitioner import partition
from builder.settings import Settings

COMPILERS = {"inductor": InductorCompiler, "onnxruntime": OnnxRuntimeCompiler}

# ONNX is slow to make, so it is tried less often; both find the same faults.
EXAMPLES = {"inductor": 12, "onnxruntime": 6}


@dataclasses.dataclass(frozen=True)
class Step:
    """One step: its kind and its arguments."""

    kind: str
    arguments: tuple[Any, ...] = ()


# Each kind: the values of each of its arguments, so that a mutation can choose another.
KINDS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "conv": ((1, 3, 5), (1, 2), (1, 8), (True, False)),  # kernel, dilation, groups, bias
    "linear": ((4,), (True, False)),
    "scale": ((0.5, 2.0, -0.5, 1.0),),
    "add": ((1.0, 2, 2.0, 1e-3),),
    "subtract": ((False, True),),  # from the input of the chain, or the other way round
    "softmax": ((1, 2, 3),),
    "sum": ((1, 2, 3),),
    "permute": ((2, 3), (3, 2)),  # an axis pair in each order gives the same or another permutation
    "roll": ((1, 2, -1), (2, 3)),
    "clamp": ((-1.0, 0.0), (0.5, 1.0)),
    "leaky": ((0.1, 0.9),),
    "gelu": (("none", "tanh"),),
    "norm": ((1e-5, 1e-1),),
    "constant": ((0, 1),),  # which tensor of numbers is added
    "index": ((0, 1),),  # which buffer of indices is used
    "relu": (),
    "sigmoid": (),
    "cast": (("float64", "float16"),),
}
CONSTANTS = (torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 4.0, 3.0]))
INDICES = (torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 3, 2]))


class Net(nn.Module):
    """A chain of steps; its outputs are two values of the chain."""

    def __init__(self, steps: tuple[Step, ...], outputs: tuple[int, int], prefix: str = "layer") -> None:
        super().__init__()
        self.steps, self.outputs, self.prefix = steps, outputs, prefix
        for index, step in enumerate(steps):
            if step.kind == "conv":
                kernel, dilation, groups, bias = step.arguments
                module: nn.Module = nn.Conv2d(
                    8, 8, kernel, padding=dilation * (kernel // 2), dilation=dilation, groups=groups, bias=bias
                )
            elif step.kind == "linear":
                module = nn.Linear(4, 4, bias=step.arguments[1])
            elif step.kind == "norm":
                module = nn.LayerNorm(4, eps=step.arguments[0])
            elif step.kind == "index":
                self.register_buffer(f"{prefix}_{index}", INDICES[step.arguments[0]].clone())
                continue
            else:
                continue
            setattr(self, f"{prefix}_{index}", module)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = [x]
        for index, step in enumerate(self.steps):
            values.append(self._run(step, values[-1], x, getattr(self, f"{self.prefix}_{index}", None)))
        return values[self.outputs[0]], values[self.outputs[1]]

    def _run(self, step: Step, value: torch.Tensor, x: torch.Tensor, module: Any) -> torch.Tensor:
        a = step.arguments
        if step.kind in ("conv", "linear", "norm"):
            return module(value)
        operations: dict[str, Callable[[], torch.Tensor]] = {
            "scale": lambda: value * a[0],
            "add": lambda: value + a[0],
            "subtract": lambda: x - value if a[0] else value - x,
            "softmax": lambda: value.softmax(a[0]),
            "sum": lambda: value + value.sum(a[0], keepdim=True),
            "permute": lambda: value.transpose(2, 3) if a == (2, 3) else value.flip(2),
            "roll": lambda: torch.roll(value, a[0], a[1]),
            "clamp": lambda: value.clamp(a[0], a[1]),
            "leaky": lambda: nn.functional.leaky_relu(value, a[0]),
            "gelu": lambda: nn.functional.gelu(value, approximate=a[0]),
            "constant": lambda: value + CONSTANTS[a[0]].clone(),
            "index": lambda: value[..., module],
            "relu": value.relu,
            "sigmoid": value.sigmoid,
            "cast": lambda: value.to(getattr(torch, a[0])).to(torch.float32),
        }
        return operations[step.kind]()


class Renamed(Net):
    """The same under other names."""

    def __init__(self, steps: tuple[Step, ...], outputs: tuple[int, int]) -> None:
        super().__init__(steps, outputs, prefix="renamed")

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(image)


steps = st.sampled_from(sorted(KINDS)).flatmap(
    lambda kind: st.tuples(*(st.sampled_from(values) for values in KINDS[kind])).map(lambda a: Step(kind, a))
)
chains = st.lists(steps, min_size=2, max_size=6).map(tuple)


@st.composite
def nets(draw: st.DrawFn) -> tuple[tuple[Step, ...], tuple[int, int]]:
    chain = draw(chains)
    places = st.integers(1, len(chain))
    first = draw(places)
    return chain, (first, draw(places.filter(lambda p: p != first)))


@st.composite
def mutations(draw: st.DrawFn) -> tuple[Any, Any, str]:
    """A net, the same with one thing changed, and what that was."""
    chain, outputs = draw(nets())
    what = draw(st.sampled_from(["argument", "kind", "edge", "outputs", "output"]))
    index = draw(st.integers(0, len(chain) - 1))
    if what == "argument":
        choices = [
            (i, j, value)
            for i, step in enumerate(chain)
            for j, values in enumerate(KINDS[step.kind])
            for value in values
            if repr(value) != repr(step.arguments[j])
        ]
        if choices:
            i, j, value = draw(st.sampled_from(choices))
            arguments = (*chain[i].arguments[:j], value, *chain[i].arguments[j + 1 :])
            return (chain, outputs), ((*chain[:i], Step(chain[i].kind, arguments), *chain[i + 1 :]), outputs), what
        what = "kind"
    if what == "kind":
        other = draw(steps.filter(lambda s: s.kind != chain[index].kind))
        return (chain, outputs), ((*chain[:index], other, *chain[index + 1 :]), outputs), what
    if what == "edge":
        index = min(index, len(chain) - 2)
        swapped = (*chain[:index], chain[index + 1], chain[index], *chain[index + 2 :])
        return (chain, outputs), (swapped, outputs), what
    if what == "outputs":
        return (chain, outputs), (chain, outputs[::-1]), what
    moved = outputs[0] % len(chain) + 1
    return (chain, outputs), (chain, (moved, outputs[1])), what


INPUT = "x=float32[B=2:3:7, 8, 4, 4]"


def keys(module: nn.Module, compiler: str, text: str = INPUT) -> list[str]:
    """The key of every segment as a build would make it, and how the manifest wires inputs, segments and outputs.

    An engine gives its values in the order in which they are computed; which of them is the model's
    first output is no matter of the engine.
    """
    made = COMPILERS[compiler]()
    with tempfile.TemporaryDirectory() as work:
        session = made.session(BuildContext(Path(work)))
        plan = partition(export_model(module.eval(), [parse_input(text)]), session, Settings())
        found = []
        places = {t.name: f"input {i}" for i, t in enumerate(plan.inputs)}
        for index, segment in enumerate(plan.segments):
            places.update((t.name, f"segment {index} output {i}") for i, t in enumerate(segment.outputs))
            found.append(str([places[t.name] for t in segment.inputs]))
            fingerprint = session.fingerprint(segment)
            assert not fingerprint.unsure
            found.append(engine_key(engine_components(made, Settings(), fingerprint, segment)))
        found.append(str([places[o.value] for o in plan.outputs]))
        return found


def sparing(examples: int) -> Any:
    """Settings for slow examples. Chains are short, so that there is little to shrink."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def used_weights(net: Net) -> dict[str, torch.Tensor]:
    """Weights of the steps up to the last output; what comes after it is in no graph."""
    last = max(net.outputs)
    return {n: t for n, t in net.state_dict().items() if int(n.partition("_")[2].partition(".")[0]) < last}


def differ(one: Net, other: Net) -> bool:
    """Whether two nets with the same weights, as far as both have them, compute something else for some input."""
    torch.manual_seed(7)
    weights = {n: torch.randn_like(t) if t.is_floating_point() else t for n, t in used_weights(one).items()}
    one.load_state_dict(weights, strict=False)
    shapes = {n: (t.shape, t.dtype) for n, t in used_weights(other).items()}
    if {n: (t.shape, t.dtype) for n, t in weights.items()} != shapes:
        return True
    other.load_state_dict({n: t for n, t in weights.items() if t.is_floating_point()}, strict=False)
    x = torch.randn(3, 8, 4, 4) * 3
    with torch.inference_mode():
        return any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(one(x), other(x), strict=True))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_one_change_is_another_key(compiler: str) -> None:
    tried: list[str] = []

    @sparing(EXAMPLES[compiler])
    @given(mutations())
    def run(pair: tuple[Any, Any, str]) -> None:
        (chain, outputs), (other_chain, other_outputs), what = pair
        one, other = Net(chain, outputs).eval(), Net(other_chain, other_outputs).eval()
        if differ(one, other):
            tried.append(what)
            assert keys(one, compiler) != keys(other, compiler)

    run()
    assert len(set(tried)) >= 4


@pytest.mark.parametrize("compiler", COMPILERS)
def test_names_and_weights_are_not_in_it(compiler: str) -> None:
    @sparing(EXAMPLES[compiler] // 2)
    @given(nets(), st.sampled_from(["trained", "zero", "equal"]))
    def run(net: Any, values: str) -> None:
        chain, outputs = net
        one, other = Net(chain, outputs), Renamed(chain, outputs)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.copy_(torch.full_like(parameter, {"zero": 0.0, "equal": 1.0}.get(values, 0.3)))
                if values == "trained":
                    parameter.add_(torch.randn_like(parameter))
        assert keys(one, compiler) == keys(other, compiler, INPUT.replace("x=", "image=").replace("B=", "N="))

    run()


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    "text",
    [
        "x=float32[B=2:3:8, 8, 4, 4]",
        "x=float32[B=3:3:7, 8, 4, 4]",
        "x=float32[B=2:4:7, 8, 4, 4]",
        "x=float32[3, 8, 4, 4]",
        "x=float32[B=2:4:6%2, 8, 4, 4]",
        "x=float32[B=2:3:7, 8, 4, W=2:4:9]",
        "x=float64[B=2:3:7, 8, 4, 4]",
    ],
)
def test_another_range_or_dtype_is_another_key(compiler: str, text: str) -> None:
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() * 2

    assert keys(Same(), compiler) != keys(Same(), compiler, text)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_equal_sizes_and_one_size_are_not_the_same(compiler: str) -> None:
    """Two dimensions that must be equal, and two that are free, have the same profile."""

    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum((0, 1))

    one = keys(Both(), compiler, "x=float32[B=2:3:7, T=2:3:7, 4]")
    assert one != keys(Both(), compiler, "x=float32[B=2:3:7, B=2:3:7, 4]")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_tied_and_untied_weights_do_not_share(compiler: str) -> None:
    class Two(nn.Module):
        def __init__(self, tied: str) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4, bias=False) for _ in range(3))
            if tied == "ab":
                self.b.weight = self.a.weight
            elif tied == "ac":
                self.c.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.b(self.a(x)).relu())

    made = [keys(Two(tied), compiler) for tied in ("", "ab", "ac")]
    assert len({str(k) for k in made}) == 3


@pytest.mark.parametrize("compiler", COMPILERS)
def test_two_processes_agree(compiler: str) -> None:
    """With other hash seeds, in another directory, and under another name of the module."""
    code = f"""
import json, torch
from tests.property.test_engine_keys import Net, Step, keys
chain = (Step("conv", (3, 1, 1, True)), Step("constant", (0,)), Step("index", (1,)), Step("linear", (4, True)))
print(json.dumps(keys(Net(chain, (4, 2)), {compiler!r})))
"""
    root = Path(__file__).resolve().parents[2]
    found = set()
    for seed in ("1", "2"):
        with tempfile.TemporaryDirectory() as elsewhere:
            done = subprocess.run(
                [sys.executable, "-c", code],
                cwd=elsewhere,
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            found.add(str(json.loads(done.stdout.splitlines()[-1])))
    assert len(found) == 1
