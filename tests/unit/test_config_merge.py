"""Three-way merges of config.pbtxt."""

from __future__ import annotations

import pytest

from builder.errors import RepositoryError
from builder.model_config import parse_config
from builder.repository.config_merge import describe_edits, merge_configs, merge_lines

BASE = """# Written by triton-repo.
name: "m"
backend: "python"
max_batch_size: 8

input {
  name: "x"
  data_type: TYPE_FP32
  dims: [ 4 ]
}
output {
  name: "y"
  data_type: TYPE_FP32
  dims: [ 2 ]
}

instance_group { count: 1 kind: KIND_CPU }
parameters { key: "a" value { string_value: "1" } }
"""


def merged(ours: str, theirs: str) -> str:
    return merge_configs(BASE, ours, theirs, "m/config.pbtxt")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (("count: 1", "count: 3"), ("max_batch_size: 8", "max_batch_size: 16")),
        (("count: 1", "count: 3"), ("dims: [ 4 ]", "dims: [ 5 ]")),
        (("instance_group { count: 1 kind: KIND_CPU }\n", ""), ("dims: [ 4 ]", "dims: [ 5 ]")),
        (('string_value: "1"', 'string_value: "2"'), ("max_batch_size: 8", "max_batch_size: 16")),
    ],
)
def test_edits_in_different_fields_are_both_in_the_result(ours, theirs):
    both = BASE.replace(*ours).replace(*theirs)
    assert merged(BASE.replace(*ours), BASE.replace(*theirs)) == both
    assert merged(BASE.replace(*theirs), BASE.replace(*ours)) == both


def test_comments_and_new_fields_at_the_same_place_stay():
    ours = BASE.replace("KIND_CPU }", "KIND_CPU } # mine") + "# more of mine\nresponse_cache { enable: true }\n"
    theirs = BASE + 'parameters { key: "b" value { string_value: "2" } }\n'
    text = merged(ours, theirs)
    assert "# mine" in text and "# more of mine" in text
    config = parse_config(text)
    assert config.response_cache.enable and set(config.parameters) == {"a", "b"}


def test_another_layout_is_printed_anew_below_its_comments():
    ours = '# mine: "quoted"\n' + BASE.replace("\n", "  \n").replace("count: 1", "count: 2")
    theirs = BASE.replace("max_batch_size: 8", "max_batch_size: 16").replace("dims: [ 4 ]", "dims: [ 5 ]")
    text = merged(ours, theirs)
    assert text.startswith('# Written by triton-repo.\n# mine: "quoted"\n')
    config = parse_config(text)
    assert (config.max_batch_size, config.input[0].dims[0], config.instance_group[0].count) == (16, 5, 2)


def test_entries_are_told_apart_by_their_names():
    extra = 'output { name: "z" data_type: TYPE_FP32 dims: [ 3 ] }\n'
    ours = BASE.replace('  name: "x"\n', '  name: "x"\n  optional: true\n')
    theirs = BASE.replace("output {", f"{extra}output {{").replace("dims: [ 4 ]", "dims: [ -1 ]")
    config = parse_config(merged(ours, theirs))
    assert [o.name for o in config.output] == ["z", "y"]
    assert config.input[0].optional and list(config.input[0].dims) == [-1]


def test_both_made_the_same_change():
    changed = BASE.replace("count: 1", "count: 4")
    assert merged(changed, changed) == changed


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (
            BASE.replace("count: 1", "count: 3"),
            BASE.replace("count: 1", "count: 2"),
            "instance_group[0].count\n  was written: 1\n  edited to:   3\n  new:         2",
        ),
        (
            BASE + "version_policy { all { } }\n",
            BASE + "version_policy { specific { versions: 2 } }\n",
            "version_policy.policy_choice\n  was written: -\n  edited to:   all\n  new:         specific",
        ),
        (
            BASE.replace('parameters { key: "a" value { string_value: "1" } }\n', ""),
            BASE.replace('string_value: "1"', 'string_value: "2"'),
            "parameters[a]",
        ),
    ],
)
def test_a_conflict_shows_all_sides_and_what_to_do(ours, theirs, said):
    with pytest.raises(RepositoryError) as caught:
        merged(ours, theirs)
    assert said in caught.value.where
    assert "--config overwrite" in caught.value.fix and "--config keep" in caught.value.fix


def test_an_edit_that_cannot_be_read_is_named():
    with pytest.raises(RepositoryError, match=r"19:1 .*no field named .nonsense"):
        merged(BASE + "nonsense: 1\n", BASE)


def test_enumerations_are_shown_and_kept_by_name():
    ours = BASE.replace("KIND_CPU", "KIND_MODEL")
    assert describe_edits(BASE, ours, "") == "instance_group[0].kind: KIND_CPU -> KIND_MODEL"
    text = merged(ours.replace("\n", " \n"), BASE.replace("TYPE_FP32", "TYPE_FP16"))
    config = parse_config(text)
    assert (config.instance_group[0].kind, config.input[0].data_type) == (3, 10)


def test_edits_in_a_line():
    ours = BASE.replace("count: 1", "count: 3") + "response_cache { enable: true }"
    assert describe_edits(BASE, ours, "") == "instance_group[0].count: 1 -> 3; response_cache: - -> {enable: true}"
    assert describe_edits(BASE, BASE + "# mine", "") == "comments or layout"


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "expected"),
    [
        ("abc", "abc", "abc", "abc"),
        ("abc", "xabc", "abcy", "xabcy"),
        ("abc", "ac", "abcd", "acd"),
        ("abc", "axc", "abc", "axc"),
        ("abc", "axc", "ayc", None),
        ("abc", "axc", "axc", "axc"),
        ("abc", "abx", "abcd", "abxd"),
        ("", "a", "b", "ab"),
        ("abcabc", "abcxabc", "abcabcy", "abcxabcy"),
        ("abc", "", "abc", ""),
        ("abc", "", "abx", None),
    ],
)
def test_lines(base, ours, theirs, expected):
    found = merge_lines(list(base), list(ours), list(theirs))
    assert found == (None if expected is None else list(expected))
