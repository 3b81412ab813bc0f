"""Find compilers by entry point, and choose one."""

from __future__ import annotations

import importlib.metadata

from builder.compilers.base import Compiler
from builder.errors import CompileError, SpecError, did_you_mean

__all__ = ["GROUP", "available_compilers", "choose_compiler"]

GROUP = "triton_repo_builder.compilers"

# `auto` takes the first that can build here and run here.
_PREFERENCE = ("tensorrt", "tensorrt_rtx", "onnxruntime", "inductor")


def _registered() -> dict[str, importlib.metadata.EntryPoint]:
    """Entry points by name, in the order in which `auto` prefers them."""
    found = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    rank = {name: i for i, name in enumerate(_PREFERENCE)}
    return dict(sorted(found.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))


def _loaded(entry: importlib.metadata.EntryPoint) -> Compiler:
    compiler: Compiler = entry.load()()
    return compiler


def available_compilers() -> dict[str, Compiler]:
    """Every registered compiler by name, in the order in which `auto` prefers them."""
    return {name: _loaded(entry) for name, entry in _registered().items()}


def choose_compiler(name: str, device: str = "auto") -> Compiler:
    """The compiler of a name, or for "auto" the best that can build and run here.

    Args:
        device: that its engines must be for: "cpu", "cuda", or "auto" for any.
    Raises:
        SpecError: when no compiler has the name, or its engines are not for the device.
        CompileError: when it is not installed; for "auto" when none can build and run here.
    """
    # One at a time: what a compiler imports can take longer than anything else that is done with its name.
    registered = _registered()
    if name == "auto":
        details = []
        for entry in registered.values():
            compiler = _loaded(entry)
            state = compiler.availability()
            if state.can_build and state.can_run and device in ("auto", *compiler.devices):
                return compiler
            details.append(f"{compiler.name}: {state.detail}")
        raise CompileError(
            f"no engine compiler can build and run here{'' if device == 'auto' else f' for {device}'}",
            fix="\n".join(details),
        )
    if name not in registered:
        raise SpecError(
            f"there is no compiler {name!r}",
            where="compiler",
            fix=f"{did_you_mean(name, registered)}use auto or one of {', '.join(registered)}",
        )
    compiler = _loaded(registered[name])
    state = compiler.availability()
    if not state.installed:
        raise CompileError(f"the compiler {name} is not installed", fix=state.detail)
    if device not in ("auto", *compiler.devices):
        raise SpecError(
            f"engines of {name} are not for {device}",
            where="settings.device",
            fix=f"use {' or '.join(('auto', *compiler.devices))}, or another compiler",
        )
    return compiler
