"""The engine key: what is in it, and what is not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from builder.cache.key import canonical_json, differences, engine_key, key_components
from builder.cache.options import CacheOptions, cache_directory, parse_size
from builder.errors import CacheError
from builder.types import Range, TensorSpec


def components(**changes: object) -> dict[str, object]:
    dims = changes.pop("dims", (Range(1, 8, 32, "B"), Range(16, 16, 16)))
    given: dict[str, object] = {
        "compiler": "onnxruntime",
        "target": {"device": "cpu"},
        "fingerprint": {"graph": "aa", "weights": "bb"},
        "refit": "weights",
        "inputs": (TensorSpec(str(changes.pop("name", "x")), str(changes.pop("dtype", "float32")), dims),),  # type: ignore[arg-type]
        "outputs": (TensorSpec("y", "float32", (Range(1, 1, 1),)),),
        **changes,
    }
    return key_components(**given)  # type: ignore[arg-type]


def test_names_are_not_in_it() -> None:
    renamed = components(name="other", dims=(Range(1, 8, 32, "N"), Range(16, 16, 16)))
    assert engine_key(components()) == engine_key(renamed)


@pytest.mark.parametrize(
    "change",
    [
        {"compiler": "tensorrt_rtx"},
        {"target": {"device": "cuda"}},
        {"fingerprint": {"graph": "ab", "weights": "bb"}},
        {"fingerprint": {"graph": "aa", "weights": "bc"}},
        {"refit": "none"},
        {"dtype": "float16"},
        {"dims": (Range(1, 8, 33, "B"), Range(16, 16, 16))},
        {"dims": (Range(1, 9, 32, "B"), Range(16, 16, 16))},
        {"dims": (Range(2, 8, 32, "B"), Range(16, 16, 16))},
        {"outputs": (TensorSpec("y", "float16", (Range(1, 1, 1),)),)},
    ],
)
def test_everything_else_is(change: dict[str, object]) -> None:
    assert engine_key(components()) != engine_key(components(**change))


def test_it_is_the_same_in_every_process() -> None:
    assert engine_key(components()) == "891ae55f3dc9ee68160a63a8981b42d8fde4f42e5c0d5809132514bf0818777c"


def test_json_that_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": math.nan})


def test_differences_name_the_component() -> None:
    one = components()
    other = components(target={"device": "cpu", "torch": "2.13"}, dims=(Range(1, 8, 64), Range(16, 16, 16)))
    assert list(differences(one, other)) == [("inputs[0].max[0]", 32, 64), ("target.torch", None, "2.13")]
    assert list(differences(one, components())) == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_REPO_CACHE", f"{tmp_path}/env")
    assert cache_directory() == Path(f"{tmp_path}/env")
    assert cache_directory(Path("chosen")) == Path("chosen")
    monkeypatch.delenv("TRITON_REPO_CACHE")
    assert cache_directory().name == "triton-repo-builder"


def test_options_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_REPO_CACHE_SIZE", "1.5G")
    monkeypatch.setenv("TRITON_REPO_REMOTE", "s3://bucket/engines")
    monkeypatch.setenv("TRITON_REPO_REMOTE_READONLY", "1")
    monkeypatch.setenv("TRITON_REPO_CACHE_KEY", "0123456789abcdef")
    options = CacheOptions.resolve()
    assert (options.limit, options.remote, options.readonly) == (3 << 29, "s3://bucket/engines", True)
    assert options.secret == b"0123456789abcdef"
    given = CacheOptions.resolve(limit="7", remote="/mnt/engines", readonly=False)
    assert (given.limit, given.remote, given.readonly) == (7, "/mnt/engines", False)


@pytest.mark.parametrize("short", ["", "secret"])
def test_a_short_key_is_refused(monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    monkeypatch.setenv("TRITON_REPO_CACHE_KEY", short)
    with pytest.raises(CacheError, match="characters") as caught:
        CacheOptions.resolve()
    assert "openssl rand" in (caught.value.fix or "")


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("20G", 20 << 30), ("512 MiB", 512 << 20), ("1.5k", 1536)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "5X"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(CacheError, match="is no size"):
        parse_size(text)
