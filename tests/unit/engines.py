"""Engines for the tests of the cache: a few bytes under a key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from builder.cache.engine_cache import EngineRequest
from builder.cache.key import engine_key
from builder.cache.record import FILES, FileInfo, Record
from builder.hashing import file_digest


def request(name: str = "a", **changes: Any) -> EngineRequest:
    components = {
        "compiler": "test",
        "name": name,
        "target": {"device": "cpu"},
        "program": {},
        "inputs": [],
        "outputs": [],
    }
    given = {
        "texts": {"graph.txt": "x0 = input\n", "details.json": "{}\n"},
        "user": {"model": "net", "source": "nets.py:net", "segment": "segment_0"},
        **changes,
    }
    return EngineRequest(engine_key(components), components, **given)


class Build:
    """Writes an engine of two files, and counts how often."""

    def __init__(self, content: bytes = b"engine") -> None:
        self.content = content
        self.count = 0

    def __call__(self, directory: Path) -> str:
        self.count += 1
        (directory / "engine.bin").write_bytes(self.content)
        (directory / "parts").mkdir()
        (directory / "parts" / "more.bin").write_bytes(self.content * 2)
        return "engine.bin"


def stored(content: Path, name: str = "a", data: bytes = b"engine", **changes: Any) -> Record:
    """The record of an engine whose files are written below `content`."""
    wanted = request(name)
    (content / FILES).mkdir(parents=True)
    Build(data)(content / FILES)
    files = {
        os.path.relpath(p, content): FileInfo(p.stat().st_size, file_digest(p))
        for p in sorted(content.rglob("*"))
        if p.is_file()
    }
    return Record(wanted.key, wanted.components, "engine.bin", files, **changes)
