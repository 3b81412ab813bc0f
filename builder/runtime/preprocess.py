"""What a user's own function makes of a request before the model sees it: texts to token ids, files to images."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from builder.errors import RequestError, SpecError
from builder.runtime.values import Value

__all__ = ["Preprocessor"]


class Preprocessor:
    """A function in a file of its own, which may read files beside it.

    Args:
        path: of the Python file.
        function: its name. It takes arrays by keyword, BYTES as arrays of `bytes` objects, and returns a dict of arrays:
            inputs of the model.
    Raises:
        SpecError: when the file cannot be imported or has no such function.
    """

    def __init__(self, path: Path, function: str) -> None:
        module = _imported(path)
        found = getattr(module, function, None)
        if not callable(found):
            raise SpecError(f"{path.name} has no function {function!r}", where="[preprocess].source")
        self._function: Callable[..., Any] = found
        self._name = f"{path.name}:{function}"

    def __call__(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Value]:
        """The inputs of the model that the function makes.

        Raises:
            RequestError: when the function raises, or returns no dict.
        """
        try:
            given = self._function(**arrays)
        except Exception as error:
            # It is somebody else's code, and no request may end the server.
            text = " ".join(str(error).split()) or "no message"
            raise RequestError(f"{self._name} fails for this request: {type(error).__name__}: {text}") from error
        if not isinstance(given, Mapping):
            raise RequestError(f"{self._name} returns a {type(given).__name__}, not a dict of arrays")
        return {str(name): value if hasattr(value, "shape") else np.asarray(value) for name, value in given.items()}


def _imported(path: Path) -> ModuleType:
    # Each version has a module of its own.
    name = f"triton_repo_preprocess_{abs(hash(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is no Python file", where="[preprocess].source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # A repository may be read-only, and its files have digests.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SpecError(
            f"{path.name} cannot be imported: {type(error).__name__}: {error}",
            where="[preprocess].source",
            fix="install what it imports where the model is built and served",
        ) from error
    finally:
        sys.dont_write_bytecode = writes
    return module
