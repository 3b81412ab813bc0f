"""What may import what: DESIGN.md's rules, and the start-up that users feel."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "builder"

# Lowest first; a module imports only what stands before it, or its own package.
LAYERS = [
    "types", "errors", "releases", "model_config", "files", "locks", "hashing", "remote_url", "progress", "dims", "inputs", "profiles", "settings", "triton_options", "spec",
    "collector", "recurrence", "signature", "shape_env", "functional", "tracing", "symbols", "explain", "export", "models", "partition", "lowering", "compilers", "cache",
    "runtime", "preprocess", "repository", "serving", "verify", "engines", "placement", "publishing", "versions", "compilation", "pipeline", "report", "drawing", "doctor", "key_diff",
    "console", "console_cache", "gradients", "library_options", "randomness", "reweighting", "widening", "inprocess", "compiled_module", "saved", "library", "dynamo", "cli_common", "cli_cache", "cli_repository", "cli_lint", "cli",
]  # fmt: skip


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("builder."):
            found.add(node.module.split(".")[1])
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = layer(path)
    if own == "__init__":
        return
    for other in imports(path) - {own}:
        assert LAYERS.index(other) < LAYERS.index(own), f"{own} must not import {other}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "runtime").glob("*.py")), ids=lambda p: p.name)
def test_the_runtime_imports_no_build_code(path: Path) -> None:
    assert imports(path) <= {"runtime", "types", "errors"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("builder.cli", {"torch", "numpy", "pydantic", "rich.table", "tritonclient", "onnx"}),
        ("builder.runtime.triton", {"torch", "pydantic", "typer", "rich", "onnx"}),
        ("builder.spec", {"torch", "numpy"}),
    ],
)
def test_what_is_imported_late(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & unwanted
