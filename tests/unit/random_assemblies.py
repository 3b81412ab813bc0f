"""Models drawn at random: signatures, layouts and options that a user may have, as the assemble stage gets them."""

from __future__ import annotations

import random
from pathlib import Path

from builder.repository.assembly import Assembly
from builder.types import DTYPES, Range, TensorSpec
from tests.unit.assemblies import assembly, segment, tensor

__all__ = ["draw"]

_NAMES = ["x", "input_ids", "batch.mask", "a b", 'quote"d', "é", "0", "out put", "back\\slash", "y", "new\nline"]
_DTYPES = [d for d in DTYPES if d != "bfloat16"]


def draw(place: Path, seed: int, name: str = "drawn", *, layout: str = "") -> Assembly:
    """The model of a seed."""
    dice = random.Random(seed)
    batch = Range(1, dice.randint(1, 4), dice.randint(4, 9), "B")
    layout = layout or dice.choice(["python", "python", "plan", "ensemble"])
    whole = dice.random() < 0.5
    names = dice.sample(_NAMES, 6)
    inputs = [_tensor(dice, n, batch, whole, layout) for n in names[: dice.randint(1, 3)]]
    outputs = [_tensor(dice, n, batch, whole, layout) for n in names[3 : 3 + dice.randint(1, 3)]]
    segments, runners = None, []
    if layout == "plan":
        runners = ["onnxruntime"]
    if layout == "ensemble":
        middle = [_tensor(dice, f"v{i}", batch, whole, layout) for i in range(dice.randint(1, 3))]
        compilers = dice.choice([("onnxruntime", "torch"), ("torch", "onnxruntime"), ("onnxruntime", "onnxruntime")])
        segments = [segment(0, compilers[0], inputs, middle), segment(1, compilers[1], middle, outputs)]
        runners = ["python" if c == "torch" else c for c in compilers]
    return assembly(
        place,
        name,
        inputs,
        outputs,
        segments,
        layout=layout,
        runners=runners,
        options=_options(dice, layout),
        warmup=True,
    )


def _tensor(dice: random.Random, name: str, batch: Range, whole: bool, layout: str) -> TensorSpec:
    low = dice.randint(1, 3)
    choices = [dice.randint(1, 5), Range(low, low + 2, low + dice.randint(2, 9), "T"), Range(2, 4, 8, "H", 2)]
    dims = [dice.choice(choices) for _ in range(dice.randint(0, 3))]
    if whole or dice.random() < 0.3:
        dims = [batch, *dims]
    return tensor(name, dice.choice(_DTYPES), *dims)


def _options(dice: random.Random, layout: str) -> dict[str, object]:
    options: dict[str, object] = {}
    if dice.random() < 0.4:
        options["instance_group"] = [{"count": dice.randint(1, 2), "kind": "KIND_CPU"}]
    if dice.random() < 0.3:
        options["version_policy"] = dice.choice(
            [{"latest": {"num_versions": 2}}, {"all": {}}, {"specific": {"versions": [1]}}]
        )
    if dice.random() < 0.3:
        options["parameters"] = {dice.choice(_NAMES): dice.choice(_NAMES)}
    if dice.random() < 0.2:
        options["max_batch_size"] = 0
    if dice.random() < 0.2:
        options["model_warmup"] = False
    if dice.random() < 0.2:
        options["response_cache"] = dice.random() < 0.5
    if dice.random() < 0.2:
        options["metric_tags"] = {"team": "a"}
    return options
