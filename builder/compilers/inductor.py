"""AOTInductor: PyTorch's own ahead-of-time compiler, for the CPU and for CUDA. It takes every operator that PyTorch has.

Its engine is a `.pt2` package with native code and weights. It is valid for the torch that made it,
on the kind of processor that it was made on.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from builder.compilers.base import Availability, CompiledArtifact
from builder.errors import CompileError
from builder.files import file_digest
from builder.lowering.program import save_program
from builder.partition.plan import Segment
from builder.tracing import quiet_torch
from builder.types import DTYPES

__all__ = ["InductorCompiler"]

_PACKAGE_FILE = "model.pt2"
_INSTALL = "install a C++ compiler, for example the packages g++ or clang, or name one in the variable CXX"


class InductorCompiler:
    """`torch._inductor` behind the compiler protocol. Weights are part of the package."""

    name: ClassVar[str] = "inductor"

    def availability(self) -> Availability:
        """torch is always there; a C++ compiler may not be."""
        found = _cxx() is not None
        return Availability(True, found, True, torch.__version__, "" if found else _INSTALL)

    def target(self) -> Mapping[str, Any]:
        """The machine's instruction set, or the GPU's compute capability, and the torch that compiles."""
        target = {"torch": torch.__version__, "machine": platform.machine(), "cpu": _cpu_capability()}
        if torch.cuda.is_available():
            return {
                "device": "cuda",
                **target,
                "cuda": str(torch.version.cuda),
                "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())),
            }
        return {"device": "cpu", **target}

    def session(self, work: Path) -> _Session:
        """Start a build.

        Raises:
            CompileError: when there is no C++ compiler.
        """
        if _cxx() is None:
            raise CompileError("the compiler inductor needs a C++ compiler, and there is none", fix=_INSTALL)
        return _Session(work, str(self.target()["device"]))


def _cxx() -> str | None:
    named = os.environ.get("CXX")
    return next((path for c in (named, "g++", "clang++", "c++") if c and (path := shutil.which(c))), None)


def _cpu_capability() -> str:
    return torch.backends.cpu.get_cpu_capability()


class _Session:
    def __init__(self, work: Path, device: str) -> None:
        self._work = work
        self._device = device

    def prepare(self, program: ExportedProgram) -> ExportedProgram:
        """AOTInductor decomposes by itself, and knows best how."""
        return program

    def screen(self, program: ExportedProgram) -> Mapping[str, str]:
        """It takes every operator."""
        return {}

    def examine(self, segment: Segment) -> Mapping[str, str]:
        """Nodes at a boundary that no request can carry; only a build tells more."""
        refused: dict[str, str] = {}
        for spec, node in zip(segment.outputs, segment.program.graph.output_node().all_input_nodes, strict=True):
            if spec.dtype not in DTYPES:
                refused[node.name] = f"a {spec.dtype} tensor cannot cross a boundary, and {spec.name!r} would"
        return refused

    def fingerprint(self, segment: Segment) -> Mapping[str, Any]:
        """Digest of the program with its weights, without traces of how it was made."""
        path = self._work / f"{hashlib.sha256(repr(segment.nodes).encode()).hexdigest()[:16]}.pt2"
        save_program(segment, path)
        return {"ir": "torch.export", "program": file_digest(path)}

    def compile(self, segment: Segment, directory: Path) -> CompiledArtifact:
        """Compile and package.

        Raises:
            CompileError: when AOTInductor fails, or would take less than the declared ranges.
        """
        import torch._inductor

        program = segment.program
        before = _bounds(program)
        try:
            with quiet_torch():
                if self._device != "cpu":
                    program = move_to_device_pass(program, self._device)
                program._example_inputs = (_examples(segment, self._device), {})
                torch._inductor.aoti_compile_and_package(program, package_path=str(directory / _PACKAGE_FILE))
        except Exception as error:
            text = " ".join(str(error).split())
            raise CompileError(f"AOTInductor: {type(error).__name__}: {text[:400]}", where=segment.name) from error
        narrowed = [f"{name} to {now}" for name, now in _bounds(program).items() if before.get(name, now) != now]
        if narrowed:
            raise CompileError(f"AOTInductor narrowed the size {', '.join(narrowed)}", where=segment.name)
        return CompiledArtifact(_PACKAGE_FILE)


def _examples(segment: Segment, device: str) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.zeros(tensor.shape("opt"), dtype=getattr(torch, tensor.dtype), device=device) for tensor in segment.inputs
    )


def _bounds(program: ExportedProgram) -> dict[str, str]:
    """What the tracer knows of each symbolic size: its bounds, or what it was replaced by.

    An AOTInductor package checks no sizes by itself, so one that was compiled for fewer would answer wrongly.
    """
    found: dict[str, str] = {}
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                environment = size.node.shape_env
                for symbol in size.node._expr.free_symbols:
                    replaced = environment.replacements.get(symbol)
                    found[str(symbol)] = str(environment.bound_sympy(symbol) if replaced is None else replaced)
    return found
