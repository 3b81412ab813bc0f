"""Three-way merge of config.pbtxt: a person's edits and our new values in one text, comments included.

The fields decide what the result says. Its text is a merge of the lines where that says the same; otherwise it is
printed anew, below the comments that the person wrote.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from builder.errors import RepositoryError
from builder.model_config import config_text, parse_config
from builder.repository.config_fields import Conflict, changes, merge_fields
from builder.repository.interface import parsed_config
from builder.repository.plan import CONFIG_NAME

__all__ = ["describe_edits", "merge_configs", "merge_lines"]

_SHOWN = 10
_CHOICES = (
    "take the new values with --config overwrite, leave the file as it is with --config keep, or give the fields "
    "their values in the [triton] table of the spec"
)


def merge_configs(base: str, ours: str, theirs: str, where: str) -> str:
    """One text with what `ours` and `theirs` changed in `base`.

    Args:
        base: what this tool wrote, and both sides started from.
        ours: the file as it stands, edited by a person.
        theirs: what this tool would write now.
        where: the file, for messages.
    Raises:
        RepositoryError: when one field was changed on both sides, with both values; or when `ours` is no configuration.
    """
    start, edited, new = (parsed_config(text, where) for text in (base, ours, theirs))
    merged, conflicts = merge_fields(start, edited, new)
    if conflicts:
        raise _conflict(conflicts, where)
    lines = merge_lines(*map(_lines, (base, ours, theirs)))
    text = "".join(lines or ())
    return text if lines is not None and _says(text, merged) else _printed(base, ours, theirs, merged)


def describe_edits(base: str, ours: str, where: str) -> str:
    """What a person changed, in one line."""
    found = changes(parsed_config(base, where), parsed_config(ours, where))
    if not found:
        return "comments or layout"
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(map(str, found[:_SHOWN])) + more


def merge_lines(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> list[str] | None:
    """The lines of both sides; None where both changed the same ones.

    What both added at one place is kept. It may not be what either meant, so the result must be read.
    """
    merged: list[str] = []
    at = [0, 0, 0]
    for common in _common(base, ours, theirs):
        old, mine, new = (
            side[start:end] for side, start, end in zip((base, ours, theirs), at, common[:3], strict=True)
        )
        chosen = _chosen(old, mine, new)
        if chosen is None:
            return None
        merged += [*chosen, *base[common[0] : common[0] + common[3]]]
        at = [start + common[3] for start in common[:3]]
    return merged


def _chosen(old: Sequence[str], mine: Sequence[str], new: Sequence[str]) -> Sequence[str] | None:
    if mine in (old, new):
        return new
    size = len(old)
    # One side only added lines before or behind those that the other changed.
    if new[:size] == old:
        return [*mine, *new[size:]]
    if mine[:size] == old:
        return [*new, *mine[size:]]
    if new[-size:] == old:
        return [*new[:-size], *mine]
    if mine[-size:] == old:
        return [*mine[:-size], *new]
    return None


def _common(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Runs of lines that all three have: where they start in each, and how many; an empty one closes."""
    mine, new = (
        difflib.SequenceMatcher(None, base, side, autojunk=False).get_matching_blocks() for side in (ours, theirs)
    )
    i = j = 0
    while i < len(mine) and j < len(new):
        start = max(mine[i].a, new[j].a)
        end = min(mine[i].a + mine[i].size, new[j].a + new[j].size)
        if start < end:
            yield start, mine[i].b + start - mine[i].a, new[j].b + start - new[j].a, end - start
        if mine[i].a + mine[i].size < new[j].a + new[j].size:
            i += 1
        else:
            j += 1
    yield len(base), len(ours), len(theirs), 0


def _says(text: str, message: Any) -> bool:
    from google.protobuf import text_format

    try:
        return bool(parse_config(text) == message)
    except text_format.ParseError:
        return False


def _printed(base: str, ours: str, theirs: str, message: Any) -> str:
    written = set(_comments(base))
    comments = [*_comments(theirs), *(c for c in _comments(ours) if c not in written)]
    return "".join(f"{comment}\n" for comment in dict.fromkeys(comments)) + "\n".join(config_text(message))


def _comments(text: str) -> Iterator[str]:
    for line in text.splitlines():
        quote, escaped = "", False
        for position, character in enumerate(line):
            if quote:
                quote = "" if character == quote and not escaped else quote
                escaped = character == "\\" and not escaped
            elif character in "\"'":
                quote = character
            elif character == "#":
                yield line[position:].rstrip()
                break


def _lines(text: str) -> list[str]:
    # A last line without its end would run into what is put behind it.
    return [line + "\n" for line in text.splitlines()]


def _conflict(conflicts: Sequence[Conflict], where: str) -> RepositoryError:
    shown = [
        f"{c.path}\n  was written: {c.base}\n  edited to:   {c.ours}\n  new:         {c.theirs}"
        for c in conflicts[:_SHOWN]
    ]
    return RepositoryError(
        f"{CONFIG_NAME} was edited by hand where its new values differ too",
        where="\n".join([where, *shown]),
        fix=_CHOICES,
    )
