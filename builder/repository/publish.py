"""Put a model into a repository that a server may be reading.

A server sees nothing of a publication until one rename, and nothing of one that failed. No step relies
on a lock: whoever loses a race for a name looks again and takes the next number.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from builder.errors import RepositoryError
from builder.repository.config import validate_config
from builder.repository.config_choice import ConfigMode
from builder.repository.decision import decide
from builder.repository.history import LocalModel, read_history
from builder.repository.plan import Publication, RepositoryPlan
from builder.repository.publisher import Publisher
from builder.repository.staging import check_writable, os_errors, resolved_root, staging_directory

__all__ = ["check_interface", "check_plan", "check_writable", "publish", "publish_staged"]

_ATTEMPTS = 100


def publish(
    plan: RepositoryPlan,
    root: Path,
    *,
    replace: bool = False,
    keep: int | None = None,
    config: ConfigMode = "merge",
) -> Publication:
    """Add the model to the repository, as version 1 or as the next version.

    The same content as the newest version adds nothing. Whatever fails, the repository is as it was.

    Args:
        plan: the model.
        root: the model repository; made if it is missing.
        replace: let the new version have other inputs and outputs than the newest.
        keep: remove versions older than the newest so many; see `prune`.
        config: what becomes of edits by hand in config.pbtxt: "merge" them with the new values, "keep" the file as
            it is, or "overwrite" it. The note of the publication says what was done.
    Raises:
        RepositoryError: when the configuration is wrong, the model in the repository has other inputs or
            outputs or was not written by this tool, edits conflict, a member is damaged, or a file cannot be written.
    """
    check_plan(plan)
    return publish_staged(plan, root, replace=replace, keep=keep, config=config)


def check_interface(root: Path, name: str, draft: str, *, replace: bool = False) -> None:
    """Check that a model with this configuration can be published, before it is compiled.

    Args:
        root: the model repository, which need not exist yet.
        name: of the model.
        draft: its config.pbtxt, as far as it is known.
        replace: as for `publish`.
    Raises:
        RepositoryError: when the directory holds another's model, or inputs or outputs changed.
    """
    root = resolved_root(root)
    decide(read_history(LocalModel(root / name), name), draft, replace=replace, mode="overwrite")


def check_plan(plan: RepositoryPlan) -> None:
    """Check every configuration of it.

    Raises:
        RepositoryError: with the server's own words where it has any.
    """
    validate_config(plan.config, plan.name)
    for member in plan.members:
        validate_config(member.config, member.name)


def publish_staged(
    plan: RepositoryPlan, root: Path, *, replace: bool, keep: int | None, config: ConfigMode, link: bool = False
) -> Publication:
    """`publish` of a plan that was checked; with `link` its files are those of a version in the repository.

    Raises:
        RepositoryError: as for `publish`.
    """
    root = resolved_root(root)
    with os_errors(root), staging_directory(root) as staging:
        publisher = Publisher(plan, root, staging, replace=replace, keep=keep, mode=config, link=link)
        for _ in range(_ATTEMPTS):
            with ExitStack() as undo:
                publication = publisher.attempt(undo)
                if publication is not None:
                    undo.pop_all()
                    return publication
        raise RepositoryError(
            "other publishers keep taking the next version", where=str(root / plan.name), fix="try again"
        )
