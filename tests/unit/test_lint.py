"""One faulty repository for each rule of the linter, and clean ones of each kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from builder.cli_lint import lint
from builder.errors import RepositoryError, SpecError
from builder.releases import release
from builder.repository.lint import Finding, lint_config, lint_repository
from builder.repository.lint.lint import READING_RULES, RULES
from tests.unit.lint_cases import (
    AOTI,
    CASES,
    CODE,
    ENSEMBLE,
    ONE_STEP,
    ONNX,
    PLAN,
    PYTHON,
    STEP,
    WARMUP,
    Case,
    Files,
    aoti,
    changed,
    ensemble,
    model,
    network,
    onnx_model,
    plan,
)


def write(root: Path, files: Files) -> Path:
    for name, content in files.items():
        path = root / name
        if content is None:
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def checked(root: Path, name: str | None) -> list[Finding]:
    return lint_repository(root, release=release(name) if name else None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.message[:30]}")
def test_finds(case: Case, tmp_path: Path):
    files = case.files
    if case.rule == "torch-compile-options":
        bad = 'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS"\n value { string_value: "{" } }'
        files = files | {"m/config.pbtxt": f"{files['m/config.pbtxt']}\n{bad}"}
    found = checked(write(tmp_path, files), case.release)
    matching = [f for f in found if f.rule == case.rule and case.message in f"{f.message} {f.path}"]
    assert matching, [str(f) for f in found]
    assert (str(Path(matching[0].path).relative_to(tmp_path)), matching[0].line) == (case.path, case.line)
    assert matching[0].fix
    assert {f.rule for f in found} - case.also == {case.rule}, [str(f) for f in found]


def test_every_rule_has_a_case():
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    untested = {*names, *READING_RULES} - {case.rule for case in CASES}
    # No file that a test can write is one for whoever runs it as root; it has a test of its own below.
    assert untested == {"directory-unreadable"}


CLEAN: dict[str, Files] = {
    "python": model(
        PYTHON
        + WARMUP % 'data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "f"'
        + "version_policy { all { } } instance_group [ { kind: KIND_CPU } ] dynamic_batching { }",
        **{"1/model.py": CODE, "3/model.py": CODE, "warmup/f": bytes(16), "labels.txt": "", "1/manifest.json": "{}"},
    )
    | {"README.md": "files in the root are no models"},
    "python without a name": model(changed('name: "m"', "")),
    "guessed backend": model(changed('backend: "python"', "")),
    "strings": model(
        PYTHON.replace("FP32", "STRING") + WARMUP % 'data_type: TYPE_STRING dims: 4 input_data_file: "f"',
        **{"1/model.py": CODE, "warmup/f": b"\1\0\0\0a" * 4},
    ),
    "onnxruntime": onnx_model(ONNX),
    "onnxruntime directory": model(
        ONNX,
        **{"1/model.onnx/model.onnx": network(["N", 4], ["N", 2], external="data.bin"), "1/model.onnx/data.bin": b"1234"},
    ),
    "onnxruntime scalar": onnx_model(
        changed("size: 4", "size: 0", ONNX).replace("[ 4 ]", "[ 1 ]").replace("[ 2 ]", "[ 1 ]"), network([], [])
    ),
    "onnxruntime narrower": onnx_model(ONNX, network(["N", "M"], ["N", 2])),
    "tensorrt_plan": plan(PLAN + 'instance_group { kind: KIND_GPU gpus: 0 count: 1 profile: [ "0", "1" ] }'),
    "plans by capability": model(
        PLAN + 'cc_model_filenames [ { key: "9.0" value: "sm90.plan" }, { key: "12.0" value: "sm120.plan" } ]',
        **{"1/sm90.plan": b"", "1/sm120.plan": b""},
    ),
    "torch_aoti": aoti(AOTI),
    "ensemble of three": {
        **{f"{k}/{p}": v for k in "abc" for p, v in {"config.pbtxt": PYTHON.replace('"m"', f'"{k}"', 1).replace("[ 2 ]", "[ 4 ]"), "1/model.py": CODE}.items()},
        **model(
            ENSEMBLE.replace("[ 2 ]", "[ -1 ]").replace(
                ONE_STEP, "".join(STEP.format(model=m, x=x, y=y) for m, x, y in (("a", "x", "t"), ("b", "t", "u"), ("c", "u", "y")))
            ),
            "e",
            **{"1/.keep": ""},
        ),
    },
    "ensemble over a model without batching": ensemble(
        member=PYTHON.replace("size: 4", "size: 0").replace("[ 4 ]", "[ -1, 4 ]").replace("[ 2 ]", "[ -1, 2 ]")
    ),
    "alternative configurations": {
        "m/configs/h200.pbtxt": PYTHON,
        "m/configs/notes.txt": "not a configuration",
        "m/1/model.py": CODE,
    },
    "backend that knows its tensors": model('backend: "vllm" instance_group [ { kind: KIND_MODEL } ]'),
    "empty": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", CLEAN)
@pytest.mark.parametrize("name", [None, "26.11"])
def test_a_clean_repository_gives_no_finding(kind: str, name: str | None, tmp_path: Path):
    assert checked(write(tmp_path, CLEAN[kind]), name) == []


def test_one_model_is_checked_with_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, ensemble(changed("size: 4", "size: 16", ENSEMBLE), PYTHON + "instance_group { gpus: -1 }"))
    assert [f.rule for f in lint_repository(tmp_path / "e")] == ["member-batch-size"]
    assert [f.rule for f in lint_repository(tmp_path / "m")] == ["instance-gpu-id"]
    monkeypatch.chdir(tmp_path / "e")
    assert [f.rule for f in lint_repository(Path())] == ["member-batch-size"]


def test_a_repository_is_one_whatever_its_models_are_called(tmp_path: Path):
    write(tmp_path, model(changed('name: "m"', "") + "instance_group { gpus: -1 }", "1"))
    assert [f.path for f in lint_repository(tmp_path)] == [str(tmp_path / "1" / "config.pbtxt")]
    write(tmp_path, {"2/1/config.pbtxt": "", "2/1/model.py": CODE, "2/config.pbtxt": changed('name: "m"', "")})
    assert lint_repository(tmp_path / "2") == []


def test_other_configurations_of_a_model_are_checked(tmp_path: Path):
    write(tmp_path, model() | {"m/configs/a.pbtxt": PYTHON + "instance_group { gpus: -1 }", "m/configs/b.pbtxt": "x"})
    found = lint_repository(tmp_path)
    assert [(Path(f.path).name, f.rule, f.line) for f in found] == [
        ("a.pbtxt", "instance-gpu-id", 14),
        ("b.pbtxt", "config-syntax", 1),
    ]


def test_a_text_is_checked_without_its_files():
    assert lint_config(PYTHON, "m") == lint_config(ONNX, "m") == lint_config(ENSEMBLE, "e") == []
    (found,) = lint_config(changed('backend: "python"', ""), "m")
    assert (found.rule, found.path) == ("backend-missing", "config.pbtxt")
    assert "must specify 'platform' or 'backend' for m" in found.message
    assert [f.line for f in lint_config(PYTHON.replace("dims: [", "dims: [ 0,"), "m")] == [7, 12]


def test_odd_files_give_findings(tmp_path: Path):
    write(tmp_path, {"a/config.pbtxt": None, "a/1/model.py": CODE, "c/1/model.py": CODE, "big/1/model.py": CODE})
    for name in ("loop", "c/config.pbtxt"):
        (tmp_path / name).symlink_to(tmp_path / name)
    with (tmp_path / "big" / "config.pbtxt").open("wb") as file:
        file.truncate(1 << 34)
    write(tmp_path, model(name="m") | {"m/2": None})
    (tmp_path / "m" / "2" / "model.py").symlink_to("model.py")
    found = {Path(f.path).relative_to(tmp_path).as_posix(): f for f in lint_repository(tmp_path)}
    assert {path: f.rule for path, f in found.items()} == {
        "a/config.pbtxt": "config-unreadable",
        "c/config.pbtxt": "config-unreadable",
        "big/config.pbtxt": "config-unreadable",
        "m/2": "artifact-missing",
    }
    assert "it is a directory" in found["a/config.pbtxt"].message


def test_a_directory_that_cannot_be_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, model() | model(name="n"))
    entries = Path.iterdir

    def refusing(path: Path) -> Iterator[Path]:
        if path.name == "m":
            raise PermissionError(13, "Permission denied")
        return entries(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    (found,) = [f for f in lint_repository(tmp_path) if f.rule != "name-mismatch"]
    assert (found.rule, found.path, found.message) == (
        "directory-unreadable",
        str(tmp_path / "m"),
        "the directory cannot be read: Permission denied",
    )


def test_what_is_no_directory_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(RepositoryError, match="there is no directory that can be read"):
            lint_repository(tmp_path / name)


@pytest.fixture
def command():
    app = typer.Typer()
    app.command()(lint)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_command(command, tmp_path: Path):
    write(tmp_path, model(PYTHON + "instance_group { count: 0 }"))
    result = command(tmp_path)
    assert result.exit_code == 0
    first, todo, summary = result.stdout.splitlines()
    assert first.startswith(f"{tmp_path}/m/config.pbtxt:14: warning: instance group m_0 of model m has count 0")
    assert todo.startswith("    to do: ")
    assert summary == "errors: 0, warnings: 1"
    write(tmp_path, model(PYTHON + "instance_group { gpus: -1 }"))
    result = command(tmp_path, "--json", "--triton", "26.09")
    assert result.exit_code == 2
    assert json.loads(result.stdout)[0]["rule"] == "instance-gpu-id"


def test_command_refuses_what_it_does_not_know(command, tmp_path: Path):
    assert command(tmp_path, "--triton", "26.9").exit_code == 2
    assert command(tmp_path / "missing").exit_code == 2
    with pytest.raises(SpecError, match=r"26\.9"):
        release("26.9")
