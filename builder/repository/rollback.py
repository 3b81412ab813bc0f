"""Publish an older version again, as the newest: a server in any mode takes it."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from builder.errors import RepositoryError
from builder.repository.config_choice import ConfigMode
from builder.repository.content import digest_of
from builder.repository.history import RECORD_NAMES, History, LocalModel, Version, read_history
from builder.repository.interface import named_files, parsed_config
from builder.repository.members import check_member
from builder.repository.plan import CONFIG_NAME, Publication, RepositoryPlan
from builder.repository.prune import no_model
from builder.repository.publish import publish_staged
from builder.repository.staging import os_errors, resolved_root

__all__ = ["rollback"]


def rollback(root: Path, name: str, version: int | None = None, *, config: ConfigMode = "merge") -> Publication:
    """Make an older version the newest, under a new number; its files are not stored twice where they can be linked.

    The manifest of the new version says under `settings.copy_of` which one it is a copy of.

    Args:
        root: the model repository.
        name: of the model.
        version: its number; None for the one before the newest.
        config: what becomes of edits by hand in config.pbtxt; see `publish`.
    Raises:
        RepositoryError: when there is no such version, a file or a member of it is missing or damaged, edits conflict,
            or nothing can be written.
    """
    root = resolved_root(root)
    with os_errors(root):
        history = read_history(LocalModel(root / name), name)
        chosen = _chosen(history, version, root)
        plan = _plan(history, chosen, root)
    return publish_staged(plan, root, replace=True, keep=None, config=config, link=True)


def _chosen(history: History, version: int | None, root: Path) -> Version:
    numbers = sorted(history.versions)
    if not numbers:
        raise no_model(root, history.name)
    if version is None and len(numbers) == 1:
        raise RepositoryError(
            f"the model {history.name!r} has no version before {numbers[0]}",
            where=history.where,
            fix="build the older one again",
        )
    number = numbers[-2] if version is None else version
    if number not in history.versions:
        raise RepositoryError(
            f"the model {history.name!r} has no version {number} that triton-repo wrote",
            where=history.where,
            fix=f"choose one of {', '.join(map(str, numbers))}",
        )
    return history.versions[number]


def _plan(history: History, version: Version, root: Path) -> RepositoryPlan:
    directory = Path(history.where) / str(version.number)
    manifest = version.manifest
    files = {path: digest for path, digest in manifest.files.items() if path not in RECORD_NAMES}
    bad = [p for p, d in files.items() if not (directory / p).is_file() or digest_of(directory / p) != d]
    beside = named_files(parsed_config(version.rendered, str(directory)))
    bad += [f"../{path}" for path in sorted(beside) if not (directory.parent / path).is_file()]
    if bad:
        raise RepositoryError(
            f"version {version.number} of {history.name!r} is damaged: {', '.join(bad)}",
            where=str(directory),
            fix="choose another version, or build the model again",
        )
    for member, digests in manifest.members.items():
        if not (root / member).is_dir():
            raise RepositoryError(
                f"the member {member}, which version {version.number} calls, was removed from the repository",
                where=str(root),
                fix="choose another version, or build the model again",
            )
        check_member(root / member, digests)
    command = shlex.join(["triton-repo", "rollback", history.name, str(version.number), "--repo", str(root)])
    settings = {**manifest.settings, "copy_of": version.number}
    return RepositoryPlan(
        manifest=dataclasses.replace(manifest, files={}, command=command, settings=settings),
        config=version.rendered,
        artifacts={path: directory / path for path in files if path != CONFIG_NAME},
    )
