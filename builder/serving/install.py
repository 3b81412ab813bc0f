"""Find a Triton server: an installed one, or the one inside the `nvidia-pytriton` wheel."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import ServingError

__all__ = ["ServerInstall", "assemble", "find_server", "server_environment"]

_CONTAINER_SERVER = Path("/opt/tritonserver/bin/tritonserver")
_STUB = "triton_python_backend_stub"
_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")


@dataclass(frozen=True, slots=True)
class ServerInstall:
    """A Triton server on this machine.

    Args:
        executable: `tritonserver`.
        backend_directory: for `--backend-directory`; None leaves it to the server.
        library_path: directories for `LD_LIBRARY_PATH`.
        origin: where it comes from ("tritonserver on PATH", "nvidia-pytriton 0.7.0").
        version: of Triton ("2.54.0"), where a file says so.
        python_stub: the Python backend's stub for the running Python, where it lies outside
            `backend_directory` and `assemble` has to bring the two together.
    """

    executable: Path
    backend_directory: Path | None
    library_path: tuple[Path, ...]
    origin: str
    version: str | None
    python_stub: Path | None = None


def find_server() -> ServerInstall | None:
    """An installed `tritonserver`, else the one in the `nvidia-pytriton` wheel, else None.

    Raises:
        ServingError: when the wheel is the only server and does not support the running Python.
    """
    return _installed_server() or _wheel_server()


def assemble(install: ServerInstall, directory: Path) -> ServerInstall:
    """The same server with a complete backend directory, made of links in `directory`.

    The wheel keeps one stub per Python version away from its backend, while the server looks for
    the two side by side. An install that is complete already comes back as it is.
    """
    if install.python_stub is None or install.backend_directory is None:
        return install
    backend = directory / "backends" / "python"
    backend.mkdir(parents=True)
    for name in _BACKEND_FILES:
        (backend / name).symlink_to(install.backend_directory / "python" / name)
    (backend / _STUB).symlink_to(install.python_stub)
    libraries = directory / "lib"
    libraries.mkdir()
    if library := _libpython():
        # A link to the one file: the interpreter's whole library directory on LD_LIBRARY_PATH
        # would also put its other libraries (conda's, say) before those that the server wants.
        (libraries / library.name).symlink_to(library)
    return replace(
        install,
        backend_directory=backend.parent,
        library_path=(libraries, *install.library_path),
        python_stub=None,
    )


def server_environment(install: ServerInstall, base: Mapping[str, str]) -> dict[str, str]:
    """Environment variables under which the server's Python models see this interpreter's packages.

    The stub embeds Python in its isolated configuration: PYTHONPATH, every other PYTHON* variable and
    the user's site-packages mean nothing to it. What is left is that Python looks for `python3` on
    PATH, and takes the virtual environment, with its `.pth` files, from the `pyvenv.cfg` beside it.

    Source: `sys.flags` inside a stub of nvidia-pytriton 0.7.0; "Isolated Configuration" and "Python
    Path Configuration" in the documentation of Python's C API.
    """
    environment = dict(base)
    _prepend(environment, "PATH", Path(sys.executable).parent)
    _prepend(environment, "LD_LIBRARY_PATH", *install.library_path)
    return environment


def _installed_server() -> ServerInstall | None:
    if on_path := shutil.which("tritonserver"):
        executable, origin = Path(on_path).resolve(), "tritonserver on PATH"
    elif os.access(_CONTAINER_SERVER, os.X_OK):
        executable, origin = _CONTAINER_SERVER, str(_CONTAINER_SERVER)
    else:
        return None
    # Triton's containers have the version in a file beside bin/.
    version = executable.parents[1] / "TRITON_VERSION"
    return ServerInstall(executable, None, (), origin, version.read_text().strip() if version.is_file() else None)


def _wheel_server() -> ServerInstall | None:
    package = _package_directory("pytriton")
    if package is None:
        return None
    server = package / "tritonserver"
    executable = server / "bin" / "tritonserver"
    if not executable.is_file():
        return None
    libraries = package.parent / "nvidia_pytriton.libs"
    return ServerInstall(
        executable,
        server / "backends",
        (libraries,),
        f"nvidia-pytriton {_distribution_version('nvidia-pytriton')}",
        None,
        _python_stub(server / "python_backend_stubs", libraries),
    )


def _package_directory(name: str) -> Path | None:
    # find_spec of a top-level package does not import it, which would be slow and change logging.
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _distribution_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def _python_stub(stubs: Path, libraries: Path) -> Path:
    stub = stubs / _python_version() / _STUB
    if not stub.is_file():
        found = sorted((p.parent.name for p in stubs.glob(f"*/{_STUB}")), key=_version_key)
        raise ServingError(
            f"the Triton server in nvidia-pytriton has no Python backend for Python {_python_version()}",
            where=str(stubs),
            fix=f"use one of the Pythons that it has ({', '.join(found) or 'none'}), or install tritonserver",
        )
    if _libpython() is None and not _loader_finds_libpython(libraries):
        raise ServingError(
            f"the Triton server in nvidia-pytriton needs {_libpython_name()}, which this Python does not come with",
            where=sys.executable,
            fix=f"install it (Debian, Ubuntu: apt install libpython{_python_version()}), "
            "or use a Python built with --enable-shared, or install tritonserver",
        )
    return stub


def _libpython() -> Path | None:
    """The shared library of the running interpreter, by its full path."""
    directories = (sysconfig.get_config_var("LIBDIR"), str(Path(sys.base_prefix) / "lib"))
    for directory in filter(None, directories):
        library = Path(directory) / _libpython_name()
        if library.is_file():
            return library
    return None


def _loader_finds_libpython(bundled: Path) -> bool:
    # The wheel brings its own libpython 3.13, under a name with a hash in it.
    if any(bundled.glob(f"libpython3-*.{sys.version_info.minor}.so*")):
        return True
    return ctypes.util.find_library(f"python{_python_version()}") is not None


def _libpython_name() -> str:
    return f"libpython{_python_version()}.so.1.0"


def _python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _prepend(environment: dict[str, str], variable: str, *paths: Path) -> None:
    # An empty entry would mean the working directory.
    entries = [*map(str, paths), *filter(None, environment.get(variable, "").split(os.pathsep))]
    if entries:
        environment[variable] = os.pathsep.join(entries)
