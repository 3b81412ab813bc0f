"""`verify`, `prune` and `rollback`: the files of publications, and what the commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from builder.cli_repository import prune, rollback, verify
from builder.errors import RepositoryError
from builder.repository.publish import publish
from builder.runtime.manifest import Manifest
from builder.verify.integrity import verify_files
from tests.unit.publishing import config_of, make_ensemble, make_member, make_plan

app = typer.Typer()
for command in (prune, rollback, verify):
    app.command()(command)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "model_repo"
    publish(make_plan(tmp_path), root)
    publish(make_plan(tmp_path, b"second"), root)
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    return root


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    return result.exit_code, result.stdout


def test_all_is_well(root):
    report = verify_files(root)
    # Two versions of three files, one of the ensemble's with one, two members of two.
    assert (report.problems, report.files) == ((), 3 + 3 + 1 + 2 * 2)
    manifests = [Manifest.read(path.parent) for path in root.rglob("manifest.json")]
    digests = [d for m in manifests for files in (m.files, *m.members.values()) for d in files.values()]
    assert report.bytes == sum(digest.size for digest in digests)
    assert verify_files(root / "encoder").files == 6
    assert verify_files(root / "whole/1").files == 5
    assert run("verify", root) == (0, f"files checked: 11 ({report.bytes / 1024:.1f} KiB), problems: 0\n")


def test_what_python_and_the_server_leave_is_no_fault(root):
    member = root / make_member("whole.segment_0", b"a").name / "1"
    for directory in (member, root / "encoder/1"):
        (directory / "__pycache__").mkdir()
        (directory / "__pycache__" / "model.cpython-312.pyc").touch()
    assert verify_files(root).problems == ()


def test_every_problem_is_found(root):
    member = root / make_member("whole.segment_0", b"a").name
    (root / "encoder/1/model.py").write_text("longer than before: changed")
    (root / "encoder/1/segments/segment_0.onnx").write_bytes(b"Weights")
    (root / "encoder/2/segments/segment_0.onnx").unlink()
    (root / "encoder/2/extra").touch()
    (root / "encoder/warmup/opt@x@8x4").unlink()
    (member / "1/model.py").write_bytes(b"A")
    (member / "1/notes").touch()
    config_of(root, "whole").unlink()
    found = {(str(p.path.relative_to(root.resolve())), p.kind) for p in verify_files(root).problems}
    assert found == {
        ("encoder/1/model.py", "changed"),
        ("encoder/1/segments/segment_0.onnx", "changed"),
        ("encoder/2/segments/segment_0.onnx", "missing"),
        ("encoder/2/extra", "extra"),
        ("encoder/warmup/opt@x@8x4", "missing"),
        (f"{member.name}/1/model.py", "changed"),
        (f"{member.name}/1/notes", "extra"),
        ("whole/config.pbtxt", "missing"),
    }
    code, said = run("verify", root / "encoder" / "1")
    assert code == 1
    assert "model.py: changed (27 bytes, not 29)" in said
    assert "segment_0.onnx: changed (other content of the same size)" in said
    assert "problems: 2" in said


def test_what_cannot_be_read_is_a_problem_and_what_is_not_there_an_error(root):
    (root / "encoder/1/manifest.json").write_text("{")
    config_of(root).write_text("nonsense: 1")
    assert {(p.path.name, p.kind) for p in verify_files(root).problems} == {
        ("manifest.json", "unreadable"),
        ("config.pbtxt", "unreadable"),
    }
    code, said = run("verify", root, "--json")
    assert code == 1 and len(json.loads(said)["problems"]) == 2
    with pytest.raises(RepositoryError, match="no such directory"):
        verify_files(root / "nowhere")


def test_the_commands(root):
    code, said = run("rollback", "encoder", "--repo", root)
    assert (code, said) == (0, f"published encoder version 3, a copy of version 1: {root / 'encoder/3'}\n")
    code, said = run("rollback", "encoder", "3", "--repo", root)
    assert (code, said) == (0, "encoder version 3, the newest, has this content already\n")
    code, said = run("rollback", "encoder", "2", "--repo", root, "--json")
    assert code == 0 and json.loads(said)["version"] == 4
    code, said = run("prune", "encoder", "--keep", "1", "--repo", root)
    assert code == 0 and said.startswith("versions removed: 1, 2, 3 (")
    code, said = run("prune", "encoder", "--keep", "1", "--repo", root, "--json")
    assert code == 0 and json.loads(said)["versions"] == []
    assert run("rollback", "nobody", "--repo", root)[0] == 2
    assert run("prune", "encoder", "--keep", "0", "--repo", root)[0] == 2
