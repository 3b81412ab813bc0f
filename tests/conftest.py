"""What every test may use."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

# A background job of a shell ignores Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads or fills the user's engine cache."""
    monkeypatch.setenv("TRITON_REPO_CACHE", str(tmp_path / "engine-cache"))
