"""Rules: the Python code of a model. It is parsed, never run."""

from __future__ import annotations

import ast
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path

from builder.repository.lint.model import Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

_CLASS = "TritonPythonModel"
_READ_AT_MOST = 16 << 20


def _sources(model: Model, backend: str) -> Iterator[Path]:
    """The Python file of each served version of a model of a backend."""
    if model.folder is None or model.backend != backend or not model.artifact.endswith(".py"):
        return
    for version in model.served:
        if model.folder.is_file(str(version), model.artifact):
            yield model.file(str(version), model.artifact)


def _tree(path: Path) -> ast.Module | Problem:
    fix = "correct it: the server starts this file"
    try:
        if path.stat().st_size > _READ_AT_MOST:
            return Problem("the file is too large to be Python code", fix, file=path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        message = f"does not compile with Python {platform.python_version()}: {error.msg}"
        return Problem(message, fix, file=path, line=error.lineno)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return Problem(f"cannot be read as Python code: {error}", fix, file=path)


@rule("python-syntax", "error")
def _syntax(model: Model) -> Iterator[Problem]:
    for backend in ("python", "pytorch"):
        for path in _sources(model, backend):
            tree = _tree(path)
            if isinstance(tree, Problem):
                yield tree


@rule("python-class", "error")
def _defines_class(model: Model) -> Iterator[Problem]:
    for path in _sources(model, "python"):
        tree = _tree(path)
        if isinstance(tree, ast.Module) and not {_CLASS, "*"} & _names(tree.body):
            yield Problem(
                f"{path.name} of model '{model.name}' defines no {_CLASS}",
                f"write class {_CLASS} with an execute(self, requests)",
                file=path,
            )


@rule("torch-module", "error")
def _defines_module(model: Model) -> Iterator[Problem]:
    for path in _sources(model, "pytorch"):
        tree = _tree(path)
        if isinstance(tree, ast.Module) and not any(isinstance(node, ast.ClassDef) for node in ast.walk(tree)):
            yield Problem(
                f"{path.name} of model '{model.name}' defines no class, so no torch.nn.Module",
                "write one subclass of torch.nn.Module whose constructor needs no argument",
                file=path,
            )


@rule("torch-module-imported", "warning")
def _imported_module(model: Model) -> Iterator[Problem]:
    for path in _sources(model, "pytorch"):
        tree = _tree(path)
        for node in ast.walk(tree) if isinstance(tree, ast.Module) else ():
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("torch.nn"):
                continue
            classes = [alias.name for alias in node.names if alias.name[:1].isupper() and alias.name != "Module"]
            if classes:
                yield Problem(
                    f"the server may take {classes[0]} for the model: it takes the first torch.nn.Module by name",
                    f"write torch.nn.{classes[0]} instead of importing it",
                    file=path,
                    line=node.lineno,
                )


def _names(body: list[ast.stmt]) -> set[str]:
    """What a module binds, whichever branch it takes; "*" where it takes all of another module."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        else:
            for field in ("body", "orelse", "finalbody", "handlers"):
                found |= _names(getattr(node, field, []))
    return found


RULES = (_syntax, _defines_class, _defines_module, _imported_module)
