"""Finding a server, with a made-up wheel and made-up executables; no server runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.errors import ServingError
from builder.serving import install
from builder.serving.install import ServerInstall, assemble, find_server, server_environment
from builder.serving.log import error_lines

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def _file(path: Path, text: str = "", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def _wheel(site: Path, *pythons: str) -> Path:
    """The layout of nvidia-pytriton. Importing it fails, so that nothing does."""
    server = site / "pytriton" / "tritonserver"
    _file(site / "pytriton" / "__init__.py", "raise AssertionError('imported')")
    _file(server / "bin" / "tritonserver")
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        _file(server / "backends" / "python" / name)
    for python in pythons:
        _file(server / "python_backend_stubs" / python / "triton_python_backend_stub")
    _file(site / "nvidia_pytriton.libs" / "libtritonserver.so")
    _file(site / "nvidia_pytriton-9.8.7.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: nvidia-pytriton\n")
    return server


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site directory with nothing in it, on a machine without servers."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(install, "_CONTAINER_SERVER", tmp_path / "no" / "tritonserver")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delitem(sys.modules, "pytriton", raising=False)
    return site


@pytest.fixture
def libpython(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library = _file(tmp_path / "libdir" / f"libpython{RUNNING}.so.1.0")
    monkeypatch.setattr(install.sysconfig, "get_config_var", {"LIBDIR": str(library.parent)}.get)
    return library


def test_without_any_server_there_is_none(site: Path) -> None:
    assert find_server() is None


def test_a_wheel_is_found_without_importing_it(site: Path, libpython: Path) -> None:
    server = _wheel(site, "3.8", RUNNING)
    found = find_server()
    assert found is not None
    assert found.executable == server / "bin" / "tritonserver"
    assert found.library_path == (site / "nvidia_pytriton.libs",)
    assert found.python_stub == server / "python_backend_stubs" / RUNNING / "triton_python_backend_stub"
    assert found.origin.startswith("nvidia-pytriton")
    assert "pytriton" not in sys.modules


def test_an_installed_server_comes_before_the_wheel(site: Path, tmp_path: Path) -> None:
    _wheel(site, RUNNING)
    real = _file(tmp_path / "opt" / "bin" / "tritonserver")
    _file(tmp_path / "opt" / "TRITON_VERSION", "2.99.0\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").symlink_to(real)
    assert find_server() == ServerInstall(real, None, (), "tritonserver on PATH", "2.99.0")


def test_a_container_server_is_found_off_path(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = _file(tmp_path / "container" / "bin" / "tritonserver")
    monkeypatch.setattr(install, "_CONTAINER_SERVER", server)
    assert find_server() == ServerInstall(server, None, (), str(server), None)


def test_a_wheel_without_a_stub_for_this_python_names_those_that_it_has(site: Path, libpython: Path) -> None:
    _wheel(site, "3.10", "3.9")
    with pytest.raises(ServingError, match=rf"no Python backend for Python {RUNNING}") as caught:
        find_server()
    assert "3.9, 3.10" in str(caught.value)


def test_a_python_without_its_shared_library_is_an_error_that_names_it(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wheel(site, RUNNING)
    monkeypatch.setattr(install, "_libpython", lambda: None)
    monkeypatch.setattr(install.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(ServingError, match=rf"libpython{RUNNING}\.so\.1\.0"):
        find_server()


def test_assembling_puts_the_stub_beside_the_backend_and_leaves_the_wheel_alone(
    site: Path, tmp_path: Path, libpython: Path
) -> None:
    server = _wheel(site, RUNNING)
    before = sorted(site.rglob("*"))
    found = find_server()
    assert found is not None
    directory = tmp_path / "private"
    directory.mkdir()
    ready = assemble(found, directory)
    assert ready.backend_directory is not None
    assert {p.name: p.resolve() for p in (ready.backend_directory / "python").iterdir()} == {
        "libtriton_python.so": server / "backends" / "python" / "libtriton_python.so",
        "triton_python_backend_utils.py": server / "backends" / "python" / "triton_python_backend_utils.py",
        "triton_python_backend_stub": server / "python_backend_stubs" / RUNNING / "triton_python_backend_stub",
    }
    assert (ready.library_path[0] / libpython.name).resolve() == libpython
    assert ready.library_path[1:] == found.library_path
    assert sorted(site.rglob("*")) == before


def test_assembling_a_complete_server_changes_nothing(tmp_path: Path) -> None:
    complete = ServerInstall(tmp_path / "tritonserver", None, (), "tritonserver on PATH", None)
    assert assemble(complete, tmp_path) is complete
    assert list(tmp_path.iterdir()) == []


def test_the_environment_puts_this_interpreter_and_the_libraries_first() -> None:
    server = ServerInstall(Path("/s/tritonserver"), None, (Path("/s/lib"), Path("/s/libs")), "test", None)
    environment = server_environment(server, {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/mine:", "HOME": "/home/me"})
    assert environment["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"
    assert environment["LD_LIBRARY_PATH"] == "/s/lib:/s/libs:/mine"
    assert environment["HOME"] == "/home/me"


def test_without_libraries_there_is_no_library_path() -> None:
    server = ServerInstall(Path("/s/tritonserver"), None, (), "test", None)
    assert "LD_LIBRARY_PATH" not in server_environment(server, {})


def test_the_client_imports_tritonclient_only_when_it_is_used() -> None:
    code = "import sys, builder.serving.client, builder.serving.server; print('tritonclient' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


LOG = """\
W1201 11:46:08.927618 11657 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
I1201 11:46:04.560911 11566 pb_stub.cc:366]  Failed to initialize Python stub: ModuleNotFoundError: No module named 'x'
E1201 11:46:04.862 11538 backend_model.cc:692] "ERROR: Failed to create instance: No module named 'x'\\n\\nAt:\\n  m.py(1)\\n"
E1201 11:46:04.863 11538 model_lifecycle.cc:642] "failed to load 'bad' version 1: Internal: No module named 'x'\\n\\nAt:\\n m"
I1201 11:46:04.863449 11538 model_lifecycle.cc:777] "failed to load 'bad'"
E1201 11:46:08.928 11657 model_repository_manager.cc:1460] "Poll failed for model directory 'add': failed to read"
error: creating server: Internal - failed to load all models
"""


def test_error_lines_keep_the_causes_without_time_stamps_and_tracebacks() -> None:
    assert error_lines(LOG.splitlines()) == [
        "failed to load 'bad' version 1: Internal: No module named 'x'",
        "Poll failed for model directory 'add': failed to read",
    ]
    assert error_lines(LOG.splitlines()[-1:]) == ["creating server: Internal - failed to load all models"]


def test_error_lines_of_a_log_without_errors_are_its_last_lines() -> None:
    assert error_lines(["", *(f"line {i}" for i in range(30)), ""]) == [f"line {i}" for i in range(20, 30)]
