"""The digests of everything in a plan, which say whether it is published already."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from builder.repository.content import Source, digest_of
from builder.repository.history import identity
from builder.repository.members import member_sources
from builder.repository.plan import CONFIG_NAME, RepositoryPlan
from builder.runtime.manifest import FileDigest, Manifest

__all__ = ["plan_digests", "same_content", "version_sources"]


def version_sources(plan: RepositoryPlan) -> Mapping[str, Source]:
    """Every file of the version by its path in the version directory, but the manifest.

    The copy of the configuration records what was rendered, to tell an edited config.pbtxt later.
    """
    texts = {path: text.encode() for path, text in plan.texts.items()}
    return {CONFIG_NAME: plan.config.encode(), **texts, **plan.artifacts}


def plan_digests(plan: RepositoryPlan, files: Mapping[str, FileDigest] | None = None) -> Manifest:
    """The manifest with the digests of all files and members.

    Args:
        plan: the model.
        files: the digests of the version's files, where they are known.
    """
    if files is None:
        files = {path: digest_of(source) for path, source in version_sources(plan).items()}
    members = {m.name: {p: digest_of(s) for p, s in sorted(member_sources(m).items())} for m in plan.members}
    return dataclasses.replace(
        plan.manifest, files=dict(sorted(files.items())), members={**plan.manifest.members, **members}
    )


def same_content(one: Manifest, other: Manifest) -> bool:
    """Whether two versions are the same but for how and when they were built."""
    return identity(one) == identity(other)
