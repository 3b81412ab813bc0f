"""What a user can get wrong: one clear message, exit code 2, nothing changed on disk, never a traceback."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli import app

NETS = "tests/models/nets.py"
HYBRID = (f"{NETS}:hybrid", "-i", "x=float32[B=1:8:32, T=2:16:64, 16]")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "here" / "model_repo"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def refused(root: Path, *arguments: str) -> str:
    """The message of a build that must be refused, after checking that nothing is left behind."""
    before = set(root.parent.parent.rglob("*"))
    result = run("build", *arguments, "--repo", str(root))
    text = result.stderr
    assert result.exit_code == 2, text
    assert "Traceback" not in text
    left = {p for p in set(root.parent.parent.rglob("*")) - before if "engine-cache" not in p.parts}
    assert not left
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nosuch",), "there is no model 'nosuch'"),
        (("nosuch.toml",), "there is no spec file 'nosuch.toml'"),
        (("nosuch.pt2",), "there is no file"),
        (("no.such.module:net",), "there is no Python module 'no'"),
        ((f"{NETS}:nosuch",), "has no 'nosuch'"),
        (("tests/models/nosuch.py:net",), "there is no file"),
        (("json:dumps",), "raised TypeError"),
        (("os:getcwd",), "not a torch.nn.Module"),
        (("hf:./nosuch",), "hf"),
        (("torchvision:nosuch",), "torchvision"),
        (("timm:nosuch",), "timm"),
        ((f"{NETS}:hybrid",), "no inputs are given"),
        ((f"{NETS}:TwoInputs", "-i", "x=float32[4]"), "no input is given for 'y'"),
        ((f"{NETS}:hybrid", "-i", "x=float32[4]", "-i", "y=float32[4]"), "`forward` has no parameter 'y'"),
        ((f"{NETS}:ConvNet", "-i", "imag=float32[1, 3, 16, 16]"), "did you mean 'image'?"),
        ((f"{NETS}:hybrid", "-i", "x=int64[1, 2, 16]"), "must have the same dtype"),
        ((f"{NETS}:hybrid", "-i", "x=float33[1, 2, 16]"), "unknown dtype 'float33'"),
        ((f"{NETS}:hybrid", "-i", "x=float32[9:8:32, 2, 16]"), "min 9 is greater than opt 8"),
        ((f"{NETS}:hybrid", "-i", "x=float32[1:40:32, 2, 16]"), "opt 40 is greater than max 32"),
        ((f"{NETS}:hybrid", "-i", "x=float32[-1, 2, 16]"), "the size -1 is negative"),
        ((f"{NETS}:hybrid", "-i", "x=float32[0:1:2, 2, 16]"), "the size 0 is zero"),
        (
            (f"{NETS}:TwoInputs", "-i", "x=float32[B=1:2:3]", "-i", "y=float32[B=1:2:4]"),
            "'B' has two ranges: B=1:2:3 and B=1:2:4",
        ),
        ((f"{NETS}:TwoInputs", "-i", "float32[4]", "-i", "float32[4]", "-i", "float32[4]"), "`forward` takes 2"),
        ((f"{NETS}:DataDependent", "-i", "x=float32[4]"), "data-dependent"),
        ((f"{NETS}:Stateful", "-i", "x=float32[4]"), "changes its buffer 'calls'"),
        ((*HYBRID, "--compiler", "onnxruntim"), "did you mean 'onnxruntime'?"),
        ((*HYBRID, "--min-block-size", "0"), "min_block_size = 0"),
        ((*HYBRID, "--name", "a/b"), "name = 'a/b'"),
        ((*HYBRID, "--output-name", "a", "--output-name", "b"), "2 output names are given"),
        ((*HYBRID, "--require-full-compilation"), "1 operators fall back to PyTorch"),
        ((*HYBRID, "--no-such-option"), "--no-such-option"),
        ((*HYBRID, "--torch-executed-ops", "aten::rellu"), "did you mean 'aten.relu'?"),
        (
            (f"{NETS}:Lookup", "-i", "ids=int64[4] in 0..99"),
            "eager PyTorch fails inside the declared range: IndexError",
        ),
    ],
)
def test_wrong_arguments(root: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(root, *arguments)


def test_a_source_that_raises_is_named_with_its_line(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "broken.py"
    source.write_text("def net():\n    return 1 / 0\n")
    text = refused(root, f"{source}:net")
    assert "raised ZeroDivisionError: division by zero" in text
    assert "broken.py:2" in text


def test_a_wrong_spec_file_names_the_place(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text(f'[model]\nsource = "{NETS}:hybrid"\n[settings]\nmin_blok_size = 3\n')
    text = refused(root, str(path))
    assert "unknown key settings.min_blok_size" in text and "net.toml" in text and "did you mean" in text


def test_a_file_in_place_of_the_repository(root: Path) -> None:
    root.parent.mkdir()
    root.write_text("not a directory")
    assert str(root) in refused(root, *HYBRID)
    assert root.read_text() == "not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_directory(root: Path) -> None:
    root.parent.mkdir(mode=0o555)
    assert "ermission denied" in refused(root, *HYBRID)


def test_an_unwritable_file_system(root: Path) -> None:
    """/proc takes no directories from anybody."""
    result = run("build", *HYBRID, "--repo", "/proc/model_repo")
    assert result.exit_code == 2
    assert "/proc" in result.stderr and "Traceback" not in result.stderr


def test_a_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fills up while the engine is written."""
    from builder.lowering import onnx

    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/somewhere/weights.bin")

    monkeypatch.setattr(onnx.ir, "save", full)
    text = refused(root, *HYBRID)
    assert "the disk is full" in text and "/somewhere/weights.bin" in text


def test_errors_as_json(root: Path) -> None:
    result = run("build", "nosuch", "--repo", str(root), "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["stage"] == "spec" and "nosuch" in error["what"] and "did you mean" not in error["what"]


def test_inspect_what_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nosuch", tmp_path):
        result = run("inspect", str(path))
        assert result.exit_code == 2 and str(path) in result.stderr


def test_a_fault_of_ours_is_told_apart(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builder.pipeline as pipeline

    def broken(*arguments: object, **keywords: object) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr(pipeline, "build", broken)
    result = run("build", *HYBRID, "--repo", str(root))
    assert result.exit_code == 1
    assert "internal error: AttributeError: a bug" in result.stderr and "Traceback" not in result.stderr


def test_a_verification_failure_exits_1(root: Path) -> None:
    result = run("build", *HYBRID, "--repo", str(root), "--rtol", "0", "--atol", "0")
    assert result.exit_code == 1
    assert "differs from eager PyTorch" in result.stderr
    assert not root.exists()
