"""Ctrl-C in any stage: exit 130, temporary files gone, the repository as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STAGES = ["load", "export", "partition", "compile", "verify", "publish"]

# Stops in a stage for long enough to be interrupted there, as a large model would.
SLOW = """
import sys, time
from builder.console import Reporter
original = Reporter.stage
def stage(self, name):
    original(self, name)
    if name == {stage!r}:
        print("reached", flush=True)
        time.sleep(60)
Reporter.stage = stage
from builder.cli import main
sys.argv = ["triton-repo", "build", "tests/models/nets.py:hybrid", "-i", "x=float32[B=1:8:32, T=2:16:64, 16]", "--repo", {root!r}]
main()
"""


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(tmp_path: Path, stage: str, number: int) -> None:
    if number == signal.SIGTERM and stage not in ("compile", "publish"):
        pytest.skip("one signal is enough elsewhere")
    root, temporary = tmp_path / "model_repo", tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW.format(stage=stage, root=str(root))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "reached"
    time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and "interrupted" in errors
    assert [p for p in temporary.iterdir() if p.name.startswith("triton-repo")] == []
    assert sorted(p.name for p in tmp_path.iterdir() if p.name not in ("engine-cache", "tmp")) == []
