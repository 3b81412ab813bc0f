"""The commands on repositories, as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder.cli import app


@pytest.mark.parametrize(
    "command",
    [["rollback", "net"], ["prune", "net", "--keep", "1"], ["inspect", "model_repo"], ["verify", "model_repo"]],
)
def test_without_a_repository_there_is_one_message(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "error:" in result.output + result.stderr


@pytest.mark.parametrize("command", [["rollback", "net"], ["prune", "net", "--keep", "1"]])
def test_a_url_is_no_directory(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--repo", "s3://bucket/models"])
    assert result.exit_code == 2
    assert "only build takes a URL" in result.output + result.stderr
