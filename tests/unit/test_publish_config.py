"""Publishing: config.pbtxt, what people wrote in it, and the signature that clients rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import RepositoryError
from builder.model_config import parse_config
from builder.repository.publish import publish
from tests.unit.publishing import assert_nothing_beside, config_of, make_plan, tree

CACHE = "response_cache { enable: true }\n"
TWO = "instance_group { count: 2 kind: KIND_CPU }\n"
THREE = TWO.replace("2", "3")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "place" / "model_repo"


def append(root: Path, text: str) -> str:
    path = config_of(root)
    path.write_text(path.read_text() + text)
    return path.read_text()


def test_an_edit_and_new_values_are_merged(tmp_path, root):
    publish(make_plan(tmp_path), root)
    edited = append(root, f"# mine\n{TWO}")
    published = publish(make_plan(tmp_path, b"other", extra=CACHE), root)
    assert published.note == (
        "edits by hand in config.pbtxt were kept: instance_group: [] -> [{count: 2 kind: KIND_CPU}]"
    )
    text = config_of(root).read_text()
    config = parse_config(text)
    assert "# mine" in text and config.instance_group[0].count == 2 and config.response_cache.enable
    assert CACHE not in edited
    # The version remembers what was rendered, what came of it, and what the person had written.
    version = root / "encoder" / "2"
    assert (version / "config.pbtxt").read_text() == make_plan(tmp_path, extra=CACHE).config
    assert (version / "config.merged.pbtxt").read_text() == text
    assert (version / "config.edited.pbtxt").read_text() == edited
    assert {"config.merged.pbtxt", "config.edited.pbtxt"} < published.manifest.files.keys()


def test_the_next_merge_starts_from_the_last(tmp_path, root):
    publish(make_plan(tmp_path), root)
    append(root, TWO)
    publish(make_plan(tmp_path, b"2", extra=CACHE), root)
    published = publish(make_plan(tmp_path, b"3"), root)
    config = parse_config(config_of(root).read_text())
    assert config.instance_group[0].count == 2 and not config.HasField("response_cache")
    assert "instance_group" in published.note
    # What the person takes back is gone.
    config_of(root).write_text(config_of(root).read_text().replace(TWO, ""))
    assert publish(make_plan(tmp_path, b"4"), root).note == ""
    assert config_of(root).read_text() == make_plan(tmp_path).config


def test_the_same_content_with_an_edit_publishes_nothing(tmp_path, root):
    publish(make_plan(tmp_path), root)
    edited = append(root, TWO)
    before = tree(root)
    published = publish(make_plan(tmp_path), root)
    assert (published.created, published.version) == (False, 1)
    assert "edits by hand in config.pbtxt were kept" in published.note
    assert tree(root) == before and config_of(root).read_text() == edited


def test_a_conflict_publishes_nothing_and_has_three_ways_out(tmp_path, root):
    publish(make_plan(tmp_path, extra=TWO), root)
    path = config_of(root)
    path.write_text(path.read_text().replace("count: 2", "count: 5"))
    before = tree(root)
    new = make_plan(tmp_path, b"other", extra=THREE)
    with pytest.raises(RepositoryError, match="edited by hand where its new values differ") as caught:
        publish(new, root)
    assert "edited to:   5\n  new:         3" in caught.value.where
    assert tree(root) == before
    assert_nothing_beside(root)
    kept = publish(new, root, config="keep")
    assert "was kept as it is" in kept.note and "count: 5" in path.read_text()
    again = publish(new, root, config="keep")
    assert not again.created
    with pytest.raises(RepositoryError, match="edited by hand"):
        publish(new, root)
    overwritten = publish(new, root, config="overwrite")
    assert (overwritten.created, overwritten.note) == (
        False,
        "edits by hand in config.pbtxt were overwritten, as asked",
    )
    assert path.read_text() == new.config
    path.unlink()
    assert publish(new, root).note == "" and path.read_text() == new.config


def test_what_was_kept_is_merged_later_from_where_it_came(tmp_path, root):
    publish(make_plan(tmp_path), root)
    append(root, "# mine\n")
    publish(make_plan(tmp_path, b"2", extra=TWO), root, config="keep")
    assert "instance_group" not in config_of(root).read_text()
    assert (root / "encoder/2/config.base.pbtxt").read_text() == make_plan(tmp_path).config
    published = publish(make_plan(tmp_path, b"2", extra=TWO), root)
    # A version of its own, since only a version remembers what the next merge starts from.
    assert (published.version, published.created) == (3, True)
    assert TWO in config_of(root).read_text() and "# mine" in config_of(root).read_text()
    assert not (root / "encoder/3/config.base.pbtxt").exists()
    assert not publish(make_plan(tmp_path, b"2", extra=TWO), root).created


def test_an_edit_that_breaks_the_configuration_is_an_error(tmp_path, root):
    publish(make_plan(tmp_path), root)
    append(root, "nonsense: 1\n")
    before = tree(root)
    for mode in ("merge", "keep"):
        with pytest.raises(RepositoryError, match="not a model configuration"):
            publish(make_plan(tmp_path, b"other"), root, config=mode)
    config_of(root).write_text(config_of(root).read_text().replace("nonsense: 1\n", "max_batch_size: -3\n"))
    with pytest.raises(RepositoryError):
        publish(make_plan(tmp_path, b"other"), root, config="keep")
    config_of(root).write_bytes(b"\xff\xfe")
    with pytest.raises(RepositoryError, match="not UTF-8"):
        publish(make_plan(tmp_path, b"other"), root)
    config_of(root).write_bytes(before["encoder/config.pbtxt"])
    assert tree(root) == before


def test_another_signature_is_refused_with_the_difference(tmp_path, root):
    publish(make_plan(tmp_path), root)
    before = tree(root)
    with pytest.raises(RepositoryError) as caught:
        publish(make_plan(tmp_path, width=5), root)
    assert "- input x: TYPE_FP32 [-1, 4]\n+ input x: TYPE_FP32 [-1, 5]" in caught.value.where
    assert "--replace" in caught.value.fix and "another name" in caught.value.fix
    assert tree(root) == before
    assert_nothing_beside(root)


def test_another_signature_replaces(tmp_path, root):
    publish(make_plan(tmp_path), root)
    published = publish(make_plan(tmp_path, width=5), root, replace=True)
    assert published.version == 2 and (root / "encoder/1/manifest.json").exists()
    assert config_of(root).read_text() == make_plan(tmp_path, width=5).config


def test_batching_does_not_change_the_signature(tmp_path, root):
    import dataclasses

    plan = make_plan(tmp_path)
    publish(plan, root)
    batched = plan.config.replace("max_batch_size: 0", "max_batch_size: 8").replace("dims: [ -1, ", "dims: [ ")
    batched = batched.replace("dims: [ 8, 4 ]", "dims: [ 4 ]")
    assert publish(dataclasses.replace(plan, config=batched), root).version == 2


def test_a_policy_that_would_serve_another_signature_is_refused(tmp_path, root):
    publish(make_plan(tmp_path), root)
    for policy in ("all { }", "latest { num_versions: 2 }", "specific { versions: [1, 2] }"):
        plan = make_plan(tmp_path, width=5, extra=f"version_policy {{ {policy} }}\n")
        with pytest.raises(RepositoryError, match="would also serve version 1, which is run in another way"):
            publish(plan, root, replace=True)
    plan = make_plan(tmp_path, width=5, extra="version_policy { specific { versions: [2] } }\n")
    assert publish(plan, root, replace=True).version == 2


def test_what_is_kept_cannot_have_another_signature(tmp_path, root):
    publish(make_plan(tmp_path), root)
    append(root, TWO)
    with pytest.raises(RepositoryError, match="cannot be kept as it is"):
        publish(make_plan(tmp_path, width=5), root, replace=True, config="keep")


def test_a_version_policy_must_leave_a_version(tmp_path, root):
    policy = "version_policy { specific { versions: [2] } }\n"
    with pytest.raises(RepositoryError, match="at least one version must be available under the version policy"):
        publish(make_plan(tmp_path, extra=policy), root)
    assert not root.exists()
    publish(make_plan(tmp_path), root)
    assert publish(make_plan(tmp_path, extra=policy), root).note == ""
    third = publish(make_plan(tmp_path, b"other", extra=policy), root)
    assert third.note == "a server will not load version 3: version_policy.specific does not name it"


def test_a_missing_config_is_written(tmp_path, root):
    publish(make_plan(tmp_path), root)
    config_of(root).unlink()
    publish(make_plan(tmp_path, b"other"), root)
    assert config_of(root).read_text() == make_plan(tmp_path).config
