"""Every name of TensorRT that the adapter and the runtime use exists in each release that they are used with.

The records in tests/data were read from the bindings of these releases. What is used is found in the syntax trees: whatever is
called `config`, `engine`, ... in the adapter is of the class below, and every parameter of type Any must be one of these names.
"""

from __future__ import annotations

import ast
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.compilers.tensorrt import config as configuration
from builder.settings import TensorRTSettings

ROOT = Path(__file__).resolve().parents[2]
RELEASES = json.loads((ROOT / "tests/data/tensorrt_api.json").read_text())
FILES = [*sorted((ROOT / "builder/compilers/tensorrt").glob("*.py")), ROOT / "builder/runtime/tensorrt.py"]

CLASSES = {
    "builder": "Builder",
    "cache": "ITimingCache",
    "config": "IBuilderConfig",
    "context": "IExecutionContext",
    "engine": "ICudaEngine",
    "error": "ParserError",
    "flag": "BuilderFlag",
    "kinds": "DataType",
    "network": "INetworkDefinition",
    "other": "ITimingCache",
    "parser": "OnnxParser",
    "profile": "IOptimizationProfile",
    "refitter": "Refitter",
    "registry": "IPluginRegistry",
    "runtime": "Runtime",
    "serialization": "ISerializationConfig",
    "tensor": "ITensor",
}
# Names that mean something else in one file.
ELSEWHERE = {
    ("compiler.py", "context"): None,
    ("compiler.py", "error"): None,
    ("refit.py", "parser"): "OnnxParserRefitter",
    ("runtime/tensorrt.py", "tensor"): None,
    ("runtime/tensorrt.py", "profile"): None,
}
# In the runtime's cache of kernels, which only TensorRT-RTX has.
RTX_CLASSES = {"_cache": "IRuntimeCache", "_config": "IRuntimeConfig", "_engine": "ICudaEngine"}

# Parameters of type Any that hold nothing of TensorRT's, or its module, or what is handed through.
OTHERS = {
    "trt",
    "logger",
    "file",
    "result",
    "value",
    "dtype",
    "made",
    "torch",
    "stream",
    "severity",
    "data",
    "shape",
    "shapes",
    "outputs",
}


def label(path: Path) -> str:
    return "runtime/tensorrt.py" if path.parent.name == "runtime" else path.name


def receiver(node: ast.expr) -> str | None:
    """The last name of what an attribute is taken of: `config`, `parsed.builder` and `self._engine` are config, builder, engine."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr.lstrip("_") if isinstance(node, ast.Attribute) else None


def class_of(path: Path, name: str | None) -> str | None:
    if name is None:
        return None
    return ELSEWHERE.get((label(path), name), CLASSES.get(name))


def uses(path: Path) -> Iterator[tuple[str, str]]:
    """(class or enum, member) of TensorRT's in a file; its module's own names as ("", name)."""
    tree = ast.parse(path.read_text())
    skipped = {
        n for c in ast.walk(tree) if isinstance(c, ast.ClassDef) and c.name == "_KernelCache" for n in ast.walk(c)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node in skipped or node.attr.startswith("__"):
            continue
        inner = node.value
        if receiver(inner) == "trt":
            yield "", node.attr
        elif isinstance(inner, ast.Attribute) and receiver(inner.value) == "trt":
            yield inner.attr, node.attr
        elif (kind := class_of(path, receiver(inner))) is not None:
            yield kind, node.attr


def known(release: str, kind: str, member: str) -> bool:
    record = RELEASES[release]
    if kind == "":
        return member in record["classes"] or member in record["enums"] or member == "Weights"
    if kind in record["enums"]:
        return member in record["enums"][kind] or member == "__members__"
    return member in record["classes"][kind]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("path", FILES, ids=label)
def test_every_name_exists(release: str, path: Path) -> None:
    if path.name == "rtx.py" and not release.startswith("tensorrt_rtx"):
        assert any(not known(release, *use) for use in uses(path)), "this need not be apart"
        return
    for kind, member in uses(path):
        assert known(release, kind, member), f"{kind}.{member} is not in {release}"


def test_the_walk_finds_what_is_used() -> None:
    found = {use for path in FILES for use in uses(path)}
    assert len(found) > 70
    for expected in (
        ("OnnxParser", "load_initializer"), ("OnnxParserRefitter", "refit_model_proto"), ("IBuilderConfig", "set_flag"),
        ("ICudaEngine", "serialize_with_config"), ("IExecutionContext", "set_output_allocator"), ("BuilderFlag", "STRIP_PLAN"),
        ("", "IStreamWriter"), ("ITimingCache", "combine"), ("Runtime", "deserialize_cuda_engine"),
    ):  # fmt: skip
        assert expected in found
    assert not known("tensorrt-11.4", "BuilderFlag", "FP16") and not known(
        "tensorrt_rtx-1.7", "Builder", "build_engine_with_config"
    )


@pytest.mark.parametrize("path", FILES, ids=label)
def test_no_object_of_tensorrt_has_another_name(path: Path) -> None:
    """A new parameter of TensorRT's gets a name from the table, so that what it is asked for is checked."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name) and node.annotation.id == "Any":
            assert node.arg in CLASSES or node.arg in OTHERS, (
                f"{label(path)}: the parameter {node.arg} is of no known class"
            )


def test_the_cache_of_kernels_uses_what_tensorrt_rtx_has() -> None:
    tree = ast.parse(FILES[-1].read_text())
    (owner,) = [c for c in ast.walk(tree) if isinstance(c, ast.ClassDef) and c.name == "_KernelCache"]
    found = 0
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr in RTX_CLASSES:
            found += 1
            assert known("tensorrt_rtx-1.7", RTX_CLASSES[node.value.attr], node.attr)
    assert found >= 5


@pytest.mark.parametrize("release", RELEASES)
def test_every_setting_is_something_of_tensorrts(release: str) -> None:
    """Attributes, flags, pools and enum values that settings are translated to by name."""
    fields = TensorRTSettings.model_fields
    for attribute in configuration.NUMBERS.values():
        assert known(release, "IBuilderConfig", attribute)
    for name, (attribute, enum) in configuration.ENUMS.items():
        assert known(release, "IBuilderConfig", attribute)
        (choices, _) = typing.get_args(fields[name].annotation)
        for value in typing.get_args(choices):
            assert known(release, enum, value.upper())
    assert all(known(release, "BuilderFlag", flag) for flag in configuration.FLAGS.values())
    assert all(known(release, "MemoryPoolType", pool) for pool in configuration.POOLS.values())


def test_every_setting_is_translated() -> None:
    """None of them is silently ignored."""
    translated = {*configuration.NUMBERS, *configuration.ENUMS, *configuration.FLAGS, *configuration.POOLS}
    source = "".join(p.read_text() for p in FILES)
    for name in TensorRTSettings.model_fields.keys() - translated:
        assert re.search(rf"(given|settings|tensorrt|_settings)\.{name}\b|get\(\"{name}\"", source), (
            f"nothing uses {name}"
        )
