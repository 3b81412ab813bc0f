"""Triton's model configuration as a protobuf message: the one place that knows where its classes come from.

They are imported late: tritonclient.grpc takes a quarter of a second, which only a build should pay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from builder.errors import SpecError, did_you_mean

__all__ = [
    "config_from_fields",
    "config_text",
    "enum_name",
    "new_config",
    "only",
    "parse_config",
    "type_name",
    "type_number",
]


def new_config() -> Any:
    """An empty `inference.ModelConfig`."""
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2.ModelConfig()


def parse_config(text: str) -> Any:
    """The message that a config.pbtxt says.

    Raises:
        google.protobuf.text_format.ParseError: with line and column.
    """
    from google.protobuf import text_format

    return text_format.Parse(text, new_config())


def config_text(message: Any) -> Iterator[str]:
    """The message in protobuf's text format: a text for each field, entries of one field together."""
    from google.protobuf import text_format

    for descriptor, _ in message.ListFields():
        part = only(message, [descriptor.name])
        yield text_format.MessageToString(part, as_utf8=True, print_unknown_fields=False)


def only(message: Any, names: Collection[str]) -> Any:
    """A copy with these fields, as far as they are set."""
    part = type(message)()
    part.CopyFrom(message)
    for descriptor, _ in message.ListFields():
        if descriptor.name not in names:
            part.ClearField(descriptor.name)
    return part


def type_number(name: str) -> int:
    """The number of a data type ("TYPE_FP32")."""
    return int(_data_types().values_by_name[name].number)


def type_name(number: int) -> str:
    """The name of a data type; its number where it is none."""
    return enum_name(_data_types(), number)


def enum_name(descriptor: Any, number: int) -> str:
    """The name of an enum's value; the number where it has none, which the text may give."""
    values = descriptor.values_by_number
    return str(values[number].name) if number in values else str(number)


def _data_types() -> Any:
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2.DataType.DESCRIPTOR


def config_from_fields(fields: Mapping[str, Any], where: str) -> Any:
    """The message that a table says, under Triton's own field names.

    Beside what protobuf's JSON form takes, a parameter may be a plain value: `parameters = { a = "b" }`.

    Raises:
        SpecError: naming the field that Triton does not have, or the value that it does not take.
    """
    from google.protobuf import json_format

    config = new_config()
    data = dict(fields)
    if isinstance(data.get("parameters"), Mapping):
        data["parameters"] = {k: _parameter(v) for k, v in data["parameters"].items()}
    _check_names(data, config.DESCRIPTOR, where)
    for name, value in data.items():
        try:
            json_format.ParseDict({name: value}, config)
        except json_format.ParseError as error:
            text = " ".join(str(error).split()).removeprefix(f"Failed to parse {name} field: ").rstrip(".")
            raise SpecError(
                f"{name} = {value!r}: {text}",
                where=where,
                fix="give it the form that Triton's model configuration has",
            ) from None
    return config


def _parameter(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    return {"string_value": str(value).lower() if isinstance(value, bool) else str(value)}


def _check_names(data: Any, descriptor: Any, where: str) -> None:
    """Each key must be a field; protobuf's own message names neither the place nor the nearest right word."""
    if not isinstance(data, Mapping):
        raise SpecError(
            f"{data!r} stands where a table is needed",
            where=where,
            fix=f"the keys are {', '.join(f.name for f in descriptor.fields)}",
        )
    for name, value in data.items():
        field = descriptor.fields_by_name.get(name)
        if field is None:
            known = [f.name for f in descriptor.fields]
            raise SpecError(
                f"unknown key {name}",
                where=where,
                fix=f"{did_you_mean(name, known)}the keys here are {', '.join(known)}",
            )
        if field.message_type is None:
            continue
        place = f"{where}.{name}"
        if field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"].message_type
            for key, item in value.items() if inner is not None and isinstance(value, Mapping) else ():
                _check_names(item, inner, f"{place}.{key}")
        elif _is_repeated(field) and isinstance(value, list | tuple):
            for index, item in enumerate(value):
                _check_names(item, field.message_type, f"{place}[{index}]")
        elif not _is_repeated(field):
            _check_names(value, field.message_type, place)


def _is_repeated(field: Any) -> bool:
    # protobuf before 6.31 has only the label, later ones warn of it.
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
