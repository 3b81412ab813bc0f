"""Read a server's log while it runs, and find what went wrong in it."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections import deque
from collections.abc import Iterable
from typing import IO

__all__ = ["LogReader", "error_lines"]

_KEPT_LINES = 5000
_LAST_LINES = 10
_LONGEST_REASON = 1000

_ERROR = re.compile(r"^[EF]\d{4} [\d:.]+ \d+ \S+:\d+\] +(?P<text>.*)$")
_PROTOBUF = re.compile(r"^\[libprotobuf ERROR [^\]]*\] (?P<text>.*)$")
_FATAL = re.compile(r"^(?:error|\S*tritonserver): (?P<text>.*)$")
_CAUSE = re.compile(r"failed to load|Poll failed|failed to start|Error parsing text-format")


class LogReader:
    """Drains a server's output in a thread, so that the server never blocks on a full pipe.

    Args:
        stream: the server's standard output and error, in bytes.
        file: also written there; closed at the end.
        to_stderr: also written to this process's standard error.
    """

    def __init__(self, stream: IO[bytes], *, file: IO[bytes] | None = None, to_stderr: bool = False) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._stream = stream
        self._file = file
        self._to_stderr = to_stderr
        self._thread = threading.Thread(target=self._drain, name="triton-log", daemon=True)
        self._thread.start()

    @property
    def lines(self) -> list[str]:
        """The last lines that the server wrote."""
        return list(self._lines)

    def close(self, timeout: float = 5.0) -> None:
        """Wait for the rest of the log; the server and its children must have ended."""
        self._thread.join(timeout)

    def _drain(self) -> None:
        with self._stream, self._file or contextlib.nullcontext():
            for raw in self._stream:
                line = raw.decode(errors="replace")
                self._lines.append(line.rstrip("\n"))
                # A full disk or a closed terminal must not stop the draining.
                with contextlib.suppress(OSError, ValueError):
                    if self._file:
                        self._file.write(raw)
                        self._file.flush()
                    if self._to_stderr:
                        sys.stderr.write(line)
                        sys.stderr.flush()


def error_lines(log: Iterable[str]) -> list[str]:
    """Why a server failed, in its own words, without time stamps and Python tracebacks.

    The lines that name a cause ("failed to load ...", "Poll failed for model directory ..."); if
    there is none, every error and the server's parting words; if there is none, the last lines.

    Source: logs of server 2.51.
    """
    log = [line for line in log if line.strip()]
    errors = _texts(log, _ERROR, _PROTOBUF)
    causes = [text for text in errors if _CAUSE.search(text)]
    return causes or [*errors, *_texts(log, _FATAL)] or log[-_LAST_LINES:]


def _texts(log: Iterable[str], *patterns: re.Pattern[str]) -> list[str]:
    """What the lines of these kinds say, each text once."""
    matches = (pattern.match(line) for line in log for pattern in patterns)
    return list(dict.fromkeys(_readable(match["text"].strip()) for match in matches if match))


def _readable(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].replace("\\n", "\n").replace('\\"', '"')
    return text.partition("\n\nAt:\n")[0].strip()[:_LONGEST_REASON]
