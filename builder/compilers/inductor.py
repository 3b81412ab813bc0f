"""AOTInductor: PyTorch's own ahead-of-time compiler, for the CPU and for CUDA. It takes every operator that PyTorch has.

Its engine is a `.pt2` package with native code, valid for the torch that made it, on the kind of
processor that it was made on. Weights lie in a file of the package, and the engine in the cache is a
package without it: compiling never sees the model's weights, so it can fold none of them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from builder.compilers.aoti_package import WEIGHTS_LIST, WeightsFile, fill_package, strip_package
from builder.compilers.base import Availability, BuildContext, CompiledArtifact, Fingerprint, check_precision
from builder.errors import CompileError, SpecError
from builder.lowering.canonical_program import CanonicalProgram, canonical_program
from builder.lowering.precision import in_precision
from builder.partition.assign import is_compute
from builder.partition.plan import Segment
from builder.recurrence import RECURRENT
from builder.settings import Settings
from builder.shape_env import SizesNarrowed, sizes_kept
from builder.tracing import quiet_torch
from builder.types import DTYPES

__all__ = ["InductorCompiler"]

_PACKAGE_FILE = "model.pt2"
_INSTALL = "install a C++ compiler, for example the packages g++ or clang, or name one in the variable CXX"

# A package without any constant does not load with them: AOTInductor maps a file of no bytes.
_WEIGHTS_APART: dict[str, Any] = {
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.package_constants_on_disk_format": "binary_blob",
}

# Parts of the names of inductor's settings that say where it writes and what it tells, not what it generates.
_IRRELEVANT = ("log", "debug", "path", "trace", "cache", "progress", "worker", "testing", "save_", "verbose", "dir")

# What the compiler itself writes down in its settings while it works.
_STATE = frozenset({"aot_inductor.metadata", "aot_inductor.serialized_in_spec", "aot_inductor.serialized_out_spec"})


class InductorCompiler:
    """`torch._inductor` behind the compiler protocol."""

    name: ClassVar[str] = "inductor"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def availability(self) -> Availability:
        """torch is always there; a C++ compiler may not be."""
        found = _cxx() is not None
        return Availability(True, found, True, torch.__version__, "" if found else _INSTALL)

    def target(self, settings: Settings) -> Mapping[str, Any]:
        """The machine's instruction set, or the GPU's compute capability, and the torch that compiles."""
        target = {
            "torch": torch.__version__,
            "machine": platform.machine(),
            "cpu": _cpu_capability(),
            "instructions": _instructions(_cxx()),
            "cxx": _cxx_version(_cxx()),
        }
        if settings.device == "cuda" and not torch.cuda.is_available():
            raise CompileError(
                "there is no GPU here that torch can use", where="settings.device", fix="use cpu or auto"
            )
        if settings.device != "cpu" and torch.cuda.is_available():
            return {
                "device": "cuda",
                **target,
                "cuda": str(torch.version.cuda),
                "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())),
            }
        return {"device": "cpu", **target}

    def session(self, context: BuildContext) -> _Session:
        """Start a build. Without a C++ compiler it leaves every operator to PyTorch.

        Raises:
            SpecError: for a precision that it does not have, or a search for kernels on the CPU.
        """
        check_precision(self.name, context.settings, ("fp32", "fp16", "bf16"))
        device = str(self.target(context.settings)["device"])
        if context.settings.inductor.max_autotune and device == "cpu":
            raise SpecError(
                "max_autotune is for a GPU: on the CPU, the kernels that it would find keep weights in a form of their own",
                where="settings.inductor.max_autotune",
                fix="leave it out",
            )
        refusal = "" if _cxx() else f"inductor needs a C++ compiler, and there is none: {_INSTALL}"
        return _Session(context, device, refusal)


def _cxx() -> str | None:
    """The C++ compiler that inductor calls, as it looks for it."""
    from torch._inductor import config

    named = config.cpp.cxx if isinstance(config.cpp.cxx, list | tuple) else [config.cpp.cxx]
    return next((path for c in (os.environ.get("CXX"), *named) if c and (path := shutil.which(c))), None)


@functools.cache
def _cxx_version(cxx: str | None) -> str:
    return _said(cxx, "--version").partition("\n")[0]


@functools.cache
def _instructions(cxx: str | None) -> str:
    """What the C++ compiler takes this processor for: inductor has it compile for exactly that (-march=native).

    A digest of the instruction sets that it would use, which it tells as macros; a processor that lacks
    one of them would crash.
    """
    native = set(_said(cxx, "-march=native", "-dM", "-E", "-x", "c++", os.devnull).splitlines())
    plain = set(_said(cxx, "-dM", "-E", "-x", "c++", os.devnull).splitlines())
    added = sorted(line.split()[1] for line in native - plain if len(line.split()) > 1)
    # In lower case it names the processor's family, which decides no more than the order of instructions.
    return hashlib.sha256(" ".join(name for name in added if name.isupper()).encode()).hexdigest()[:16]


def _said(*command: str | None) -> str:
    if command[0] is None:
        return ""
    try:
        return subprocess.run([c or "" for c in command], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu_capability() -> str:
    return torch.backends.cpu.get_cpu_capability()


class _Session:
    def __init__(self, context: BuildContext, device: str, refusal: str) -> None:
        self._context = context
        self._device = device
        self._refusal = refusal
        self._options = _options(context.settings)
        self._canonical: dict[tuple[str, ...], CanonicalProgram] = {}

    def prepare(self, program: ExportedProgram) -> ExportedProgram:
        """AOTInductor decomposes by itself, and knows best how."""
        return program

    def screen(self, program: ExportedProgram) -> Mapping[str, str]:
        """It takes every operator but recurrent layers, if it can compile at all."""
        operators = [n for n in program.graph.nodes if is_compute(n)]
        if self._refusal:
            return {n.name: self._refusal for n in operators}
        reason = "inductor would unroll it, step by step, for one length of the sequence; PyTorch runs it whole"
        return {n.name: reason for n in operators if n.target in RECURRENT}

    def examine(self, segment: Segment) -> Mapping[str, str]:
        """Nodes at a boundary that no request can carry; only a build tells more."""
        refused: dict[str, str] = {}
        for spec, node in zip(segment.outputs, segment.program.graph.output_node().all_input_nodes, strict=True):
            if spec.dtype not in DTYPES:
                refused[node.name] = f"a {spec.dtype} tensor cannot cross a boundary, and {spec.name!r} would"
        return refused

    def canonical(self, segment: Segment) -> CanonicalProgram:
        """The segment without names; made on the first call."""
        if segment.nodes not in self._canonical:
            self._canonical[segment.nodes] = canonical_program(in_precision(segment, self._context.settings.precision))
        return self._canonical[segment.nodes]

    def fingerprint(self, segment: Segment) -> Fingerprint:
        """The program by its canonical text, and every setting of inductor that decides what it generates."""
        canonical = self.canonical(segment)
        settings, unsure = _settings(self._options)
        return Fingerprint(
            components={
                "ir": "torch.export",
                "graph": _sha256(canonical.text),
                "settings": _sha256(json.dumps(settings, sort_keys=True)),
            },
            text=canonical.text,
            details={"inductor": settings},
            refit="weights",
            weights=canonical.weights,
            fixed=canonical.fixed,
            unsure=(*canonical.unsure, *unsure),
        )

    def compile(self, segment: Segment, directory: Path) -> CompiledArtifact:
        """Compile and package, with made-up weights that are then taken out.

        Raises:
            CompileError: when AOTInductor fails, or would take less than the declared ranges.
        """
        import torch._inductor

        canonical = self.canonical(segment)
        made_up = _made_up(canonical.tensors)
        program = canonical.program(made_up)
        tensors = canonical.named(made_up)
        options = {**self._options, **(_WEIGHTS_APART if tensors else {})}
        full = Path(tempfile.mkdtemp(dir=self._context.work)) / _PACKAGE_FILE
        try:
            with quiet_torch(), torch.no_grad(), sizes_kept(program):
                if self._device != "cpu":
                    program = move_to_device_pass(program, self._device)
                program._example_inputs = (_examples(segment, self._device), {})
                torch._inductor.aoti_compile_and_package(program, package_path=str(full), inductor_configs=options)
        except SizesNarrowed as error:
            # A package checks no sizes by itself, so one that was compiled for fewer would answer wrongly.
            raise CompileError(
                f"AOTInductor would take less than the declared ranges: {error}", where=segment.name
            ) from None
        except Exception as error:
            text = " ".join(str(error).split())
            raise CompileError(f"AOTInductor: {type(error).__name__}: {text[:400]}", where=segment.name) from error
        strip_package(full, directory / _PACKAGE_FILE, tensors).write(directory / WEIGHTS_LIST)
        shutil.rmtree(full.parent)
        return CompiledArtifact(_PACKAGE_FILE)

    def refit(self, segment: Segment, engine: Path, directory: Path) -> CompiledArtifact:
        canonical = self.canonical(segment)
        contents = WeightsFile.read(engine / WEIGHTS_LIST)
        fill_package(engine / _PACKAGE_FILE, directory / _PACKAGE_FILE, contents, canonical.named(canonical.tensors))
        return CompiledArtifact(_PACKAGE_FILE)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _options(settings: Settings) -> dict[str, Any]:
    """What inductor is told; each changes the code that is generated, so they are part of the key."""
    from torch._inductor import config

    backends = [name.strip() for name in config.max_autotune_gemm_backends.split(",")]
    return {
        # Small tensors would be written into the code.
        "always_keep_tensor_constants": True,
        # The number of threads of the machine that compiles would be, too.
        "cpp.dynamic_threads": True,
        # Its kernels take packed weights, which it makes of those that it compiles with.
        "max_autotune_gemm_backends": ",".join(name for name in backends if name.upper() != "CPP"),
        **({"max_autotune": True} if settings.inductor.max_autotune else {}),
    }


def _settings(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Settings of inductor and torch that can change generated code, and the names of those that are code themselves."""
    from torch._inductor import config

    found: dict[str, Any] = {
        "torch.float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }
    unsure = []
    for name, value in {
        **config.save_config_portable(ignore_private_configs=True),
        **options,
        **_WEIGHTS_APART,
    }.items():
        if name in _STATE or any(part in name.lower() for part in _IRRELEVANT):
            continue
        text = json.dumps(value, sort_keys=True, default=lambda v: f"<{type(v).__name__}>")
        if callable(value) or "<function" in text or "<method" in text:
            unsure.append(f"inductor's setting {name}, which is code")
        found[name] = json.loads(text)
    return found, unsure


def _made_up(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Distinct random values of the same dtypes, shapes and strides."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for tensor in tensors:
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        made.append(empty.normal_(generator=generator))
    return made


def _examples(segment: Segment, device: str) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.zeros(tensor.shape("opt"), dtype=getattr(torch, tensor.dtype), device=device) for tensor in segment.inputs
    )
