"""Older versions: published again, removed, and a new one taken back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder.errors import RepositoryError
from builder.model_config import parse_config
from builder.repository.history import History
from builder.repository.prune import Pruned, prunable, prune
from builder.repository.publish import publish
from builder.repository.rollback import rollback
from builder.repository.withdraw import withdraw
from builder.runtime.manifest import Manifest
from tests.unit.publishing import assert_nothing_beside, config_of, make_ensemble, make_member, make_plan, tree

CACHE = "response_cache { enable: true }\n"
TWO = "instance_group { count: 2 kind: KIND_CPU }\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "place" / "model_repo"


def versions(root: Path, name: str = "encoder") -> list[str]:
    return sorted(path.name for path in (root / name).iterdir() if path.name.isdigit())


def test_rollback_to_the_version_before(tmp_path, root):
    publish(make_plan(tmp_path, b"one"), root)
    publish(make_plan(tmp_path, b"two", extra=CACHE), root)
    published = rollback(root, "encoder")
    assert (published.version, published.created, published.note) == (3, True, "")
    assert published.manifest.settings["copy_of"] == 1
    assert published.manifest.command.startswith("triton-repo rollback encoder 1 ")
    assert Manifest.read(published.path) == published.manifest
    assert (published.path / "segments/segment_0.onnx").read_bytes() == b"one"
    assert config_of(root).read_text() == make_plan(tmp_path).config
    # The disk holds the content once.
    assert (root / "encoder/1/model.py").stat().st_ino == (root / "encoder/3/model.py").stat().st_ino
    assert rollback(root, "encoder").manifest.settings["copy_of"] == 2
    assert not publish(make_plan(tmp_path, b"two", extra=CACHE), root).created
    assert_nothing_beside(root)


def test_rollback_without_links(tmp_path, root, monkeypatch):
    def refused(path, target):
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    publish(make_plan(tmp_path, b"one"), root)
    publish(make_plan(tmp_path, b"two"), root)
    assert (rollback(root, "encoder").path / "segments/segment_0.onnx").read_bytes() == b"one"


def test_rollback_of_a_replaced_signature_and_with_an_edit(tmp_path, root):
    publish(make_plan(tmp_path), root)
    publish(make_plan(tmp_path, width=5), root, replace=True)
    with config_of(root).open("a") as file:
        file.write(TWO)
    published = rollback(root, "encoder", 1)
    config = parse_config(config_of(root).read_text())
    assert config.input[0].dims[1] == 4 and config.instance_group[0].count == 2
    assert "edits by hand in config.pbtxt were kept" in published.note


def test_rollback_of_an_ensemble(tmp_path, root):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    publish(make_ensemble(tmp_path, b"a", b"c"), root)
    before = {path.name for path in root.iterdir()}
    published = rollback(root, "whole")
    assert {path.name for path in root.iterdir()} == before
    assert published.manifest.members == Manifest.read(root / "whole/1").members
    assert make_member("whole.segment_1", b"b").name in config_of(root, "whole").read_text()
    shutil.rmtree(root / make_member("whole.segment_1", b"c").name)
    with pytest.raises(RepositoryError, match=r"whole\.segment_1\.\w+, which version 2 calls, was removed"):
        rollback(root, "whole", 2)


def test_what_cannot_be_rolled_back(tmp_path, root):
    with pytest.raises(RepositoryError, match="no model 'encoder'"):
        rollback(root, "encoder")
    publish(make_plan(tmp_path), root)
    with pytest.raises(RepositoryError, match="has no version before 1"):
        rollback(root, "encoder")
    publish(make_plan(tmp_path, b"two"), root)
    (root / "encoder/7").mkdir()
    for version in (7, 9):
        with pytest.raises(RepositoryError, match=f"no version {version} that triton-repo wrote") as caught:
            rollback(root, "encoder", version)
        assert caught.value.fix == "choose one of 1, 2"
    assert not rollback(root, "encoder", 2).created
    (root / "encoder/1/model.py").write_text("changed")
    (root / "encoder/warmup/opt@x@8x4").unlink()
    before = tree(root)
    with pytest.raises(RepositoryError, match=r"damaged: model\.py, \.\./warmup/opt@x@8x4"):
        rollback(root, "encoder", 1)
    assert tree(root) == before


def test_prune(tmp_path, root):
    for index, weights in enumerate((b"1", b"2", b"3", b"4")):
        publish(make_plan(tmp_path, weights, warmup_rows=index // 2 + 1), root)
    (root / "encoder/9").mkdir()
    (root / "encoder/9/mine").touch()
    result = prune(root, "encoder", 2)
    assert (result.versions, result.members, result.files) == ((1, 2), (), ("warmup/opt@x@1x4",))
    assert result.freed > 0
    assert versions(root) == ["3", "4", "9"]
    assert [path.name for path in (root / "encoder/warmup").iterdir()] == ["opt@x@2x4"]
    assert prune(root, "encoder", 2) == Pruned()
    assert_nothing_beside(root)


def test_publish_prunes(tmp_path, root):
    for weights in (b"1", b"2", b"3"):
        publish(make_plan(tmp_path, weights), root, keep=2)
    assert versions(root) == ["2", "3"]
    publish(make_plan(tmp_path, b"3"), root, keep=1)
    assert versions(root) == ["3"]


def test_versions_that_the_policy_serves_stay(tmp_path, root):
    for weights in (b"1", b"2", b"3"):
        publish(make_plan(tmp_path, weights), root)
    config = config_of(root)
    text = config.read_text()
    config.write_text(f"{text}version_policy {{ specific {{ versions: [1, 3] }} }}\n")
    assert prune(root, "encoder", 1).versions == (2,)
    publish(make_plan(tmp_path, b"4"), root, config="overwrite")
    config.write_text(f"{text}version_policy {{ latest {{ num_versions: 2 }} }}\n")
    assert prune(root, "encoder", 1).versions == (1,)


def test_members_go_with_the_last_version_that_refers_to_them(tmp_path, root):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    publish(make_ensemble(tmp_path, b"a", b"c"), root)
    rollback(root, "whole")
    publish(make_ensemble(tmp_path, b"d", b"c"), root)
    (root / "stranger/1").mkdir(parents=True)
    assert prune(root, "whole", 2).members == ()
    result = prune(root, "whole", 1)
    assert result.members == tuple(sorted(make_member(f"whole.segment_{i}", c).name for i, c in ((0, b"a"), (1, b"b"))))
    assert {path.name for path in root.iterdir()} == {
        "stranger",
        "whole",
        make_member("whole.segment_0", b"d").name,
        make_member("whole.segment_1", b"c").name,
    }


def test_members_stay_where_a_manifest_cannot_be_read_or_another_model_calls_them(tmp_path, root):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    other = root / "other"
    shutil.copytree(root / "whole", other)
    shutil.rmtree(other / "1")
    publish(make_ensemble(tmp_path, b"c", b"d"), root)
    assert prune(root, "whole", 1).members == ()
    shutil.rmtree(other)
    publish(make_ensemble(tmp_path, b"e", b"f"), root)
    (root / "broken/1").mkdir(parents=True)
    (root / "broken/1/manifest.json").write_text("{")
    result = prune(root, "whole", 1)
    assert (result.versions, result.members) == ((2,), ())
    assert (root / make_member("whole.segment_0", b"c").name).exists()


def test_what_cannot_be_pruned(tmp_path, root):
    with pytest.raises(RepositoryError, match="no model 'encoder'"):
        prune(root, "encoder", 1)
    assert not root.exists()
    with pytest.raises(RepositoryError, match="0 versions cannot be kept"):
        prunable(History("m", "m"), 0)


def test_withdraw_leaves_what_was_there_before(tmp_path, root):
    for edit in ("", f"# mine\n{TWO}"):
        publish(make_plan(tmp_path), root)
        with config_of(root).open("a") as file:
            file.write(edit)
        before = tree(root)
        withdraw(root, publish(make_plan(tmp_path, b"new", warmup_rows=2, extra=CACHE), root))
        assert tree(root) == before
        withdraw(root, publish(make_plan(tmp_path, b"new", extra=CACHE), root, config="keep"))
        assert tree(root) == before
        shutil.rmtree(root)


def test_withdraw_the_first_version(tmp_path, root):
    root.mkdir(parents=True)
    withdraw(root, publish(make_plan(tmp_path), root))
    withdraw(root, publish(make_ensemble(tmp_path, b"a", b"b"), root))
    assert tree(root) == {}


def test_withdraw_an_ensemble_and_a_rollback(tmp_path, root):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    before = tree(root)
    withdraw(root, publish(make_ensemble(tmp_path, b"a", b"c"), root))
    assert tree(root) == before
    publish(make_ensemble(tmp_path, b"a", b"c"), root)
    before = tree(root)
    withdraw(root, rollback(root, "whole"))
    assert tree(root) == before


def test_withdraw_keeps_an_edit_made_since(tmp_path, root):
    publish(make_plan(tmp_path), root)
    published = publish(make_plan(tmp_path, b"new", extra=CACHE), root)
    path = config_of(root)
    path.write_text(path.read_text().replace("max_batch_size: 0\n", f"max_batch_size: 0\n{TWO}"))
    withdraw(root, published)
    config = parse_config(path.read_text())
    assert config.instance_group[0].count == 2 and not config.HasField("response_cache")


def test_what_cannot_be_withdrawn(tmp_path, root):
    first = publish(make_plan(tmp_path), root)
    again = publish(make_plan(tmp_path), root)
    withdraw(root, again)
    assert versions(root) == ["1"]
    publish(make_plan(tmp_path, b"new"), root)
    with pytest.raises(RepositoryError, match="is not the newest any more"):
        withdraw(root, first)
    shutil.rmtree(root / "encoder/1")
    with pytest.raises(RepositoryError, match="no longer in the repository"):
        withdraw(root, first)
