"""In which line of a text-format file each field stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Field", "Positions", "field_positions"]

# ("input", 1, "dims"); the entries of a map have their key where those of a list have their index.
Field: TypeAlias = tuple[str | int, ...]

_CLOSING = {"{": "}", "<": ">"}
_QUOTES = ("'", '"')
_NO_VALUE = ("", *"{}<>[]:,;")


@dataclass(frozen=True, slots=True)
class Positions:
    """The line of each field that a text gives, counted from 1."""

    lines: Mapping[Field, int]

    def line(self, field: Field) -> int | None:
        """The line of a field, or of what it stands in where the text does not give it; None where neither is there."""
        while field and field not in self.lines:
            field = field[:-1]
        return self.lines.get(field)

    def __contains__(self, field: Field) -> bool:
        return field in self.lines


def field_positions(text: str, descriptor: Any) -> Positions:
    """Walk a text once and note where each field begins.

    Args:
        text: that `google.protobuf.text_format` parses as a message of `descriptor`.
        descriptor: of the message.
    Returns: the positions; of a list, of the list itself and of each element. Empty where the text does not parse.
    """
    from google.protobuf import text_format

    try:
        walk = _Walk(text_format.Tokenizer(text.split("\n")))
        walk.message((), descriptor, "")
    except text_format.ParseError:
        return Positions({})
    return Positions(walk.lines)


class _Walk:
    def __init__(self, tokens: Any) -> None:
        self._tokens = tokens
        self.lines: dict[Field, int] = {}
        self._keys: dict[Field, str | int] = {}

    def message(self, place: Field, descriptor: Any, end: str) -> None:
        """Read fields up to the token `end`, or to the end of the text."""
        counts: dict[str, int] = {}
        while not (self._tokens.TryConsume(end) if end else self._tokens.AtEnd()):
            if self._tokens.AtEnd():
                raise self._tokens.ParseError("the text ends within a message")
            self._field(place, descriptor, counts)

    def _field(self, place: Field, descriptor: Any, counts: dict[str, int]) -> None:
        line = self._line()
        name = self._tokens.ConsumeIdentifierOrNumber()
        field = descriptor.fields_by_name.get(name)
        if field is None:
            raise self._tokens.ParseError(f"there is no field {name}")
        self._tokens.TryConsume(":")
        here = (*place, name)
        self.lines.setdefault(here, line)
        if not _is_repeated(field):
            self._value(here, field)
        elif not self._tokens.TryConsume("["):
            self._element(here, field, counts, line)
        elif not self._tokens.TryConsume("]"):
            self._element(here, field, counts, self._line())
            while not self._tokens.TryConsume("]"):
                self._tokens.Consume(",")
                self._element(here, field, counts, self._line())
        if not self._tokens.TryConsume(","):
            self._tokens.TryConsume(";")

    def _element(self, place: Field, field: Any, counts: dict[str, int], line: int) -> None:
        index = counts.get(field.name, 0)
        counts[field.name] = index + 1
        if _is_map(field):
            self._entry(place, field, line)
            return
        self.lines[(*place, index)] = line
        self._value((*place, index), field)

    def _entry(self, place: Field, field: Any, line: int) -> None:
        """Read `{ key: ... value: ... }`: its parts may come in either order, and a key may come again."""
        outer, self.lines = self.lines, {}
        self._value(place, field)
        inner, self.lines = self.lines, outer
        number = field.message_type.fields_by_name["key"].cpp_type != field.CPPTYPE_STRING
        here = (*place, self._keys.pop(place, 0 if number else ""))
        for old in [known for known in self.lines if known[: len(here)] == here]:
            del self.lines[old]
        self.lines[here] = line
        for known, its_line in inner.items():
            if known[len(place)] == "value" and len(known) > len(place) + 1:
                self.lines[(*here, *known[len(place) + 1 :])] = its_line

    def _value(self, place: Field, field: Any) -> None:
        if field.message_type is not None:
            end = _CLOSING.get(self._tokens.token)
            if end is None:
                raise self._tokens.ParseError("a message was expected")
            self._tokens.NextToken()
            self.message(place, field.message_type, end)
            return
        value: str | int
        if self._tokens.token[:1] in _QUOTES:
            value = self._tokens.ConsumeByteString().decode("utf-8", "replace")
        elif self._tokens.token in _NO_VALUE:
            raise self._tokens.ParseError("a value was expected")
        else:
            value = _number(self._tokens.token)
            self._tokens.NextToken()
        if field.name == "key" and field.containing_type.GetOptions().map_entry:
            self._keys[place[:-1]] = value

    def _line(self) -> int:
        return int(self._tokens.ParseError("").GetLine())


def _is_repeated(field: Any) -> bool:
    # Older releases of protobuf have no `is_repeated`, newer ones warn of `label`.
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED) if repeated is None else bool(repeated)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _number(token: str) -> str | int:
    """The value of an integer, which may be decimal, octal or hexadecimal; any other token as it is."""
    for base in (0, 8):
        try:
            return int(token, base)
        except ValueError:
            continue
    return token
