"""One publication into an object store: claims a number, uploads a version, and has config.pbtxt name it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from builder.errors import RepositoryError
from builder.repository.config_choice import ConfigMode
from builder.repository.content import Source, digest_of, size_of
from builder.repository.decision import Decision, Overtaken, decide
from builder.repository.digests import plan_digests, same_content, version_sources
from builder.repository.history import History, Version, read_history
from builder.repository.interface import parsed_config
from builder.repository.members import Digests, member_sources
from builder.repository.plan import CONFIG_NAME, MemberPlan, Publication, RepositoryPlan
from builder.repository.remote_files import RemoteRepository
from builder.runtime.manifest import MANIFEST_NAME, FileDigest, Manifest

__all__ = ["RemotePublisher"]

_CLAIM = ".claim-"

# Enough for publishers in a queue; a store that does not show what was written must not hold us for ever.
_LOOKS = 20

# Below it an object's content is compared, above it only its size.
_SMALL = 1 << 20


class RemotePublisher:
    """Publishes a plan, in as many attempts as other publishers make necessary.

    Args:
        plan: the model.
        repository: where to.
        replace, mode: see `publish`.
    """

    def __init__(
        self, plan: RepositoryPlan, repository: RemoteRepository, *, replace: bool = False, mode: ConfigMode = "merge"
    ) -> None:
        self._plan = plan
        self._repository = repository
        self._replace, self._mode = replace, mode
        self._digests: Manifest | None = None

    def attempt(self, token: str, undo: ExitStack) -> Publication | None:
        """Publish; None when it is worth another attempt.

        Args:
            token: tells this publisher from others.
            undo: told how to undo each upload.
        Raises:
            RepositoryError: see `publish_remote`.
            Overtaken: when it is worth another attempt.
            Exception: whatever the file system raises.
        """
        history = self._history()
        return self._finished(history, undo) or self._added(history, token, undo)

    def settle(self) -> None:
        """Of two publishers have the one with the newest version win: the file may hold the other's text.

        Called when a publication cannot fail any more. Whoever comes last sees both, and every write is looked at
        again.
        """
        for _ in range(_LOOKS):
            history = self._history()
            newest = history.newest
            if newest is None or history.config in (None, newest.left) or not history.is_written(history.config or ""):
                return
            self._repository.put(newest.left.encode(), f"{self._plan.name}/{CONFIG_NAME}")

    def _finished(self, history: History, undo: ExitStack) -> Publication | None:
        """The newest version, if it has this content; what was cut short beside it is completed."""
        newest = history.newest
        if newest is None:
            return None
        plan = self._numbered(newest.number)
        if not same_content(self._manifest(plan), newest.manifest) or not self._is_whole(newest):
            return None
        decision = self._decided(history, plan, same=True)
        changed = decision.config.text != history.config
        if changed and decision.config.text not in (newest.rendered, newest.left):
            return None
        self._add_members(newest.manifest, undo)
        self._add_beside(undo)
        if changed:
            self._put_config(decision, undo)
        return self._publication(newest.number, False, newest.manifest, decision.note)

    def _added(self, history: History, token: str, undo: ExitStack) -> Publication:
        number = max(history.taken, default=0) + 1
        plan = self._numbered(number)
        decision = self._decided(history, plan)
        claim = self._claim(number, token, undo)
        manifest = self._manifest(plan)
        self._add_members(manifest, undo)
        self._add_beside(undo)
        records = {name: text.encode() for name, text in decision.config.records.items()}
        manifest = dataclasses.replace(manifest, files=_sorted({**manifest.files, **_digested(records)}))
        files = {**version_sources(plan), **records, MANIFEST_NAME: manifest.to_json().encode()}
        for path, source in files.items():
            self._repository.add(source, f"{plan.name}/{number}/{path}", undo)
        self._put_config(decision, undo)
        # Another publisher may have failed since, and removed what it had added before us.
        self._add_members(manifest, undo)
        self._repository.remove(claim, strict=True)
        return self._publication(number, True, manifest, decision.note)

    def _claim(self, number: int, token: str, undo: ExitStack) -> str:
        """Take a number. Of two who claim one at least one sees the other, and whoever does gives way."""
        directory = f"{self._plan.name}/{number}"
        claim = f"{directory}/{_CLAIM}{token}"
        self._repository.add(b"", claim, undo)
        if set(self._repository.sizes(directory)) != {f"{_CLAIM}{token}"}:
            raise Overtaken
        return claim

    def _put_config(self, decision: Decision, undo: ExitStack) -> None:
        """Make the publication visible."""
        if self._history().config != decision.config.before:
            raise Overtaken
        path = f"{self._plan.name}/{CONFIG_NAME}"
        text = decision.config.text
        undo.callback(self._put_back, path, decision, undo)
        self._repository.put(text.encode(), path)

    def _put_back(self, path: str, decision: Decision, undo: ExitStack) -> None:
        """Undo a write that failed, or seemed to: it may have arrived."""
        try:
            if self._repository.read(path) != decision.config.text.encode():
                return
            if decision.config.before is None:
                self._repository.remove(path, strict=True)
            elif decision.config.before != decision.config.text:
                self._repository.put(decision.config.before.encode(), path)
        except Exception:
            # It may name the new version, so that must stay; all of it is there by now.
            undo.pop_all()
            raise

    def _add_members(self, manifest: Manifest, undo: ExitStack) -> None:
        plans = {member.name: member for member in self._plan.members}
        for name, digests in manifest.members.items():
            self._add_member(name, digests, plans.get(name), undo)

    def _add_member(self, name: str, digests: Digests, member: MemberPlan | None, undo: ExitStack) -> None:
        there = self._repository.sizes(name)
        sources = member_sources(member) if member else {}
        wrong = [path for path, digest in digests.items() if path in there and there[path] != digest.size]
        small = [p for p in digests if p in there and p not in wrong and p in sources and digests[p].size <= _SMALL]
        wrong += [path for path in small if self._repository.read(f"{name}/{path}") != _content(sources[path])]
        if wrong:
            raise RepositoryError(
                f"the member {name} of an ensemble is damaged: its name stands for other content",
                where="\n".join(self._repository.shown(f"{name}/{path}") for path in wrong),
                fix="undo the change; or, if no server uses it, remove that directory and build the model again",
            )
        # A directory without config.pbtxt is no model yet.
        for path in sorted(set(digests) - set(there), key=lambda path: (path == CONFIG_NAME, path)):
            self._repository.add(sources[path], f"{name}/{path}", undo)

    def _add_beside(self, undo: ExitStack) -> None:
        for path, source in self._plan.beside.items():
            name = f"{self._plan.name}/{path}"
            there = self._repository.sizes(name.rpartition("/")[0]).get(path.rpartition("/")[2])
            if there is None:
                self._repository.add(source, name, undo)
            elif there != size_of(source):
                self._repository.put(source, name)

    def _decided(self, history: History, plan: RepositoryPlan, *, same: bool = False) -> Decision:
        return decide(
            history,
            plan.config,
            replace=self._replace,
            mode=self._mode,
            same=same,
            merged_as=self._merged_as(history),
        )

    def _merged_as(self, history: History) -> str | None:
        """The new side of a merge where a person set the version policy: with the policy that they changed."""
        base = history.base_of_config()
        if base is None or history.config is None or _has_policy(self._plan.config):
            return None
        policies = [parsed_config(text, history.config_where).version_policy for text in (base, history.config)]
        numbers = policies[0].specific.versions
        if policies[0] == policies[1] or len(numbers) != 1:
            return None
        return _with_policy(self._plan.config, numbers[0])

    def _numbered(self, number: int) -> RepositoryPlan:
        """The plan, with a policy that serves this version."""
        if _has_policy(self._plan.config):
            return self._plan
        return dataclasses.replace(self._plan, config=_with_policy(self._plan.config, number))

    def _manifest(self, plan: RepositoryPlan) -> Manifest:
        """With all digests; only that of the configuration differs from number to number."""
        if self._digests is None:
            self._digests = plan_digests(plan)
        files = {**self._digests.files, **_digested({CONFIG_NAME: plan.config.encode()})}
        return dataclasses.replace(self._digests, files=_sorted(files))

    def _is_whole(self, version: Version) -> bool:
        there = self._repository.sizes(f"{self._plan.name}/{version.number}")
        return all(there.get(path) == digest.size for path, digest in version.manifest.files.items())

    def _history(self) -> History:
        """Without the versions of publishers that have not finished, or died, or took theirs back just now.

        They write their claim first and remove it last, so that one listing tells, if it comes after the reading.
        """
        name = self._plan.name
        history = read_history(self._repository.model(name), name)
        there = self._repository.sizes(name)
        parts = [path.split("/") for path in there]
        claimed = {int(p[0]) for p in parts if len(p) == 2 and p[0].isdigit() and p[1].startswith(_CLAIM)}
        finished = {
            number: version
            for number, version in history.versions.items()
            if f"{number}/{MANIFEST_NAME}" in there and (number not in claimed or version.left == history.config)
        }
        # Where there is nothing else, it is no model of another's.
        started = history.config is None and not finished and claimed >= set(history.taken) != set()
        return dataclasses.replace(history, versions=finished, empty=history.empty or started)

    def _publication(self, number: int, created: bool, manifest: Manifest, note: str) -> Publication:
        path = Path(self._repository.place.root) / self._plan.name / str(number)
        return Publication(self._plan.name, number, path, created, manifest, note)


def _has_policy(config: str) -> bool:
    return bool(parsed_config(config, CONFIG_NAME).HasField("version_policy"))


def _with_policy(config: str, number: int) -> str:
    return (
        f"{config.rstrip()}\n\n"
        "# Names the versions that are complete: another may be on its way.\n"
        f"version_policy {{ specific {{ versions: [ {number} ] }} }}\n"
    )


def _digested(files: Mapping[str, bytes]) -> dict[str, FileDigest]:
    return {path: digest_of(data) for path, data in files.items()}


def _sorted(files: Mapping[str, FileDigest]) -> dict[str, FileDigest]:
    return dict(sorted(files.items()))


def _content(source: Source) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()
