"""A server process with its children: started in a group of its own, ended without leftovers."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from builder.errors import ServingError
from builder.serving.install import ServerInstall, assemble, server_environment
from builder.serving.log import LogReader

__all__ = ["EXIT_SECONDS", "ServerProcess"]

# What the server gives requests in flight and open connections before it ends without them.
EXIT_SECONDS = 10
_SHARED_MEMORY = Path("/dev/shm")

# The kernel signals a process whose parent died only if the process itself asked for it, and
# preexec_fn is not safe in a process with threads; so a small Python asks and becomes the server.
_LAUNCHER = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
if int(parent):
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != int(parent):
        sys.exit("the parent ended")
os.execv(command[0], command)
"""


class ServerProcess:
    """A running `tritonserver`, the stubs of its Python models, and what they leave behind.

    Args:
        install: the server to run.
        arguments: of `tritonserver`, without those for backends.
        log_file, log_to_stderr: where its log goes besides memory.
    Raises:
        ServingError: when the executable does not start or the log file cannot be written.
    """

    def __init__(
        self,
        install: ServerInstall,
        arguments: Sequence[str],
        *,
        log_file: Path | None = None,
        log_to_stderr: bool = False,
    ) -> None:
        self.id = f"triton-repo-{secrets.token_hex(6)}"
        self._shared_memory_prefix = self.id.replace("-", "_") + "_"
        log = _opened(log_file) if log_file else None
        self._directory = tempfile.TemporaryDirectory(prefix=self.id + "-")
        try:
            self._popen = self._start(install, arguments)
        except OSError as error:
            self._directory.cleanup()
            raise ServingError(f"the server cannot be started: {error}", where=str(install.executable)) from None
        assert self._popen.stdout is not None
        self.log = LogReader(self._popen.stdout, file=log, to_stderr=log_to_stderr)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the server itself ends.

        Raises:
            subprocess.TimeoutExpired: when it does not.
        """
        return self._popen.wait(timeout)

    def stop(self) -> None:
        """End the server and its stubs, and remove their shared memory and private files."""
        try:
            if self._popen.poll() is None:
                self._popen.send_signal(signal.SIGTERM)
                # The server counts its seconds from when it has closed its ports.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._popen.wait(EXIT_SECONDS + 5)
        finally:
            self._clean()

    def _start(self, install: ServerInstall, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        install = assemble(install, Path(self._directory.name))
        command = [
            str(install.executable),
            # Before `arguments`, which may set another.
            f"--id={self.id}",
            f"--exit-timeout-secs={EXIT_SECONDS}",
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory_prefix}",
            *([f"--backend-directory={install.backend_directory}"] if install.backend_directory else []),
            *arguments,
        ]
        # The kernel means the thread that started the process; other threads may end earlier.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(parent), *command],
            env=server_environment(install, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _clean(self) -> None:
        self._kill_group()
        self._popen.wait()
        self.log.close()
        for segment in _SHARED_MEMORY.glob(self._shared_memory_prefix + "*"):
            segment.unlink(missing_ok=True)
        self._directory.cleanup()

    def _kill_group(self) -> None:
        """Kill whoever is left in the group, and wait until they are gone."""
        deadline = time.monotonic() + 5
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self._popen.pid, signal.SIGKILL)
                self._popen.poll()
                time.sleep(0.01)


def _opened(log_file: Path) -> IO[bytes]:
    try:
        return log_file.open("wb")
    except OSError as error:
        raise ServingError(f"the server's log cannot be written: {error.strerror}", where=str(log_file)) from None
