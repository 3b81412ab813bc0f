"""What is installed, which compilers can build and run, what is missing and how to get it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import sys

from builder.cache.options import CacheOptions
from builder.cache.remote import RemoteStore
from builder.cache.store import LocalStore
from builder.compilers.registry import available_compilers, choose_compiler
from builder.errors import BuilderError, CacheError, ServingError
from builder.releases import Release, mismatches
from builder.serving.install import find_server

__all__ = ["examine"]

_EXTRAS = {"transformers": "hf", "torchvision": "torchvision", "timm": "timm"}

# Packages under which the libraries that a release holds are installed.
_BUILDERS = {
    "torch": ("torch",),
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
}

# Seconds for one request to a remote.
_PATIENCE = 3.0


def examine(release: Release | None = None) -> list[dict[str, str]]:
    """What is installed here, and whether it fits a release of the server.

    Args:
        release: that the models will be served with; None where it does not matter.
    Returns: one entry per check: `what`, `state` ("ok", "limited", "missing" or "broken") and `detail`.
    """
    return [
        _check("python", "ok", f"{platform.python_version()} at {sys.executable}"),
        *_torch(),
        *(_compiler(name) for name in available_compilers()),
        _chosen(),
        _server(),
        *(_release(release) if release is not None else ()),
        *(_extra(package, extra) for package, extra in _EXTRAS.items()),
        *_cache(),
    ]


def _check(what: str, state: str, detail: str) -> dict[str, str]:
    return {"what": what, "state": state, "detail": detail}


def _torch() -> list[dict[str, str]]:
    try:
        import torch
    except Exception as error:
        return [_check("torch", "broken", f"does not import: {error}")]
    found = [_check("torch", "ok", torch.__version__)]
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        name = torch.cuda.get_device_name()
        found.append(_check("GPU", "ok", f"{name}, compute capability {major}.{minor}, CUDA {torch.version.cuda}"))
    else:
        found.append(_check("GPU", "missing", "torch sees none; models are built for and served on the CPU"))
    return found


def _compiler(name: str) -> dict[str, str]:
    state = available_compilers()[name].availability()
    if not state.installed:
        return _check(f"compiler {name}", "missing", state.detail)
    if not state.can_build:
        return _check(f"compiler {name}", "broken", state.detail)
    if not state.can_run:
        return _check(f"compiler {name}", "limited", f"{state.version}; builds, does not run here: {state.detail}")
    return _check(f"compiler {name}", "ok", f"{state.version}; builds and runs here")


def _chosen() -> dict[str, str]:
    try:
        return _check("compiler auto", "ok", f"takes {choose_compiler('auto').name}")
    except BuilderError as error:
        return _check("compiler auto", "missing", f"{error.what}: {error.fix}")


def _server() -> dict[str, str]:
    try:
        server = find_server()
    except ServingError as error:
        return _check("Triton server", "broken", f"{error.what} {error.fix or ''}".strip())
    if server is None:
        return _check("Triton server", "missing", "pip install 'triton-repo-builder[serve]', or install tritonserver")
    return _check("Triton server", "ok", f"{server.origin}: {server.executable}")


def _release(release: Release) -> list[dict[str, str]]:
    what = f"Triton {release.name}"
    found = mismatches(release, _installed())
    if not found:
        return [_check(what, "ok", "what is installed here agrees with what is known of it")]
    return [_check(what, "limited", sentence) for sentence in found]


def _installed() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name, packages in _BUILDERS.items():
        for package in packages:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found.setdefault(name, importlib.metadata.version(package))
    return found


def _cache() -> list[dict[str, str]]:
    try:
        options = CacheOptions.resolve()
    except CacheError as error:
        return [_check("engine cache", "broken", f"{error.what}: {error.fix}")]
    signed = ", signed" if options.secret else ""
    detail = f"{options.directory}, at most {options.limit / (1 << 30):g} GiB{signed}"
    try:
        LocalStore(options.directory).prepare()
        found = [_check("engine cache", "ok", detail)]
    except OSError as error:
        found = [_check("engine cache", "limited", f"{detail}; cannot be written: {error.strerror or error}")]
    if options.remote is None:
        return found
    try:
        RemoteStore(options.remote, timeout=_PATIENCE).stored_keys()
    except CacheError as error:
        return [*found, _check("engine remote", "broken", f"{error.what} {error.fix or ''}".strip())]
    return [*found, _check("engine remote", "ok", f"{options.remote}{', read only' if options.readonly else ''}")]


def _extra(package: str, extra: str) -> dict[str, str]:
    try:
        return _check(package, "ok", importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return _check(package, "missing", f"optional: pip install 'triton-repo-builder[{extra}]'")
