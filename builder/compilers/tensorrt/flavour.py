"""The two flavours of TensorRT: how each is called, found and imported. What else differs is asked of the objects themselves."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any

from builder.errors import CompileError

__all__ = ["TENSORRT", "TENSORRT_RTX", "Flavour"]


@dataclass(frozen=True, slots=True)
class Flavour:
    """One of them.

    Args:
        name: of the compiler and of the Python module.
        library: its name in messages.
        install: the command that gets it.
        minimum: the oldest release that has what is needed here, for messages.
    """

    name: str
    library: str
    install: str
    minimum: str

    @property
    def is_rtx(self) -> bool:
        """TensorRT-RTX compiles ahead of time without a GPU, and finishes the engine where it runs."""
        return self.name == "tensorrt_rtx"

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.name) is not None

    @property
    def version(self) -> str:
        """All four numbers of the library, or, as long as nothing has imported it, of the package."""
        loaded = getattr(sys.modules.get(self.name), "__version__", None)
        if loaded is not None:
            return str(loaded)
        for package in (self.name, f"{self.name}-cu13", f"{self.name}-cu12", f"{self.name}_bindings"):
            try:
                return importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return "unknown"

    def load(self) -> Any:
        """The module.

        Raises:
            CompileError: when it is not installed, does not import, or is too old.
        """
        if not self.installed:
            raise CompileError(f"the compiler {self.name} is not installed", fix=self.install)
        try:
            trt = importlib.import_module(self.name)
        except Exception as error:
            # Libraries of a wheel that was installed by halves, or of another CUDA.
            raise CompileError(f"{self.name} is installed but does not import: {error}", fix=self.install) from error
        if not hasattr(trt.OnnxParser, "load_initializer") or not hasattr(trt.SerializationFlag, "INCLUDE_REFIT"):
            raise CompileError(
                f"{self.library} {self.version} is too old: {self.minimum} or later is needed", fix=self.install
            )
        return trt


TENSORRT = Flavour("tensorrt", "TensorRT", "pip install 'triton-repo-builder[tensorrt]'", "10.14")
TENSORRT_RTX = Flavour("tensorrt_rtx", "TensorRT-RTX", "pip install 'triton-repo-builder[tensorrt-rtx]'", "1.4")
