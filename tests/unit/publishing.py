"""Plans for the tests of publishing, and what a reader of the repository sees of them."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

from builder.repository.plan import CONFIG_NAME, MemberPlan, RepositoryPlan
from builder.runtime.manifest import Manifest
from builder.types import OutputSpec, Range, TensorSpec

BATCH = Range(1, 8, 32, "B")

CONFIG = """# Written by triton-repo.
name: "{name}"
{kind}
max_batch_size: 0

input {{
  name: "x"
  data_type: TYPE_FP32
  dims: [ -1, {width} ]
}}

output {{
  name: "y"
  data_type: TYPE_FP32
  dims: [ -1, 2 ]
}}
"""
WARMUP = """
model_warmup {{
  name: "opt"
  batch_size: 1
  inputs {{
    key: "x"
    value {{ data_type: TYPE_FP32 dims: [ {rows}, {width} ] input_data_file: "{file}" }}
  }}
}}
"""
STEP = """  step {{
    model_name: "{member}"
    model_version: 1
    input_map {{ key: "x" value: "{source}" }}
    output_map {{ key: "y" value: "{target}" }}
  }}
"""


def make_plan(
    tmp_path: Path,
    weights: bytes = b"weights",
    *,
    name: str = "encoder",
    width: int = 4,
    warmup_rows: int = 8,
    built_at: str = "",
    extra: str = "",
) -> RepositoryPlan:
    """A model of one Python file and one artifact, with one warm-up request; `extra` is more configuration."""
    source = tmp_path / f"source-{hashlib.sha256(weights).hexdigest()[:8]}"
    source.write_bytes(weights)
    file = f"opt@x@{warmup_rows}x{width}"
    config = CONFIG.format(name=name, kind='backend: "python"', width=width)
    warmup = WARMUP.format(rows=warmup_rows, width=width, file=file)
    return RepositoryPlan(
        make_manifest(name, width, built_at),
        f"{config}{warmup}{extra}",
        {"segments/segment_0.onnx": source},
        {"model.py": "class TritonPythonModel: ...\n"},
        {f"warmup/{file}": bytes(4 * warmup_rows * width)},
    )


def make_manifest(name: str, width: int = 4, built_at: str = "", layout: str = "python") -> Manifest:
    inputs = (TensorSpec("x", "float32", (BATCH, Range(width, width, width))),)
    outputs = (OutputSpec(TensorSpec("y", "float32", (BATCH, Range(2, 2, 2))), "y"),)
    return Manifest(name, inputs, outputs, (), built_at=built_at, command=f"build {built_at}", layout=layout)


def make_member(name: str, content: bytes) -> MemberPlan:
    digest = hashlib.sha256(content).hexdigest()[:8]
    full = f"{name}.{digest}"
    config = CONFIG.format(name=full, kind='backend: "python"', width=4)
    return MemberPlan(full, config, {"1/model.py": content})


def make_ensemble(tmp_path: Path, *contents: bytes, name: str = "whole", extra: str = "") -> RepositoryPlan:
    """An ensemble that calls a member for each content, in turn."""
    members = [make_member(f"{name}.segment_{i}", content) for i, content in enumerate(contents)]
    tensors = ["x", *(f"t{i}" for i in range(1, len(members))), "y"]
    steps = "".join(
        STEP.format(member=m.name, source=s, target=t)
        for m, (s, t) in zip(members, itertools.pairwise(tensors), strict=True)
    )
    config = CONFIG.format(name=name, kind='platform: "ensemble"', width=4)
    return RepositoryPlan(
        make_manifest(name, layout="ensemble"),
        f"{config}ensemble_scheduling {{\n{steps}}}\n{extra}",
        members=tuple({m.name: m for m in members}.values()),
    )


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below the directory with its content, and every directory with b'/'."""
    return {
        path.relative_to(directory).as_posix(): b"/" if path.is_dir() else path.read_bytes()
        for path in directory.rglob("*")
    }


def config_of(root: Path, name: str = "encoder") -> Path:
    return root / name / CONFIG_NAME


def assert_nothing_beside(root: Path) -> None:
    assert [path.name for path in root.parent.iterdir()] == [root.name]


def fail_once(
    monkeypatch, module: object, name: str, error: BaseException, *, after: int = 0, done: bool = False
) -> None:
    """Make one call of `module.name` raise, the one after so many others; it may have done its work."""
    original, calls = getattr(module, name), itertools.count()

    def replacement(*args, **kwargs):
        if next(calls) == after:
            if done:
                original(*args, **kwargs)
            raise error
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, replacement)
