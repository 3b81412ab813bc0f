"""What every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reads or fills the user's engine cache."""
    monkeypatch.setenv("TRITON_REPO_CACHE", str(tmp_path / "engine-cache"))
