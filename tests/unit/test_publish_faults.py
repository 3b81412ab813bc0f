"""Publishing: whatever fails, the repository is as it was."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from builder.errors import RepositoryError
from builder.repository import content
from builder.repository.prune import prune
from builder.repository.publish import check_writable, publish
from builder.repository.rollback import rollback
from builder.repository.withdraw import withdraw
from tests.unit.publishing import config_of, fail_once, make_ensemble, make_plan, tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "place" / "model_repo"


@pytest.mark.parametrize("existing", [False, True])
def test_interrupt_while_copying(tmp_path, root, monkeypatch, existing):
    if existing:
        publish(make_plan(tmp_path), root)

    def interrupted(source):
        yield b"half"
        raise KeyboardInterrupt

    plan = make_plan(tmp_path, b"other", extra="response_cache { enable: true }")
    before = tree(tmp_path)
    monkeypatch.setattr(content, "chunks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publish(plan, root)
    assert tree(tmp_path) == before
    assert root.exists() == existing


def new_model(tmp_path, root):
    return partial(publish, make_plan(tmp_path), root)


def next_version(tmp_path, root):
    publish(make_plan(tmp_path), root)
    return partial(publish, make_plan(tmp_path, warmup_rows=2, extra="response_cache { enable: true }"), root)


def edited_config(tmp_path, root):
    act = next_version(tmp_path, root)
    with config_of(root).open("a") as file:
        file.write("# mine\ninstance_group { count: 2 kind: KIND_CPU }\n")
    return act


def replaced_signature(tmp_path, root):
    publish(make_plan(tmp_path), root)
    return partial(publish, make_plan(tmp_path, width=5), root, replace=True)


def only_two_kept(tmp_path, root):
    for weights in (b"one", b"two", b"three"):
        publish(make_plan(tmp_path, weights, warmup_rows=len(weights)), root)
    return partial(publish, make_plan(tmp_path, b"new", warmup_rows=2), root, keep=2)


def missing_warmup(tmp_path, root):
    publish(make_plan(tmp_path), root)
    shutil.rmtree(root / "encoder" / "warmup")
    config_of(root).unlink()
    return partial(publish, make_plan(tmp_path), root)


def new_ensemble(tmp_path, root):
    return partial(publish, make_ensemble(tmp_path, b"a", b"b"), root)


def next_ensemble(tmp_path, root):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    return partial(publish, make_ensemble(tmp_path, b"a", b"c", b"d"), root, keep=1)


def rolled_back(tmp_path, root):
    publish(make_plan(tmp_path, b"one"), root)
    publish(make_plan(tmp_path, b"two", extra="response_cache { enable: true }"), root)
    return partial(rollback, root, "encoder")


def pruned(tmp_path, root):
    for contents in ((b"a", b"b"), (b"a", b"c"), (b"a", b"d")):
        publish(make_ensemble(tmp_path, *contents), root)
    return partial(prune, root, "whole", 1)


def withdrawn(tmp_path, root):
    publish(make_ensemble(tmp_path, b"a", b"b"), root)
    return partial(withdraw, root, publish(make_ensemble(tmp_path, b"a", b"c"), root))


@pytest.mark.parametrize(
    "scenario",
    [
        new_model,
        next_version,
        edited_config,
        replaced_signature,
        only_two_kept,
        missing_warmup,
        new_ensemble,
        next_ensemble,
        rolled_back,
        pruned,
        withdrawn,
    ],
)
@pytest.mark.parametrize(
    ("error", "done"),
    [(KeyboardInterrupt(), False), (KeyboardInterrupt(), True), (OSError(errno.EIO, "Input/output error"), False)],
)
def test_failure_at_every_step_leaves_the_repository_as_it_was(tmp_path, root, monkeypatch, scenario, error, done):
    """Break each of the calls that change or flush the repository, one after the other."""
    act = scenario(tmp_path, root)
    before = tree(tmp_path)
    copy = tmp_path.with_name(f"{tmp_path.name}-copy")
    shutil.copytree(tmp_path, copy)
    for module, name in ((os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "mkdir"), (Path, "open")):
        for calls in range(500):
            with monkeypatch.context() as patch:
                fail_once(patch, module, name, error, after=calls, done=done)
                try:
                    act()
                except (KeyboardInterrupt, RepositoryError):
                    pass
                else:
                    break
            assert tree(tmp_path) == before, f"{name} failed after {calls} calls"
        assert tree(tmp_path) != before, "the loop ended with a call that succeeded"
        shutil.rmtree(tmp_path)
        shutil.copytree(copy, tmp_path)
    shutil.rmtree(copy)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "there is no permission to write here"),
    ],
)
def test_failed_write_is_one_clear_sentence(tmp_path, root, monkeypatch, code, message):
    plan = make_plan(tmp_path)
    before = tree(tmp_path)
    original = Path.open

    def opened(path, mode="r", *args, **kwargs):
        stream = original(path, mode, *args, **kwargs)
        return FullDisk(stream, code) if path.name == "segment_0.onnx" else stream

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(RepositoryError) as caught:
        publish(plan, root)
    assert caught.value.what == f"the repository cannot be changed: {message}"
    assert caught.value.where == str(root)
    assert caught.value.fix
    monkeypatch.undo()
    assert tree(tmp_path) == before


class FullDisk:
    def __init__(self, stream, code: int) -> None:
        self._stream, self._code = stream, code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.close()

    def write(self, data: bytes) -> int:
        raise OSError(self._code, os.strerror(self._code))


@pytest.mark.parametrize("call", [check_writable, None])
@pytest.mark.parametrize("place", ["model_repo", "model_repo/below", "model_repo/far/below"])
def test_a_file_in_place_of_a_directory(tmp_path, call, place):
    (tmp_path / "model_repo").write_text("a file")
    plan = make_plan(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(RepositoryError, match="a file stands where a directory is needed"):
        (call or (lambda root: publish(plan, root)))(tmp_path / place)
    assert tree(tmp_path) == before


def test_a_file_in_place_of_the_model(tmp_path, root):
    root.mkdir(parents=True)
    (root / "encoder").write_text("a file")
    with pytest.raises(RepositoryError, match="a file stands where a directory is needed"):
        publish(make_plan(tmp_path), root)
    assert (root / "encoder").read_text() == "a file"


def test_a_missing_artifact_is_named(tmp_path, root):
    plan = make_plan(tmp_path)
    (source := plan.artifacts["segments/segment_0.onnx"]).unlink()
    with pytest.raises(RepositoryError, match="No such file") as caught:
        publish(plan, root)
    assert caught.value.where == str(source)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_parent(tmp_path, root):
    root.mkdir(parents=True)
    root.parent.chmod(0o555)
    try:
        with pytest.raises(RepositoryError, match="no permission") as caught:
            check_writable(root)
        assert str(root.parent) in caught.value.where
    finally:
        root.parent.chmod(0o755)


def test_an_unwritable_parent_is_named(tmp_path, root, monkeypatch):
    root.mkdir(parents=True)
    original = Path.mkdir

    def refused(path, *args, **kwargs):
        if path.name == ".model_repo.staging":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(RepositoryError, match="no permission") as caught:
        check_writable(root)
    assert caught.value.where.startswith(f"{root.parent}, where a model is put together")


@pytest.mark.parametrize("call", [check_writable, None])
def test_a_mount_point_is_explained(tmp_path, root, monkeypatch, call):
    plan = make_plan(tmp_path)
    root.mkdir(parents=True)
    fail_once(monkeypatch, Path, "rename", OSError(errno.EXDEV, "Invalid cross-device link"))
    with pytest.raises(RepositoryError, match="a mount point of its own"):
        (call or (lambda root: publish(plan, root)))(root)
    monkeypatch.undo()
    assert tree(root) == {}


def test_check_writable_leaves_nothing(tmp_path, root):
    check_writable(root)
    assert list(tmp_path.iterdir()) == []
    root.mkdir(parents=True)
    check_writable(root)
    assert tree(tmp_path) == {"place": b"/", "place/model_repo": b"/"}
    with pytest.raises(RepositoryError, match="root of the file system"):
        check_writable(Path("/"))
