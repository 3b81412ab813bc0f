"""Publishing ensembles: the models that they call are directories of the repository, too."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from builder.errors import RepositoryError
from builder.repository import publisher as publisher_module
from builder.repository.publish import publish
from builder.runtime.manifest import Manifest
from tests.unit.publishing import assert_nothing_beside, config_of, make_ensemble, make_member, tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "place" / "model_repo"


def members(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()} - {"whole"}


def test_members_and_their_digests(tmp_path, root):
    published = publish(make_ensemble(tmp_path, b"a", b"b"), root)
    names = {make_member(f"whole.segment_{i}", c).name for i, c in enumerate((b"a", b"b"))}
    assert members(root) == names == published.manifest.members.keys()
    assert Manifest.read(published.path) == published.manifest
    for name in names:
        files = published.manifest.members[name]
        assert set(files) == {"config.pbtxt", "1/model.py"}
        for path, digest in files.items():
            assert hashlib.sha256((root / name / path).read_bytes()).hexdigest() == digest.sha256
    assert {path.name for path in published.path.iterdir()} == {"config.pbtxt", "manifest.json"}
    assert_nothing_beside(root)


def test_equal_members_are_shared(tmp_path, root):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    before = {path: path.stat().st_ino for path in root.rglob("*.py")}
    assert publish(make_ensemble(tmp_path, b"a", b"c"), root).version == 2
    assert {path: path.stat().st_ino for path in before} == before
    assert len(members(root)) == 3


def test_the_same_content_publishes_nothing_and_restores_what_is_missing(tmp_path, root):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    before = tree(root)
    assert not publish(make_ensemble(tmp_path, b"a", b"b"), root).created
    gone = root / make_member("whole.segment_1", b"b").name
    for path in sorted(gone.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    gone.rmdir()
    assert not publish(make_ensemble(tmp_path, b"a", b"b"), root).created
    assert tree(root) == before


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("1/model.py", b"B", "1/model.py: changed"),
        ("1/model.py", b"longer", "1/model.py: changed"),
        ("1/model.py", None, "1/model.py: missing"),
        ("config.pbtxt", b"# edited", "config.pbtxt: changed"),
    ],
)
def test_a_damaged_or_edited_member_is_an_error(tmp_path, root, path, content, said):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    file = root / make_member("whole.segment_1", b"b").name / path
    file.unlink() if content is None else file.write_bytes(content)
    before = tree(root)
    for plan in (make_ensemble(tmp_path, b"a", b"b"), make_ensemble(tmp_path, b"c", b"b")):
        with pytest.raises(RepositoryError, match="is damaged") as caught:
            publish(plan, root)
        assert said in caught.value.where
    assert tree(root) == before


def test_a_failed_publication_takes_its_members_away(tmp_path, root, monkeypatch):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    config_of(root, "whole").write_text(config_of(root, "whole").read_text() + "nonsense: 1\n")
    before = tree(root)
    with pytest.raises(RepositoryError, match="not a model configuration"):
        publish(make_ensemble(tmp_path, b"a", b"c"), root)
    assert tree(root) == before


def test_a_member_that_another_came_to_need_stays(tmp_path, root, monkeypatch):
    """The first publisher adds the member and fails; the second has used it meanwhile."""
    original, others = publisher_module.add_beside, [True]

    def add_beside(*args):
        if others and others.pop():
            publish(make_ensemble(tmp_path, b"a", b"b", extra="# second\n"), root)
            raise KeyboardInterrupt
        original(*args)

    publish(make_ensemble(tmp_path, b"x"), root)
    monkeypatch.setattr(publisher_module, "add_beside", add_beside)
    with pytest.raises(KeyboardInterrupt):
        publish(make_ensemble(tmp_path, b"a", b"b"), root)
    assert (root / "whole/2").exists()
    assert {make_member(f"whole.segment_{i}", c).name for i, c in enumerate((b"a", b"b"))} <= members(root)


def test_a_member_taken_away_in_between_comes_back(tmp_path, root, monkeypatch):
    """Another publisher added the member, and takes it away between our look and our manifest."""
    import shutil

    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    name = make_member("whole.segment_1", b"b").name
    original, done = publisher_module.add_beside, []

    def add_beside(*args):
        original(*args)
        if not done:
            done.append(shutil.rmtree(root / name))

    monkeypatch.setattr(publisher_module, "add_beside", add_beside)
    published = publish(make_ensemble(tmp_path, b"c", b"b"), root)
    assert published.created and (root / name / "1/model.py").read_bytes() == b"b"
