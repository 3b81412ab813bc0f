"""Run the builder: in a thread of its own, streaming to a file, until it is done, too late or interrupted."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import torch

from builder.compilers.tensorrt.flavour import Flavour
from builder.compilers.tensorrt.logger import said
from builder.compilers.tensorrt.network import ParsedNetwork
from builder.errors import CompileError
from builder.progress import Progress

__all__ = ["build_plan"]

# Seconds between two looks at Ctrl-C.
_POLL = 0.1


def build_plan(
    trt: Any,
    flavour: Flavour,
    parsed: ParsedNetwork,
    config: Any,
    path: Path,
    *,
    timeout: float | None,
    progress: Progress,
) -> None:
    """Build a network and write the plan.

    Args:
        timeout: seconds, after which it is given up.
        progress: told which of TensorRT's phases is running.
    Raises:
        CompileError: when the build fails, in the logger's words, or takes too long.
    """
    parsed.logger.errors.clear()
    monitor = _monitor(trt)
    config.progress_monitor = monitor
    result: list[bool | BaseException] = []

    # A new thread begins with the first GPU.
    gpu = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run() -> None:
        try:
            if gpu is not None:
                torch.cuda.set_device(gpu)
            with path.open("wb") as file:
                result.append(_serialised(trt, parsed, config, file))
        except BaseException as error:  # Raised again in the caller's thread.
            result.append(error)
        finally:
            done.set()

    # Not the thread's own word: a join that Ctrl-C interrupts takes a running thread for one that has ended.
    done = threading.Event()
    worker = threading.Thread(target=run, name="tensorrt-build")
    started = time.monotonic()
    try:
        worker.start()
        told = ""
        while not done.wait(_POLL):
            if monitor.phase != told:
                told = monitor.phase
                progress.step(f"{flavour.library}: {told}", 0, 0)
            if timeout is not None and time.monotonic() - started > timeout:
                monitor.cancelled = True
    except BaseException:
        monitor.cancelled = True
        _wait_for(done, worker)
        path.unlink(missing_ok=True)
        raise
    worker.join()
    outcome = result[0]
    if isinstance(outcome, BaseException):
        raise outcome
    if monitor.cancelled and not outcome:
        raise CompileError(
            f"{flavour.library}: the build took longer than {timeout:g} s and was given up",
            fix="raise build_timeout under [settings.tensorrt]",
        )
    if not outcome:
        raise CompileError(said(flavour.library, parsed.logger, "the build failed without a message"))


def _wait_for(done: threading.Event, worker: threading.Thread) -> None:
    """However often Ctrl-C comes: the builder must stop before what it works on goes away, and before Python does."""
    while worker.ident is not None and not done.is_set():
        with contextlib.suppress(KeyboardInterrupt):
            done.wait()


def _serialised(trt: Any, parsed: ParsedNetwork, config: Any, file: Any) -> bool:
    """Whether the build came to an end; then the plan is in the file. Streaming keeps one copy of the weights less in memory."""

    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)

        def write(self, data: Any) -> int:
            return int(file.write(data))

    # TensorRT keeps no reference of its own.
    writer = Writer()
    return bool(parsed.builder.build_serialized_network_to_stream(parsed.network, config, writer))


def _monitor(trt: Any) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Knows the phase that runs, and stops the build at its next step once `cancelled` is set."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.phase = ""
            self.cancelled = False

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            self.phase = name

        def step_complete(self, name: str, step: int) -> bool:
            return not self.cancelled

        def phase_finish(self, name: str) -> None: ...

    return Monitor()
