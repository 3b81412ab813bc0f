"""The last stage: a plan goes into a repository, which may be remote, and into a server that may be running."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.errors import SpecError
from builder.progress import Progress
from builder.remote_url import is_remote
from builder.repository.config_choice import ConfigMode
from builder.repository.plan import Publication, RepositoryPlan
from builder.repository.prune import prune
from builder.repository.publish import check_interface, publish
from builder.repository.remote_target import publish_remote
from builder.repository.staging import check_writable
from builder.serving.reload import publish_live, server_address
from builder.spec import BuildSpec
from builder.verify.smoke import smoke

__all__ = ["PublishOptions", "check_draft", "check_target", "publish_plan"]


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """How a version gets to those who use it.

    Args:
        replace: let it have other inputs or outputs than the version before it.
        keep: remove all but the newest so many versions afterwards; None keeps all.
        config: what becomes of edits by hand in config.pbtxt.
        reload: a server in explicit mode, "HOST:PORT" or "grpc://HOST:PORT", that is to load it and is then called;
            None for no server.
    """

    replace: bool = False
    keep: int | None = None
    config: ConfigMode = "merge"
    reload: str | None = None


def check_target(root: Path | str, options: PublishOptions) -> None:
    """Check that a model can be published, before the long build.

    Raises:
        SpecError: when the options do not go together.
        ServingError: when the server's address is none.
        RepositoryError: when the repository cannot be written.
    """
    if options.keep is not None and options.keep < 1:
        raise SpecError(f"keep = {options.keep} would leave nothing", where="--keep", fix="keep 1 version or more")
    if options.reload is not None:
        server_address(options.reload)
    if is_remote(str(root)):
        if options.reload:
            raise SpecError(
                "a version in a remote repository could not be taken back if a server does not like it",
                where="--reload",
                fix="publish, then have the server load it; or publish into a directory that the server reads",
            )
        return
    check_writable(Path(root))


def check_draft(name: str, draft: str, root: Path | str, options: PublishOptions) -> None:
    """Check that what is to be built could be published, before it is compiled. A remote repository is asked at the end.

    Args:
        name: of the model.
        draft: its config.pbtxt, as far as it is known; "" where it is not.
    Raises:
        RepositoryError: as `publish`.
    """
    if draft and not is_remote(str(root)):
        check_interface(Path(root), name, draft, replace=options.replace)


def publish_plan(
    plan: RepositoryPlan, root: Path | str, options: PublishOptions, spec: BuildSpec, progress: Progress
) -> Publication:
    """Publish, and have a server take it if one is named.

    Args:
        root: a directory, or a URL of an object store that Triton reads.
        spec: of the model, to call it with.
    Raises:
        RepositoryError: as `publish`.
        ServingError: when the server does not take the version, which is then withdrawn.
    """
    if is_remote(str(root)):
        return publish_remote(plan, str(root), replace=options.replace, keep=options.keep, config=options.config)
    root = Path(root)
    if options.reload is None:
        return publish(plan, root, replace=options.replace, keep=options.keep, config=options.config)
    publication = publish(plan, root, replace=options.replace, config=options.config)
    urls = dict([server_address(options.reload)])
    progress.stage("reload")
    publish_live(publication, root, options.reload, lambda: smoke(spec, root, progress, urls=urls))
    if options.keep is not None:
        # Not before: what is pruned cannot be brought back.
        prune(root, plan.name, options.keep)
    return publication
