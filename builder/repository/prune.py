"""Remove old versions, and what only they needed."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from builder.errors import RepositoryError
from builder.repository.beside import take_out_unnamed
from builder.repository.content import files_below
from builder.repository.history import History, LocalModel, read_history
from builder.repository.interface import parsed_config
from builder.repository.members import take_out_unused
from builder.repository.staging import os_errors, resolved_root, staging_directory
from builder.repository.undo import move

__all__ = ["Pruned", "prunable", "prune", "take_out_versions"]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed.

    Args:
        versions: numbers of the model's versions.
        members: names of models that only those versions called.
        files: files in the model's directory that only those versions referred to.
        freed: bytes.
    """

    versions: tuple[int, ...] = ()
    members: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    freed: int = 0


def prune(root: Path, name: str, keep: int) -> Pruned:
    """Remove versions of a model but the newest so many.

    Versions stay that the version policy names, or that another wrote. What fails leaves all of them.

    Args:
        root: the model repository.
        name: of the model.
        keep: how many versions stay, 1 or more.
    Raises:
        RepositoryError: when there is no such model, or it cannot be changed.
    """
    root = resolved_root(root)
    with os_errors(root):
        history = read_history(LocalModel(root / name), name)
    if history.newest is None:
        raise no_model(root, name)
    with os_errors(root), staging_directory(root) as staging, ExitStack() as undo:
        pruned = take_out_versions(root, history, keep, staging, undo)
        undo.pop_all()
    return pruned


def no_model(root: Path, name: str) -> RepositoryError:
    """The error that a repository has no such model of ours."""
    return RepositoryError(
        f"there is no model {name!r} built by triton-repo here",
        where=str(root),
        fix="name one of those that triton-repo inspect shows, or build it first",
    )


def prunable(history: History, keep: int) -> tuple[int, ...]:
    """The versions that may go.

    Raises:
        RepositoryError: when `keep` is no positive number.
    """
    if keep < 1:
        raise RepositoryError(f"{keep} versions cannot be kept", where="--keep", fix="keep 1 or more")
    policy = parsed_config(history.config or "", history.config_where).version_policy
    named = set(policy.specific.versions)
    # A server would otherwise unload what its policy still asks for.
    latest = history.taken[-max(policy.latest.num_versions, 1) :]
    older = sorted(history.versions)[:-keep]
    return tuple(number for number in older if number not in named and number not in latest)


def take_out_versions(root: Path, history: History, keep: int, staging: Path, undo: ExitStack) -> Pruned:
    """Move what `prune` removes into the staging directory.

    Args:
        root: the model repository.
        history: of the model.
        keep: how many versions stay.
        staging: on the repository's file system.
        undo: told how to move everything back.
    """
    into = staging / f"pruned-{uuid.uuid4().hex}"
    into.mkdir(parents=True)
    model = root / history.name
    gone = tuple(n for n in prunable(history, keep) if move(model / str(n), into / str(n), undo))
    if not gone:
        return Pruned()
    called = {name for number in gone for name in history.versions[number].manifest.members}
    members = take_out_unused(root, called, into / "members", undo)
    files = take_out_unnamed(history, gone, model, into / "beside", undo)
    freed = sum(path.lstat().st_size for path in files_below(into).values())
    return Pruned(gone, members, files, freed)
