"""Remove old versions from a repository in an object store."""

from __future__ import annotations

from builder.repository.beside import files_named
from builder.repository.history import read_history
from builder.repository.interface import named_files, parsed_config
from builder.repository.members import referred_members
from builder.repository.prune import Pruned, prunable
from builder.repository.remote_files import RemoteRepository

__all__ = ["prune_remote"]


def prune_remote(repository: RemoteRepository, name: str, keep: int) -> Pruned:
    """Remove versions of a model but the newest so many; see `prune`. It cannot be undone, and may stop half-way.

    Raises:
        RepositoryError: when `keep` is no positive number, or config.pbtxt is not valid.
        Exception: whatever the file system raises.
    """
    history = read_history(repository.model(name), name)
    gone = prunable(history, keep)
    freed = 0
    for number in gone:
        freed += sum(repository.sizes(f"{name}/{number}").values())
        repository.remove_all(f"{name}/{number}")
    versions = [history.versions[number] for number in gone]
    called = {member for version in versions for member in version.manifest.members}
    used = referred_members(repository.models()) if called else frozenset()
    members = () if used is None else tuple(sorted(called - used))
    for member in members:
        freed += sum(repository.sizes(member).values())
        repository.remove_all(member)
    texts = {text for version in versions for text in (version.rendered, version.left) if text}
    named = {path for text in texts for path in named_files(parsed_config(text, history.where))}
    files = tuple(sorted(named - files_named(history, gone)))
    for path in files:
        repository.remove(f"{name}/{path}")
    return Pruned(gone, members, files, freed)
