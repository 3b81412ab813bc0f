"""The engine cache's store: whole entries or none, checked at every read."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path

import pytest

from builder.cache.key import engine_key, key_components
from builder.cache.store import EngineCache, cache_directory
from builder.types import Range, TensorSpec

KEY = "ab" + "0" * 62
COMPONENTS = {"compiler": "test"}


class Build:
    """Writes an engine and counts how often."""

    def __init__(self, content: bytes = b"engine") -> None:
        self.content = content
        self.count = 0

    def __call__(self, directory: Path) -> str:
        self.count += 1
        (directory / "engine.bin").write_bytes(self.content)
        return "engine.bin"


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, warnings: list[str]) -> EngineCache:
    return EngineCache(tmp_path / "cache", warnings.append)


def files(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


def test_miss_then_hit(cache: EngineCache, tmp_path: Path) -> None:
    build = Build()
    first = cache.get_or_build(KEY, COMPONENTS, build, tmp_path)
    second = cache.get_or_build(KEY, COMPONENTS, build, tmp_path)
    assert (first.hit, second.hit, build.count) == (False, True, 1)
    assert (second.files / second.artifact).read_bytes() == b"engine"
    assert second.size == 6
    record = json.loads((second.files.parent / "entry.json").read_text())
    assert record["components"] == COMPONENTS
    assert record["files"]["engine.bin"]["size"] == 6


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "entry"])
def test_damage_is_put_aside_and_built_again(
    cache: EngineCache, tmp_path: Path, warnings: list[str], damage: str
) -> None:
    build = Build()
    entry = cache.get_or_build(KEY, COMPONENTS, build, tmp_path)
    engine = entry.files / "engine.bin"
    if damage == "flip":
        engine.write_bytes(b"enginf")
    elif damage == "truncate":
        engine.write_bytes(b"eng")
    elif damage == "remove":
        engine.unlink()
    else:
        (entry.files.parent / "entry.json").write_text("{")
    again = cache.get_or_build(KEY, COMPONENTS, build, tmp_path)
    assert (again.hit, build.count) == (False, 2)
    assert (again.files / "engine.bin").read_bytes() == b"engine"
    assert len(warnings) == 1 and "put aside" in warnings[0]
    assert any(name.startswith("quarantine/") for name in files(cache.directory))
    assert cache.get_or_build(KEY, COMPONENTS, build, tmp_path).hit


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_a_failed_build_leaves_nothing(cache: EngineCache, tmp_path: Path, error: BaseException) -> None:
    def fail(directory: Path) -> str:
        (directory / "half").write_bytes(b"x")
        raise error

    with pytest.raises(type(error)):
        cache.get_or_build(KEY, COMPONENTS, fail, tmp_path)
    assert [n for n in files(cache.directory) if not n.endswith(".lock")] == []
    assert not cache.get_or_build(KEY, COMPONENTS, Build(), tmp_path).hit


def test_an_unusable_directory_builds_without_caching(tmp_path: Path, warnings: list[str]) -> None:
    (tmp_path / "file").write_text("")
    cache = EngineCache(tmp_path / "file" / "cache", warnings.append)
    build = Build()
    for _ in range(2):
        entry = cache.get_or_build(KEY, COMPONENTS, build, tmp_path)
        assert not entry.hit
        assert (entry.files / "engine.bin").read_bytes() == b"engine"
    assert build.count == 2
    assert len(warnings) == 1 and "nothing is cached" in warnings[0]


def test_a_full_cache_builds_elsewhere(cache: EngineCache, tmp_path: Path, warnings: list[str]) -> None:
    class Full(Build):
        def __call__(self, directory: Path) -> str:
            if cache.directory in directory.parents:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().__call__(directory)

    build = Full()
    for _ in range(2):
        entry = cache.get_or_build(KEY, COMPONENTS, build, tmp_path)
        assert not entry.hit and (entry.files / "engine.bin").read_bytes() == b"engine"
    assert len(warnings) == 1 and "is full" in warnings[0]


def test_eight_threads_build_once(cache: EngineCache, tmp_path: Path) -> None:
    build = Build()
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(cache.get_or_build(KEY, COMPONENTS, build, tmp_path)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.count == 1
    assert sorted(r.hit for r in results) == [False] + [True] * 7


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_REPO_CACHE", str(tmp_path / "env"))
    assert cache_directory() == tmp_path / "env"
    assert cache_directory(tmp_path / "chosen") == tmp_path / "chosen"
    monkeypatch.delenv("TRITON_REPO_CACHE")
    assert cache_directory().name == "triton-repo-builder"


def components(**changes: object) -> dict[str, object]:
    dims = changes.pop("dims", (Range(1, 8, 32, "B"), Range(16, 16, 16)))
    given: dict[str, object] = {
        "compiler": "onnxruntime",
        "target": {"device": "cpu"},
        "fingerprint": {"graph": "aa", "weights": "bb"},
        "inputs": (TensorSpec(str(changes.pop("name", "x")), str(changes.pop("dtype", "float32")), dims),),  # type: ignore[arg-type]
        "outputs": (TensorSpec("y", "float32", (Range(1, 1, 1),)),),
        **changes,
    }
    return key_components(**given)  # type: ignore[arg-type]


def test_the_key_ignores_names() -> None:
    renamed = components(name="other", dims=(Range(1, 8, 32, "N"), Range(16, 16, 16)))
    assert engine_key(components()) == engine_key(renamed)


@pytest.mark.parametrize(
    "change",
    [
        {"compiler": "tensorrt_rtx"},
        {"target": {"device": "cuda"}},
        {"fingerprint": {"graph": "ab", "weights": "bb"}},
        {"fingerprint": {"graph": "aa", "weights": "bc"}},
        {"dtype": "float16"},
        {"dims": (Range(1, 8, 33, "B"), Range(16, 16, 16))},
        {"dims": (Range(1, 9, 32, "B"), Range(16, 16, 16))},
        {"dims": (Range(2, 8, 32, "B"), Range(16, 16, 16))},
        {"outputs": (TensorSpec("y", "float16", (Range(1, 1, 1),)),)},
    ],
)
def test_the_key_tells_apart(change: dict[str, object]) -> None:
    assert engine_key(components()) != engine_key(components(**change))


def test_the_key_is_the_same_in_every_process() -> None:
    assert engine_key(components()) == "d18af011c1b2f6f0e5f149d9f03395595cb36ce51f47d7264cbb1565f3f92712"
