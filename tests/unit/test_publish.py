"""Publishing: what a reader of the repository sees."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from builder.errors import RepositoryError
from builder.repository.plan import Publication
from builder.repository.publish import publish
from builder.runtime.manifest import Manifest
from tests.unit.publishing import assert_nothing_beside, make_plan, tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "place" / "model_repo"


def test_new_model(tmp_path, root):
    published = publish(make_plan(tmp_path), root)
    assert (published.name, published.version, published.created, published.note) == ("encoder", 1, True, "")
    assert published.path == root / "encoder" / "1"
    assert sorted(tree(root)) == [
        "encoder",
        "encoder/1",
        "encoder/1/config.pbtxt",
        "encoder/1/manifest.json",
        "encoder/1/model.py",
        "encoder/1/segments",
        "encoder/1/segments/segment_0.onnx",
        "encoder/config.pbtxt",
        "encoder/warmup",
        "encoder/warmup/opt@x@8x4",
    ]
    assert (root / "encoder/warmup/opt@x@8x4").stat().st_size == 8 * 4 * 4
    assert_nothing_beside(root)


def test_manifest_has_the_digest_of_every_file(tmp_path, root):
    published = publish(make_plan(tmp_path), root)
    assert Manifest.read(published.path) == published.manifest
    assert set(published.manifest.files) == {"config.pbtxt", "model.py", "segments/segment_0.onnx"}
    for path, digest in published.manifest.files.items():
        content = (published.path / path).read_bytes()
        assert (digest.size, digest.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_artifacts_are_copies(tmp_path, root):
    plan = make_plan(tmp_path)
    published = publish(plan, root)
    plan.artifacts["segments/segment_0.onnx"].write_bytes(b"changed")
    assert (published.path / "segments/segment_0.onnx").read_bytes() == b"weights"


def test_relative_and_linked_roots(tmp_path, root, monkeypatch):
    root.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(root)
    assert publish(make_plan(tmp_path), link).path == root / "encoder" / "1"
    monkeypatch.chdir(root.parent)
    assert not publish(make_plan(tmp_path), Path("model_repo")).created
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_second_version_shares_the_config(tmp_path, root):
    publish(make_plan(tmp_path), root)
    before = tree(root)
    published = publish(make_plan(tmp_path, b"other"), root)
    assert (published.version, published.created, published.path) == (2, True, root / "encoder" / "2")
    after = tree(root)
    assert {path: after[path] for path in before} == before
    assert after["encoder/2/segments/segment_0.onnx"] == b"other"
    assert_nothing_beside(root)


def test_next_version_is_after_the_highest_number(tmp_path, root):
    publish(make_plan(tmp_path), root)
    for name in ("7", "09", "v12", "0", "notes"):
        (root / "encoder" / name).mkdir()
    (root / "encoder" / "8").write_text("a file")
    assert publish(make_plan(tmp_path, b"other"), root).version == 9
    assert not any((root / "encoder" / "7").iterdir())


def test_config_and_warmup_follow_the_newest_version(tmp_path, root):
    publish(make_plan(tmp_path), root)
    published = publish(
        make_plan(tmp_path, warmup_rows=2, extra='parameters { key: "a" value { string_value: "b" } }'), root
    )
    config = (root / "encoder" / "config.pbtxt").read_text()
    assert published.version == 2
    assert 'key: "a"' in config
    assert "opt@x@2x4" in config
    # The old file stays: a server may be loading the old config right now.
    assert sorted(path.name for path in (root / "encoder" / "warmup").iterdir()) == ["opt@x@2x4", "opt@x@8x4"]


def test_same_content_publishes_nothing(tmp_path, root):
    first = publish(make_plan(tmp_path, built_at="2026-01-01"), root)
    before = tree(root)
    again = publish(make_plan(tmp_path, built_at="2026-12-31"), root)
    assert again == Publication("encoder", 1, first.path, False, first.manifest)
    assert tree(root) == before
    assert_nothing_beside(root)


def test_only_the_newest_version_counts_as_the_same(tmp_path, root):
    publish(make_plan(tmp_path), root)
    publish(make_plan(tmp_path, b"other"), root)
    assert publish(make_plan(tmp_path), root).version == 3


def test_a_damaged_version_is_not_the_same(tmp_path, root):
    published = publish(make_plan(tmp_path), root)
    (published.path / "segments/segment_0.onnx").unlink()
    assert publish(make_plan(tmp_path), root).version == 2


def test_the_same_content_finishes_what_was_cut_short(tmp_path, root):
    publish(make_plan(tmp_path), root)
    old = (root / "encoder" / "config.pbtxt").read_bytes()
    second = make_plan(tmp_path, extra="response_cache { enable: true }")
    publish(second, root)
    (root / "encoder" / "config.pbtxt").write_bytes(old)
    published = publish(second, root)
    assert (published.created, published.note) == (False, "")
    assert b"response_cache" in (root / "encoder" / "config.pbtxt").read_bytes()


def test_a_foreign_model_is_refused(tmp_path, root):
    (root / "encoder" / "1").mkdir(parents=True)
    (root / "encoder" / "1" / "model.onnx").write_bytes(b"mine")
    before = tree(root)
    with pytest.raises(RepositoryError, match="no version that triton-repo wrote"):
        publish(make_plan(tmp_path), root)
    assert tree(root) == before


def test_an_empty_model_directory_is_filled(tmp_path, root):
    (root / "123").mkdir(parents=True)
    assert publish(make_plan(tmp_path, name="123"), root).version == 1
