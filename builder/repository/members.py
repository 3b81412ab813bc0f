"""The models that only an ensemble calls: each a directory of its own, written once, shared by all that refer to it.

Two publishers may share one while either fails. So a member is taken away first and looked for in the manifests
afterwards, while whoever publishes a manifest looks for its members afterwards: one of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from builder.errors import RepositoryError
from builder.files import sync_path
from builder.repository.content import Source, digest_of, files_below, store, sync_tree
from builder.repository.history import LocalModel, ModelFiles, version_numbers
from builder.repository.interface import called_models, parsed_config
from builder.repository.plan import CONFIG_NAME, MemberPlan
from builder.repository.undo import move
from builder.runtime.manifest import FileDigest

__all__ = [
    "Digests",
    "check_member",
    "damage",
    "ensure_member",
    "member_sources",
    "referred_members",
    "take_out_unused",
]

Digests = Mapping[str, FileDigest]


def member_sources(member: MemberPlan) -> Mapping[str, Source]:
    """Every file of a member by its path in the member's directory."""
    return {CONFIG_NAME: member.config.encode(), **member.files}


def ensure_member(
    root: Path, name: str, digests: Digests, member: MemberPlan | None, staging: Path, undo: ExitStack
) -> None:
    """Have the member in the repository: the one that is there, or a new one.

    Args:
        root: the repository.
        name: of the member.
        digests: of its files.
        member: what is written where it is missing; None if it cannot be.
        staging: where it is put together.
        undo: told how to take it away again.
    Raises:
        RepositoryError: when it is damaged or edited, or missing and cannot be written.
    """
    target, staged = root / name, staging / "members" / name
    while not target.exists():
        if member is None:
            raise RepositoryError(
                f"the member {name}, which the ensemble calls, was removed from the repository",
                where=str(target),
                fix="choose another version, or build the model again",
            )
        if not staged.exists():
            for path, source in member_sources(member).items():
                store(source, staged / path)
            sync_tree(staged)
        undo.callback(_put_back_if_used, root, name, staged)
        if move(staged, target, undo):
            sync_path(root)
            return
    check_member(target, digests)


def check_member(directory: Path, digests: Digests) -> None:
    """Check every file of a member.

    Raises:
        RepositoryError: naming those that are missing or not as they were written.
    """
    found = list(damage(directory, digests))
    if found:
        raise RepositoryError(
            f"the member {directory.name} of an ensemble is damaged: its name stands for other content",
            where="\n".join([str(directory), *(f"{path}: {what}" for path, what in found)]),
            fix="undo the change; or, if no server uses it, remove that directory and build the model again",
        )


def damage(directory: Path, digests: Digests) -> Iterator[tuple[str, str]]:
    """The files that are not as they were written, each with "missing" or "changed"."""
    there = files_below(directory) if directory.is_dir() else {}
    for path, digest in digests.items():
        if path not in there:
            yield path, "missing"
        elif there[path].stat().st_size != digest.size or digest_of(there[path]) != digest:
            yield path, "changed"


def referred_members(models: Iterable[ModelFiles]) -> frozenset[str] | None:
    """The members that any version or configuration of these models refers to; None if one cannot be read."""
    found: set[str] = set()
    try:
        for model in models:
            for number in version_numbers(model.names()):
                manifest = model.manifest(number)
                found.update(manifest.members if manifest else ())
            config = model.read(CONFIG_NAME)
            if config and b"ensemble_scheduling" in config:
                found |= called_models(parsed_config(config.decode(), model.where))
    except (RepositoryError, UnicodeDecodeError):
        return None
    return frozenset(found)


def take_out_unused(root: Path, names: Iterable[str], into: Path, undo: ExitStack) -> tuple[str, ...]:
    """Move the members that nothing refers to any more out of the repository.

    Args:
        root: the repository.
        names: of the members that may go.
        into: where they are moved to.
        undo: told how to move them back.
    Returns: the names of those that went; none where a manifest cannot be read, for it may refer to any.
    """
    candidates = {name for name in names if (root / name).is_dir()}
    used = _referred(root) if candidates else frozenset()
    if used is None:
        return ()
    into.mkdir(parents=True, exist_ok=True)
    taken = [name for name in sorted(candidates - used) if move(root / name, into / name, undo)]
    used = _referred(root) if taken else frozenset()
    wanted = [name for name in taken if used is None or name in used]
    for name in wanted:
        move(into / name, root / name, undo)
    return tuple(name for name in taken if name not in wanted)


def _referred(root: Path) -> frozenset[str] | None:
    return referred_members(LocalModel(directory) for directory in root.iterdir() if directory.is_dir())


def _put_back_if_used(root: Path, name: str, staged: Path) -> None:
    """Runs after the member was taken away again."""
    used = _referred(root)
    if staged.exists() and not (root / name).exists() and (used is None or name in used):
        staged.rename(root / name)
