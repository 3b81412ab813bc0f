"""What publishing does to a model, decided from what is there and what is to be published; it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import RepositoryError
from builder.repository.config import validate_config
from builder.repository.config_choice import ConfigChoice, ConfigMode, choose_config
from builder.repository.history import History
from builder.repository.interface import parsed_config, running_changes, served, signature_changes
from builder.repository.plan import CONFIG_NAME

__all__ = ["Decision", "Overtaken", "decide"]


class Overtaken(Exception):
    """Another publisher, or a person, changed what this attempt was decided from."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How a model is published.

    Args:
        number: of the version.
        config: what becomes of config.pbtxt.
        note: what the user should know; empty for nothing.
    """

    number: int
    config: ConfigChoice
    note: str = ""


def decide(
    history: History,
    rendered: str,
    *,
    replace: bool = False,
    mode: ConfigMode = "merge",
    same: bool = False,
    merged_as: str | None = None,
) -> Decision:
    """How the model is to be published.

    Args:
        history: of the model in the repository.
        rendered: the config.pbtxt that was rendered for the new version.
        replace: whether the new version may have other inputs and outputs.
        mode: what becomes of edits in config.pbtxt.
        same: whether the newest version has this content, so that no version is added.
        merged_as: see `choose_config`.
    Raises:
        RepositoryError: when the directory holds another's model, inputs or outputs changed, edits conflict, or no
            version, or an older one with other inputs or outputs, would be served.
    """
    newest = history.newest
    if newest is None and not history.empty:
        raise RepositoryError(
            f"the repository has a model {history.name!r} already, with no version that triton-repo wrote",
            where=history.where,
            fix="publish under another name, or move that directory away",
        )
    if newest is not None and not replace:
        _refuse_other_signature(history, newest.rendered, rendered)
    number = newest.number if same and newest else max(history.taken, default=0) + 1
    choice = choose_config(history, rendered, mode, merged_as=merged_as)
    if choice.text != rendered:
        _check_merged(choice.text, history)
    unserved = _check_policy(history, choice, number)
    return Decision(number, choice, "; ".join(filter(None, (choice.note, unserved))))


def _refuse_other_signature(history: History, published: str, rendered: str) -> None:
    if not published:
        return
    changes = signature_changes(*(parsed_config(text, history.where) for text in (published, rendered)))
    if changes:
        raise RepositoryError(
            f"the model {history.name!r} in the repository has other inputs or outputs, which its clients rely on",
            where="\n".join([history.where, *changes]),
            fix="publish under another name with --name, or with --replace if no client uses the old ones",
        )


def _check_merged(text: str, history: History) -> None:
    try:
        validate_config(text, history.name)
    except RepositoryError as error:
        raise RepositoryError(
            f"{CONFIG_NAME} with the edits by hand is not valid: {error.what}",
            where=history.config_where,
            fix="correct the file, remove it, or publish with --config overwrite",
        ) from None


def _check_policy(history: History, choice: ConfigChoice, number: int) -> str:
    """Gives a note where the server does not load the version."""
    config = parsed_config(choice.text, history.config_where)
    versions = sorted({*history.taken, number})
    loaded = served(config, versions)
    if not loaded:
        raise RepositoryError(
            f"at least one version must be available under the version policy of model '{history.name}'",
            where=f"version_policy.specific asks for {list(config.version_policy.specific.versions)}, "
            f"there will be {versions}",
            fix="name a version that exists, or leave version_policy out",
        )
    new = parsed_config(choice.rendered, history.where)
    for older in sorted(loaded - {number}):
        recorded = history.versions.get(older)
        if not recorded or not recorded.rendered:
            continue
        old = parsed_config(recorded.rendered, history.where)
        changes = [*signature_changes(old, new), *running_changes(old, new)]
        if changes:
            raise RepositoryError(
                f"the version policy would also serve version {older}, which is run in another way, "
                f"while all versions share one {CONFIG_NAME}",
                where="\n".join([history.config_where, *changes]),
                fix="let version_policy serve the new version only, or publish under another name",
            )
    if number not in loaded:
        return f"a server will not load version {number}: version_policy.specific does not name it"
    return ""
