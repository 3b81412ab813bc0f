"""Publish into a repository behind a URL, where nothing can be renamed.

A server reads such a repository whenever it likes. What makes a publication visible is one write of config.pbtxt,
the last: its version policy names the versions that are complete, and so never one that is being uploaded.
"""

from __future__ import annotations

import random
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

from builder.errors import RepositoryError
from builder.remote_url import OBJECT_STORES, open_place
from builder.repository.config_choice import ConfigMode
from builder.repository.decision import Overtaken
from builder.repository.plan import Publication, RepositoryPlan
from builder.repository.publish import check_plan, publish
from builder.repository.remote_files import RemoteRepository, remote_errors
from builder.repository.remote_prune import prune_remote
from builder.repository.remote_publisher import RemotePublisher

__all__ = ["publish_remote"]

_ATTEMPTS = 20


def publish_remote(
    plan: RepositoryPlan,
    url: str,
    *,
    replace: bool = False,
    keep: int | None = None,
    config: ConfigMode = "merge",
) -> Publication:
    """Add the model to a repository in an object store; see `publish`.

    The config.pbtxt there serves the new version only, unless the plan or an edit by hand set `version_policy`.
    The `path` of what it returns is the version's path in the store.

    Args:
        plan: the model.
        url: any fsspec URL of an object store or a directory, or one in Triton's form
            ("s3://https://host:port/bucket/path", "as://account/container/path").
        replace, keep, config: as for `publish`.
    Raises:
        RepositoryError: as for `publish`; when the URL's package is missing or the store cannot be reached or written;
            then what was uploaded has been removed again.
    """
    check_plan(plan)
    place = open_place(url, RepositoryError, "--repo")
    if place.protocol in ("file", "local"):
        return publish(plan, Path(place.root), replace=replace, keep=keep, config=config)
    if place.protocol not in OBJECT_STORES:
        raise RepositoryError(
            f"a server could read half a file from {place.protocol}://, where files appear before they are whole",
            where=url,
            fix="publish to s3://, gs:// or as://, or to a directory",
        )
    repository = RemoteRepository(url, place)
    publisher = RemotePublisher(plan, repository, replace=replace, mode=config)
    with remote_errors(url):
        published = _published(publisher, repository.shown(plan.name))
        if keep is not None:
            prune_remote(repository, plan.name, keep)
    return published


def _published(publisher: RemotePublisher, where: str) -> Publication:
    token = uuid.uuid4().hex
    for attempt in range(_ATTEMPTS):
        with ExitStack() as undo:
            try:
                published = publisher.attempt(token, undo)
            except Overtaken:
                published = None
            if published is not None:
                undo.pop_all()
                with suppress(Exception):
                    publisher.settle()
                return published
        time.sleep(random.uniform(0.05, 0.2) * min(attempt + 1, 10))
    raise RepositoryError("other publishers keep taking the next version", where=where, fix="try again")
