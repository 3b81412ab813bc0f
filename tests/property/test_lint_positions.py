"""Lines of fields in a text-format file, over texts that the library itself writes, and over damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from builder.repository.lint import lint_config
from builder.repository.lint.positions import Field, field_positions

CONFIG = model_config_pb2.ModelConfig.DESCRIPTOR
STRINGS = st.sampled_from(["", "x", 'a "b" # {', "it's\n<}", "é\t\\", "k: [1,"])


def repeated(field: Any) -> bool:
    given = getattr(field, "is_repeated", None)
    return field.label == field.LABEL_REPEATED if given is None else given


def scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from(sorted(field.enum_type.values_by_number))
    return {
        field.CPPTYPE_BOOL: st.booleans(),
        field.CPPTYPE_STRING: STRINGS,
        field.CPPTYPE_FLOAT: st.floats(-4, 4, width=32),
        field.CPPTYPE_DOUBLE: st.floats(-4, 4),
    }.get(field.cpp_type, st.integers(0, 9))


@st.composite
def messages(draw: st.DrawFn, message: Any, depth: int = 0) -> Any:
    """A message with a few fields of each kind, whatever they mean."""
    if not message.DESCRIPTOR.fields:
        return message
    fields = draw(st.lists(st.sampled_from(list(message.DESCRIPTOR.fields)), max_size=4 if depth else 8, unique=True))
    for field in fields:
        values = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for each in draw(st.lists(scalars(key), max_size=3)):
                if value.message_type is not None:
                    draw(messages(values[each], depth + 1))
                else:
                    values[each] = draw(scalars(value))
        elif field.message_type is not None:
            for _ in range(draw(st.integers(0, 3)) if repeated(field) else 1):
                inner = values.add() if repeated(field) else values
                inner.SetInParent()
                draw(messages(inner, depth + 1))
        elif repeated(field):
            values.extend(draw(st.lists(scalars(field), max_size=3)))
        else:
            setattr(message, field.name, draw(scalars(field)))
    return message


# A field whose value is its default is set only where it was serialised.
CONFIGS = (
    st.builds(model_config_pb2.ModelConfig)
    .flatmap(messages)
    .map(lambda message: model_config_pb2.ModelConfig.FromString(message.SerializeToString()))
)


def places(message: Any, at: Field = ()) -> Iterator[tuple[Field, str]]:
    """Every field and element that a message holds, and the name of the field."""
    for field, value in message.ListFields():
        here = (*at, field.name)
        yield here, field.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in value:
                yield (*here, key), field.name
                if field.message_type.fields_by_name["value"].message_type is not None:
                    yield from places(value[key], (*here, key))
        elif repeated(field):
            for index, each in enumerate(value):
                yield (*here, index), field.name
                if field.message_type is not None:
                    yield from places(each, (*here, index))
        elif field.message_type is not None:
            yield from places(value, here)


def commented(text: str) -> str:
    """The same message with comments, separators and empty lines between its fields."""
    lines: list[str] = []
    for line in text.splitlines():
        lines += ["", '  # name: "}" ] {']
        lines.append(f"{line}{'' if line.rstrip().endswith(('{', '<')) else ' ;'} # {{ '")
    return "\n".join(lines)


@pytest.mark.parametrize("style", [{}, {"pointy_brackets": True}, {"use_short_repeated_primitives": True}])
@given(message=CONFIGS, remarks=st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_field_is_on_the_line_that_begins_with_its_name(style: dict[str, bool], message: Any, remarks: bool):
    text = text_format.MessageToString(message, **style)
    if remarks:
        text = commented(text)
    assert text_format.Parse(text, type(message)()) == message
    found, lines = field_positions(text, CONFIG), text.split("\n")
    for place, name in places(message):
        line = found.lines[place]
        assert lines[line - 1].split()[0].rstrip(":") == name, place


@given(message=CONFIGS)
@settings(max_examples=60, deadline=None)
def test_one_line_is_the_first(message: Any):
    found = field_positions(text_format.MessageToString(message, as_one_line=True), CONFIG)
    assert {place for place, _ in places(message)} <= found.lines.keys()
    assert set(found.lines.values()) <= {1}


def test_lists_of_messages_strings_over_lines_and_map_entries_in_any_order():
    text = """input: [
  { name: "x" dims: [ 1,
      -1 ] },
  < name: 'y'
    'z' ; dims: 1 dims: 2 >
]
parameters { value { string_value: "v" } key: "k" }
parameters {
  key: "l"
  value: {
    string_value: "v" } },
parameters { }
parameters { key: "k" value {} }
dynamic_batching { priority_queue_policy { key: 0x10
  value { max_queue_size: 1 } } }
input { name: "w" }
"""
    lines = field_positions(text, CONFIG).lines
    assert {place: line for place, line in lines.items() if place[0] == "input"} == {
        ("input",): 1,
        ("input", 0): 2,
        ("input", 0, "name"): 2,
        ("input", 0, "dims"): 2,
        ("input", 0, "dims", 0): 2,
        ("input", 0, "dims", 1): 3,
        ("input", 1): 4,
        ("input", 1, "name"): 4,
        ("input", 1, "dims"): 5,
        ("input", 1, "dims", 0): 5,
        ("input", 1, "dims", 1): 5,
        ("input", 2): 16,
        ("input", 2, "name"): 16,
    }
    assert {place: line for place, line in lines.items() if place[0] == "parameters"} == {
        ("parameters",): 7,
        ("parameters", "l"): 8,
        ("parameters", "l", "string_value"): 11,
        ("parameters", ""): 12,
        ("parameters", "k"): 13,
    }
    assert lines[("dynamic_batching", "priority_queue_policy", 16, "max_queue_size")] == 15


def test_a_field_that_is_not_given_has_the_line_of_what_it_stands_in():
    found = field_positions('\ninput {\n name: "x"\n}', CONFIG)
    assert found.line(("input", 0, "dims", 3)) == 2
    assert found.line(("output", 0)) is None
    assert found.line(()) is None


def test_a_text_that_does_not_parse_has_no_positions():
    for text in ("input {", "input }", "name", "nme: 1", 'input "x"', "input: [ { } "):
        assert field_positions(text, CONFIG).lines == {}


VALID = """name: "m" platform: "ensemble" max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 4, -1 ] } } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "l" } ]
ensemble_scheduling { step [ { model_name: "a" model_version: -1 input_map { key: "x" value: "x" }
 output_map { key: "y" value: "t" } }, { model_name: "b" input_map { key: "x" value: "t" }
 output_map { key: "y" value: "y" } } ] max_inflight_requests: 2 }
instance_group [ { count: 0 kind: KIND_GPU gpus: [ 0, -1 ] profile: "p" } ]
version_policy { specific { versions: [ 0, 1 ] } }
model_warmup [ { name: "w" batch_size: 2 inputs { key: "x" value { dims: 2 data_type: 99 random_data: true } } } ]
batch_input [ { kind: 77 target_name: "t" } ] parameters { key: "k" value { string_value: "v" } }"""
TOKENS = VALID.split()


@example(text='name: "\\ud800"')
@example(text='name: "\\377"')
@example(text="max_batch_size: 99999999999999999999")
@example(text="input { data_type: 99 format: 99 } instance_group { kind: 99 }")
@example(text="\ufeffname: 'x'")
@example(text="{" * 5000)
@given(text=st.text() | st.text(alphabet="{}<>[]:;,#'\"\\\n aname0-."))
@settings(max_examples=150, deadline=None)
def test_no_text_breaks_the_linter(text: str):
    lint_config(text, "m")


@given(
    edits=st.lists(st.tuples(st.integers(0, len(TOKENS) - 1), st.sampled_from([*sorted(set(TOKENS)), ""])), max_size=4)
)
@settings(max_examples=150, deadline=None)
def test_no_damaged_configuration_breaks_the_linter(edits: list[tuple[int, str]]):
    tokens = list(TOKENS)
    for index, token in edits:
        tokens[index] = token
    lint_config("\n".join(tokens), "m")


@given(message=CONFIGS)
@settings(max_examples=150, deadline=None)
def test_no_configuration_breaks_the_linter(message: Any):
    for finding in lint_config(text_format.MessageToString(message), "m"):
        assert finding.rule != "config-syntax" or "\\" in str(finding) or "oneof" in finding.message
