"""Which text a publication leaves as the model's config.pbtxt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from builder.errors import RepositoryError
from builder.repository.config_merge import describe_edits, merge_configs
from builder.repository.history import BASE_NAME, EDITED_NAME, LEFT_NAME, History
from builder.repository.interface import parsed_config, running_changes, signature_changes

__all__ = ["ConfigChoice", "ConfigMode", "choose_config"]

ConfigMode = Literal["merge", "keep", "overwrite"]


@dataclass(frozen=True, slots=True)
class ConfigChoice:
    """The new config.pbtxt and what is to be remembered of it.

    Args:
        before: the file as it stands; None where there is none.
        rendered: what this tool rendered for the new version.
        text: the file as it is to be.
        base: the rendered text that `text` takes its values from.
        edited: `before`, where it is not what the last publication left.
        note: what the user should know; empty for nothing.
    """

    before: str | None
    rendered: str
    text: str
    base: str
    edited: str | None = None
    note: str = ""

    @property
    def records(self) -> dict[str, str]:
        """The files that remember it in the version's directory, by name."""
        texts = {LEFT_NAME: self.text, BASE_NAME: self.base}
        found = {name: text for name, text in texts.items() if text != self.rendered}
        return {**found, EDITED_NAME: self.edited} if self.edited is not None else found


def choose_config(
    history: History, rendered: str, mode: ConfigMode = "merge", *, merged_as: str | None = None
) -> ConfigChoice:
    """The text that is to stand in config.pbtxt.

    Args:
        history: of the model.
        rendered: what this tool would write.
        mode: what becomes of edits by hand: "merge" both, "keep" the file as it is, or "overwrite" it.
        merged_as: the new side of a merge, where it is not `rendered` itself.
    Raises:
        RepositoryError: when edits and new values conflict, or the file cannot be kept as it is.
    """
    current, newest = history.config, history.newest
    if current is None or newest is None or current == rendered:
        return ConfigChoice(current, rendered, rendered, rendered)
    edited = None if current == newest.left else current
    where = history.config_where
    base = history.base_of_config()
    if current == base:
        return ConfigChoice(current, rendered, rendered, rendered, edited)
    if mode == "overwrite":
        note = "edits by hand in config.pbtxt were overwritten, as asked"
        return ConfigChoice(current, rendered, rendered, rendered, edited, note)
    if base is None:
        raise RepositoryError(
            "config.pbtxt may hold edits, and the text that it was made from is gone",
            where=where,
            fix="take the new values with --config overwrite, or remove the file",
        )
    edits = describe_edits(base, current, where)
    if mode == "keep":
        _check_keeps(base, rendered, where)
        return ConfigChoice(
            current, rendered, current, base, edited, f"config.pbtxt was kept as it is; edited by hand: {edits}"
        )
    text = merge_configs(base, current, merged_as or rendered, where)
    return ConfigChoice(current, rendered, text, rendered, edited, f"edits by hand in config.pbtxt were kept: {edits}")


def _check_keeps(base: str, rendered: str, where: str) -> None:
    old, new = (parsed_config(text, where) for text in (base, rendered))
    changes = [*signature_changes(old, new), *running_changes(old, new)]
    if changes:
        raise RepositoryError(
            "config.pbtxt cannot be kept as it is, since the new version is run in another way",
            where="\n".join([where, *changes]),
            fix="publish with --config merge or --config overwrite",
        )
