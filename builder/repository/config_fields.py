"""Three-way merge and comparison of configurations, field by field.

Entries that have a name (inputs, instance groups, parameters) are told apart by it, others by their position; a
list of plain values (`dims`) is one value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Change", "Conflict", "changes", "merge_fields"]


@dataclass(frozen=True, slots=True)
class Change:
    """A field and its value before and after, as text; `-` for none."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that two sides changed from `base` to two values."""

    path: str
    base: str
    ours: str
    theirs: str


class _Label(str):
    """A value of an enumeration, by its name."""


def changes(before: Any, after: Any) -> tuple[Change, ...]:
    """What differs between two messages of one type, in the order of the fields."""
    return tuple(_changes("", before, after))


def merge_fields(base: Any, ours: Any, theirs: Any) -> tuple[Any, tuple[Conflict, ...]]:
    """What both sides made of `base`, in one message.

    Args:
        base, ours, theirs: messages of one type; none is changed.
    Returns: the merged message, with our value where there is a conflict, and the conflicts.
    """
    conflicts: list[Conflict] = []
    return _message("", base, ours, theirs, conflicts), tuple(conflicts)


def _message(path: str, base: Any, ours: Any, theirs: Any, conflicts: list[Conflict]) -> Any:
    merged = type(ours)()
    chosen: dict[str, list[str]] = {}
    for field in ours.DESCRIPTOR.fields:
        sides = (_get(base, field), _get(ours, field), _get(theirs, field))
        value = _value(_joined(path, field.name), *sides, conflicts)
        _set(merged, field, value)
        if field.containing_oneof is not None and value is not None:
            chosen.setdefault(field.containing_oneof.name, []).append(field.name)
    for name, fields in chosen.items():
        if len(fields) > 1:
            texts = (str(message.WhichOneof(name) or "-") for message in (base, ours, theirs))
            conflicts.append(Conflict(_joined(path, name), *texts))
    return merged


def _value(path: str, base: Any, ours: Any, theirs: Any, conflicts: list[Conflict]) -> Any:
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    if isinstance(ours, dict):
        return _entries(path, base, ours, theirs, conflicts)
    if _are_messages(ours, theirs):
        named = _by_name(base), _by_name(ours), _by_name(theirs)
        if named[0] is not None and named[1] is not None and named[2] is not None:
            return list(_entries(path, named[0], named[1], named[2], conflicts).values())
        if len(base) == len(ours) == len(theirs):
            return [
                _value(f"{path}[{i}]", *sides, conflicts)
                for i, sides in enumerate(zip(base, ours, theirs, strict=True))
            ]
    elif hasattr(ours, "DESCRIPTOR") and hasattr(theirs, "DESCRIPTOR"):
        return _message(path, type(ours)() if base is None else base, ours, theirs, conflicts)
    conflicts.append(Conflict(path, _text(base), _text(ours), _text(theirs)))
    return ours


def _entries(
    path: str, base: dict[Any, Any], ours: dict[Any, Any], theirs: dict[Any, Any], conflicts: list[Conflict]
) -> dict[Any, Any]:
    merged = {}
    for key in {**theirs, **ours}:
        value = _value(f"{path}[{key}]", base.get(key), ours.get(key), theirs.get(key), conflicts)
        if value is not None:
            merged[key] = value
    return merged


def _changes(path: str, before: Any, after: Any) -> Iterator[Change]:
    for field in after.DESCRIPTOR.fields:
        yield from _value_changes(_joined(path, field.name), _get(before, field), _get(after, field))


def _value_changes(path: str, before: Any, after: Any) -> Iterator[Change]:
    if before == after:
        return
    if _are_messages(before, after):
        named = _by_name(before), _by_name(after)
        if named[0] is not None and named[1] is not None:
            before, after = named
        elif len(before) == len(after):
            before, after = dict(enumerate(before)), dict(enumerate(after))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _value_changes(f"{path}[{key}]", before.get(key), after.get(key))
    elif hasattr(before, "DESCRIPTOR") and hasattr(after, "DESCRIPTOR"):
        yield from _changes(path, before, after)
    else:
        yield Change(path, _text(before), _text(after))


def _get(message: Any, field: Any) -> Any:
    """A dict, a list, or one value, an enumeration's by its name; None for a field that is not there and could be."""
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(value.items())
    if hasattr(value, "extend"):
        return list(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.enum_type is not None and value in field.enum_type.values_by_number:
        return _Label(field.enum_type.values_by_number[value].name)
    return value


def _set(message: Any, field: Any, value: Any) -> None:
    target = getattr(message, field.name)
    if isinstance(value, dict):
        for key, item in value.items():
            if hasattr(item, "DESCRIPTOR"):
                target[key].CopyFrom(item)
            else:
                target[key] = item
    elif isinstance(value, list):
        target.extend(value)
    elif hasattr(value, "DESCRIPTOR"):
        target.CopyFrom(value)
        target.SetInParent()
    elif isinstance(value, _Label):
        setattr(message, field.name, field.enum_type.values_by_name[value].number)
    elif value is not None:
        setattr(message, field.name, value)


def _are_messages(*values: Any) -> bool:
    return all(isinstance(v, list) and all(hasattr(item, "DESCRIPTOR") for item in v) for v in values)


def _by_name(items: Any) -> dict[str, Any] | None:
    """Entries by their names; None where they have none, or share one."""
    named = {str(getattr(item, "name", "")): item for item in items or ()}
    return named if len(named) == len(items or ()) and "" not in named else None


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf import text_format

        return f"{{{text_format.MessageToString(value, as_one_line=True, as_utf8=True)}}}"
    return repr(value) if isinstance(value, str) and not isinstance(value, _Label) else str(value)
