"""`triton-repo cache ...` and the cache options of `build`, as a user types them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli import app

RANGES = "x=float32[B=1:8:32, T=2:16:64, 16]"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the engines of two models: one that they share, and one of each."""
    directory = tmp_path_factory.mktemp("commands")
    for name in ("hybrid", "other_epsilon"):
        run(
            directory,
            "build",
            f"tests.models.nets:{name}",
            "--name",
            name,
            "-i",
            RANGES,
            "--repo",
            str(directory / "r"),
        )
    return directory


def run(place: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    """Standard output; standard error where the command must fail without any."""
    done = CliRunner().invoke(app, arguments, env={"TRITON_REPO_CACHE": str(place / "cache"), **environment})
    assert done.exit_code == code, done.stderr + done.stdout
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.stdout if code == 0 or done.stdout else done.stderr


def read(place: Path, *arguments: str, **named: Any) -> Any:
    return json.loads(run(place, *arguments, "--json", **named))


def own_engine(place: Path) -> str:
    """The key of the engine that only `other_epsilon` uses."""
    engines = (read(place, "cache", "show", e["key"]) for e in read(place, "cache", "ls"))
    (key,) = (e["key"] for e in engines if {u["model"] for u in e["users"]} == {"other_epsilon"})
    return str(key)


def test_ls_and_show(place: Path) -> None:
    engines = read(place, "cache", "ls")
    assert len(engines) == 3
    assert {e["compiler"] for e in engines} == {"onnxruntime"} and all(e["size"] > 0 for e in engines)
    assert engines[0]["last_used"] >= engines[-1]["last_used"]
    text = run(place, "cache", "ls")
    assert all(e["key"][:12] in text for e in engines) and "engines 3" in text
    key = own_engine(place)
    known = read(place, "cache", "show", key[:10])
    assert known["key"] == key
    assert known["settings"]["min_block_size"] == 1 and "torch" in known["versions"]
    (user,) = known["users"]
    assert user["model"] == "other_epsilon" and user["source"] == "tests.models.nets:other_epsilon"
    assert known["components"]["inputs"][0]["max"] == [32, 64, 16]
    shown = run(place, "cache", "show", key[:10])
    for word in (
        key,
        "used by     other_epsilon segment_0",
        "LayerNormalization",
        "put in by refit",
        "version     torch",
    ):
        assert word in shown


@pytest.mark.parametrize(("key", "message"), [("ffffffffff", "no engines have a key"), ("", "3 engines|no engines")])
def test_a_key_that_is_not_there(place: Path, key: str, message: str) -> None:
    assert re.search(message, run(place, "cache", "show", key, code=2))


def test_explain_says_what_differs(place: Path) -> None:
    same = read(
        place, "cache", "explain", "tests.models.nets:hybrid", "tests.models.nets:reseeded_hybrid", "-i", RANGES
    )
    assert [p["shared"] for p in same] == [True, True]
    pairs = read(place, "cache", "explain", "tests.models.nets:hybrid", "tests.models.nets:first_half", "-i", RANGES)
    assert [p["shared"] for p in pairs].count(True) == 1
    (other,) = (p for p in pairs if not p["shared"])
    assert other["other"] is None
    epsilons = ("cache", "explain", "tests.models.nets:hybrid", "tests.models.nets:other_epsilon", "-i", RANGES)
    pairs = read(place, *epsilons)
    changed = [p for p in pairs if not p["shared"]]
    assert len(changed) == 1
    assert [c[0] for c in changed[0]["components"]] == ["program.graph"]
    assert any("epsilon" in line and line.startswith("-") for line in changed[0]["graph"])
    text = run(place, *epsilons)
    assert "program.graph" in text and "engines shared: 1 of 2" in text


def test_explain_a_stored_engine(place: Path) -> None:
    key = own_engine(place)
    wider = RANGES.replace("B=1:8:32", "B=1:8:33")
    pair, _ = read(place, "cache", "explain", key[:12], "tests.models.nets:other_epsilon", "-i", wider)
    assert not pair["shared"] and [c[0] for c in pair["components"]] == ["inputs[0].max[0]"]
    assert pair["components"][0][1:] == [32, 33]


def test_verify_pin_gc_and_clear(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "cache", tmp_path / "cache")
    keys = [e["key"] for e in read(tmp_path, "cache", "ls")]
    assert read(tmp_path, "cache", "verify") == {"checked": 3, "bad": {}}
    engine = tmp_path / "cache" / "engines" / keys[0][:2] / keys[0] / "files" / "model.onnx"
    engine.write_bytes(engine.read_bytes()[:-1])
    assert keys[0][:12] in run(tmp_path, "cache", "verify", code=1)
    assert run(tmp_path, "cache", "verify") == "engines checked: 2, bad: 0\n"
    assert run(tmp_path, "cache", "pin", keys[1][:10]) == f"pinned {keys[1]}\n"
    result = read(tmp_path, "cache", "gc", "--max-size", "0")
    assert result["removed"] == [keys[2]] and result["entries"] == 1
    assert read(tmp_path, "cache", "clear")["kept"] == [keys[1]]
    assert run(tmp_path, "cache", "unpin", keys[1]) == f"unpinned {keys[1]}\n"
    assert read(tmp_path, "cache", "clear") == {"removed": [keys[1]], "kept": []}
    assert run(tmp_path, "cache", "ls") == f"{tmp_path / 'cache'}: engines 0, 0 B\n"


def test_push_pull_and_signatures(place: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "shared")
    assert len(read(place, "cache", "push", "--remote", url)["sent"]) == 3
    assert run(place, "cache", "push", TRITON_REPO_REMOTE=url).startswith(f"{url}: sent 0, already there 3")
    assert len(read(tmp_path, "cache", "pull", "--remote", url)["taken"]) == 3
    key = "0123456789abcdef0123456789abcdef"
    result = json.loads(
        run(tmp_path / "signed", "cache", "pull", "--json", code=1, TRITON_REPO_REMOTE=url, TRITON_REPO_CACHE_KEY=key)
    )
    assert result["taken"] == [] and all("not signed" in reason for reason in result["failed"].values())
    assert "no remote is given" in run(place, "cache", "push", code=2)
    assert "has no engine" in run(place, "cache", "pull", "ffff", "--remote", url, code=2)
    assert "nosuch" in run(place, "cache", "pull", "--remote", "nosuch://x", code=2)


def test_a_build_takes_engines_from_the_remote(place: Path, tmp_path: Path) -> None:
    url = str(tmp_path / "shared")
    run(place, "cache", "push", "--remote", url)
    arguments = ["build", "tests.models.nets:reseeded_hybrid", "-i", RANGES, "--repo", str(tmp_path / "repo")]
    result = read(tmp_path, *arguments, "--remote", url, "--remote-readonly")
    assert [s["cache"] for s in result["segments"]] == ["hit", None, "hit"]


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["cache", "gc", "--max-size", "lots"], {}, "'lots' is no size"),
        (["cache", "ls"], {"TRITON_REPO_CACHE_KEY": "short"}, "has 5 characters"),
        (["cache", "ls"], {"TRITON_REPO_CACHE_SIZE": "-"}, "'-' is no size"),
        (["cache", "verify", "--cache", "/dev/null/x"], {}, "cannot be written"),
        (["build", "nothing", "--cache-size", "huge"], {}, "'nothing'|'huge' is no size"),
        (["cache", "explain", "tests.models.nets:hybrid", "nothing.toml"], {}, "no inputs are given|nothing.toml"),
    ],
)
def test_mistakes_get_one_clear_message(
    place: Path, arguments: list[str], environment: dict[str, str], message: str
) -> None:
    assert re.search(message, run(place, *arguments, code=2, **environment))


def test_an_empty_cache_lists_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "cache", "ls") == []
    assert not (tmp_path / "cache").exists()


def test_doctor_looks_at_the_cache(tmp_path: Path) -> None:
    def found(**environment: str) -> dict[str, tuple[str, str]]:
        return {c["what"]: (c["state"], c["detail"]) for c in read(tmp_path, "doctor", **environment)}

    state, detail = found(TRITON_REPO_CACHE_SIZE="512M")["engine cache"]
    assert state == "ok" and detail == f"{tmp_path / 'cache'}, at most 0.5 GiB"
    assert found(TRITON_REPO_CACHE="/dev/null/x")["engine cache"][0] == "limited"
    assert found(TRITON_REPO_CACHE_KEY="short")["engine cache"][0] == "broken"
    assert found(TRITON_REPO_REMOTE=str(tmp_path))["engine remote"] == ("ok", str(tmp_path))
    assert found(TRITON_REPO_REMOTE="nosuch://x")["engine remote"][0] == "broken"
