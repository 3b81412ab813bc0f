"""Undo a publication that turned out not to work."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from builder.errors import RepositoryError
from builder.files import sync_path
from builder.repository.beside import take_out_unnamed
from builder.repository.config_merge import merge_configs
from builder.repository.content import store
from builder.repository.history import History, LocalModel, Version, read_history
from builder.repository.members import take_out_unused
from builder.repository.plan import CONFIG_NAME, Publication
from builder.repository.staging import os_errors, resolved_root, staging_directory
from builder.repository.undo import move, put_file

__all__ = ["withdraw"]


def withdraw(root: Path, publication: Publication) -> None:
    """Take a version out of the repository again, with its config.pbtxt and what only it needs.

    Nothing is done where the publication added nothing. Versions that were removed with `keep` do not come back.

    Args:
        root: the model repository.
        publication: what `publish` or `rollback` gave.
    Raises:
        RepositoryError: when the version has gone, a newer one was published since, config.pbtxt was edited since in a
            way that cannot be undone with it, or nothing can be written.
    """
    if not publication.created:
        return
    root = resolved_root(root)
    with os_errors(root):
        history = read_history(LocalModel(root / publication.name), publication.name)
    version = history.versions.get(publication.version)
    if version is None or version.manifest.to_json() != publication.manifest.to_json():
        raise RepositoryError(
            f"version {publication.version} of {publication.name!r} is no longer in the repository",
            where=history.where,
        )
    if history.newest is not version:
        raise RepositoryError(
            f"version {publication.version} of {publication.name!r} is not the newest any more, so it stays",
            where=history.where,
            fix="publish an older version again: triton-repo rollback",
        )
    with os_errors(root), staging_directory(root) as staging, ExitStack() as undo:
        _take_out(root, history, version, staging, undo)
        undo.pop_all()


def _take_out(root: Path, history: History, version: Version, staging: Path, undo: ExitStack) -> None:
    """The configuration first, for a server must not read one that asks for a version that has gone."""
    model = root / history.name
    into = staging / "withdrawn"
    into.mkdir()
    if history.taken == (version.number,):
        move(model, into / "model", undo)
    else:
        text = _text_before(history, version)
        if text is not None and text != history.config:
            fresh = staging / CONFIG_NAME
            store(text.encode(), fresh)
            put_file(fresh, model / CONFIG_NAME, undo)
        move(model / str(version.number), into / "version", undo)
        sync_path(model)
        restored = read_history(LocalModel(model), history.name)
        earlier = History(history.name, history.where, history.taken, history.versions, restored.config, False)
        take_out_unnamed(earlier, [version.number], model, into / "beside", undo)
    sync_path(root)
    take_out_unused(root, version.manifest.members, into / "members", undo)


def _text_before(history: History, version: Version) -> str | None:
    """The config.pbtxt that the publication found, with what was edited since."""
    older = [v for number, v in history.versions.items() if number < version.number]
    before = version.edited or (older[-1].left if older else None)
    if before is None or history.config in (None, version.left):
        return before
    return merge_configs(version.left, history.config or "", before, history.config_where)
