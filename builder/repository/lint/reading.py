"""Read a configuration: from bytes on disk to a message with the line of each field, or to a finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.model_config import new_config
from builder.repository.lint.finding import Finding
from builder.repository.lint.positions import Positions, field_positions

__all__ = ["parse_config", "read_text"]

_READ_AT_MOST = 8 << 20


def read_text(path: Path) -> str | Finding:
    """The text of a configuration file."""
    try:
        if path.is_dir():
            return _unreadable(path, "it is a directory", None)
        size = path.stat().st_size
        if size > _READ_AT_MOST:
            return _unreadable(path, f"it has {size} bytes, which no configuration has", None)
        data = path.read_bytes()
    except OSError as error:
        return _unreadable(path, error.strerror or str(error), None)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return _unreadable(path, "it is not UTF-8 text", line)


def parse_config(text: str, path: str) -> tuple[Any, Positions] | Finding:
    """The message that a text gives, and where each field stands.

    Args:
        text: of a config.pbtxt.
        path: of the file, for the finding.
    Source: https://protobuf.dev/reference/protobuf/textformat-spec/
    """
    # tritonclient.grpc takes a quarter of a second to import, which only who lints should pay.
    from google.protobuf import text_format

    config = new_config()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        return _unparsed(path, str(error), error.GetLine())
    except (ValueError, TypeError) as error:
        # What an escape makes of a string may be no text, and what a number says no value of its field.
        return _unparsed(path, str(error), None)
    return config, field_positions(text, config.DESCRIPTOR)


def _unreadable(path: Path, reason: str, line: int | None) -> Finding:
    fix = "write a file of UTF-8 text that the server can read"
    return Finding("config-unreadable", "error", str(path), line, f"the configuration cannot be read: {reason}", fix)


def _unparsed(path: str, reason: str, line: int | None) -> Finding:
    name = Path(path).name
    return Finding(
        "config-syntax",
        "error",
        path,
        line,
        f"{name} is not a model configuration: {reason}",
        "correct it: the fields are those of ModelConfig in model_config.proto",
    )
