"""One publication into a directory of this machine: puts a version together, and tries to rename it in."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from builder.files import sync_path
from builder.repository.beside import add_beside
from builder.repository.config_choice import ConfigChoice, ConfigMode
from builder.repository.content import Source, link_or_store, size_of, store, sync_tree
from builder.repository.decision import Overtaken, decide
from builder.repository.digests import plan_digests, same_content, version_sources
from builder.repository.history import RECORD_NAMES, History, LocalModel, Version, read_history
from builder.repository.members import ensure_member
from builder.repository.plan import CONFIG_NAME, Publication, RepositoryPlan
from builder.repository.prune import take_out_versions
from builder.repository.staging import make_directory
from builder.repository.undo import move, put_file
from builder.runtime.manifest import MANIFEST_NAME, FileDigest, Manifest

__all__ = ["Publisher"]


class Publisher:
    """Publishes a plan, in as many attempts as other publishers make necessary.

    Args:
        plan: the model.
        root: the repository.
        staging: an empty directory on its file system.
        replace, keep, mode: see `publish`.
        link: whether the plan's files are those of a version in the repository, which never change.
    """

    def __init__(
        self,
        plan: RepositoryPlan,
        root: Path,
        staging: Path,
        *,
        replace: bool = False,
        keep: int | None = None,
        mode: ConfigMode = "merge",
        link: bool = False,
    ) -> None:
        self._plan = plan
        self._root = root
        self._model = root / plan.name
        self._staging = staging
        self._version = staging / "version"
        self._replace, self._keep, self._mode, self._link = replace, keep, mode, link
        self._manifest: Manifest | None = None
        self._members = {member.name: member for member in plan.members}

    def attempt(self, undo: ExitStack) -> Publication | None:
        """Publish; None when another publisher was faster, and it is worth another attempt.

        Args:
            undo: told how to undo each change.
        Raises:
            RepositoryError: see `publish`.
        """
        make_directory(self._root)
        history = self._history()
        try:
            published = self._finished(history, undo) or self._added(history, undo)
        except Overtaken:
            return None
        if self._keep is not None:
            take_out_versions(self._root, self._history(), self._keep, self._fresh(), undo)
        return published

    def _finished(self, history: History, undo: ExitStack) -> Publication | None:
        """The newest version, if it has this content; what was cut short beside it is completed."""
        newest = history.newest
        if newest is None or not self._is(newest):
            return None
        decision = decide(history, self._plan.config, replace=self._replace, mode=self._mode, same=True)
        changed = decision.config.text != history.config
        if changed and decision.config.text not in (newest.rendered, newest.left):
            # The next merge needs a version that remembers what this one made.
            return None
        self._ensure_members(newest.manifest.members, undo)
        add_beside(self._plan.beside, self._model, self._staging, undo)
        if changed:
            self._settle(newest.number, decision.config, undo)
        where = self._model / str(newest.number)
        return Publication(self._plan.name, newest.number, where, False, newest.manifest, decision.note)

    def _added(self, history: History, undo: ExitStack) -> Publication:
        """The new version.

        Order, with a running server in mind: members and files beside the versions come first, for nothing
        names them yet; config.pbtxt comes last, for a policy in it may ask for the new version.
        """
        decision = decide(history, self._plan.config, replace=self._replace, mode=self._mode)
        manifest = self._staged(decision.config.records)
        self._ensure_members(manifest.members, undo)
        target = self._model / str(decision.number)
        if not self._model.exists():
            self._add_model(target.name, undo)
        else:
            add_beside(self._plan.beside, self._model, self._staging, undo)
            _move(self._version, target, undo)
            sync_path(self._model)
            self._settle(decision.number, decision.config, undo)
        # Another publisher may have taken a member away that it had added, before it saw our manifest.
        missing = {n: d for n, d in manifest.members.items() if not (self._root / n).exists()}
        self._ensure_members(missing, undo)
        return Publication(self._plan.name, decision.number, target, True, manifest, decision.note)

    def _add_model(self, version: str, undo: ExitStack) -> None:
        whole = self._fresh()
        whole.mkdir()
        # The staged version is used again in the next attempt.
        _move(self._version, whole / version, undo)
        for path, source in self._plan.beside.items():
            store(source, whole / path)
        store(self._plan.config.encode(), whole / CONFIG_NAME)
        sync_tree(whole)
        _move(whole, self._model, undo)
        sync_path(self._root)

    def _settle(self, number: int, choice: ConfigChoice, undo: ExitStack) -> None:
        """Leave the newest version's text in config.pbtxt.

        It goes round until nothing is newer, so that of two publishers the one with the newest version wins.
        """
        path = self._model / CONFIG_NAME
        while True:
            history = self._history()
            newest = history.newest
            if newest is None or number not in history.versions:
                raise Overtaken
            text = choice.text if newest.number == number else newest.left
            current = history.config
            if current == text:
                sync_path(self._model)
                return
            seen = {None, choice.before, newest.edited}
            if current not in seen and not history.is_written(current or ""):
                raise Overtaken  # a person edited the file just now
            fresh = self._fresh()
            store(text.encode(), fresh)
            if put_file(fresh, path, undo) != (None if current is None else current.encode()):
                raise Overtaken

    def _is(self, newest: Version) -> bool:
        """Whether the version has this content and is whole; digests nothing where sizes tell."""
        if self._manifest is None:
            if not _may_be(self._plan, newest.manifest):
                return False
            self._manifest = plan_digests(self._plan)
        return same_content(self._manifest, newest.manifest) and self._is_whole(newest)

    def _is_whole(self, version: Version) -> bool:
        directory = self._model / str(version.number)
        files = ((directory / path, digest.size) for path, digest in version.manifest.files.items())
        return all(path.is_file() and path.stat().st_size == size for path, size in files)

    def _staged(self, records: Mapping[str, str]) -> Manifest:
        """The version in the staging directory, with its manifest and these records of config.pbtxt."""
        if not self._version.exists():
            partial = self._fresh()
            sources = version_sources(self._plan)
            files = {path: self._store(source, partial / path) for path, source in sources.items()}
            members = (self._manifest or plan_digests(self._plan, files)).members
            self._manifest = dataclasses.replace(
                self._plan.manifest, files=dict(sorted(files.items())), members=members
            )
            partial.rename(self._version)
        assert self._manifest is not None
        for name in (*RECORD_NAMES, MANIFEST_NAME):
            (self._version / name).unlink(missing_ok=True)
        recorded = {name: store(text.encode(), self._version / name) for name, text in records.items()}
        manifest = dataclasses.replace(self._manifest, files=dict(sorted({**self._manifest.files, **recorded}.items())))
        store(manifest.to_json().encode(), self._version / MANIFEST_NAME)
        sync_tree(self._version)
        return manifest

    def _store(self, source: Source, target: Path) -> FileDigest:
        return link_or_store(source, target) if self._link and isinstance(source, Path) else store(source, target)

    def _ensure_members(self, members: Mapping[str, Mapping[str, FileDigest]], undo: ExitStack) -> None:
        for name, digests in members.items():
            ensure_member(self._root, name, digests, self._members.get(name), self._staging, undo)

    def _history(self) -> History:
        return read_history(LocalModel(self._model), self._plan.name)

    def _fresh(self) -> Path:
        return self._staging / uuid.uuid4().hex


def _move(source: Path, target: Path, undo: ExitStack) -> None:
    if not move(source, target, undo):
        raise Overtaken


def _may_be(plan: RepositoryPlan, published: Manifest) -> bool:
    """Whether the sizes of all files are those of the published version."""
    sizes = {path: size_of(source) for path, source in version_sources(plan).items()}
    there = {path: digest.size for path, digest in published.files.items() if path not in RECORD_NAMES}
    members = {member.name for member in plan.members} | set(plan.manifest.members)
    return sizes == there and members == set(published.members)
