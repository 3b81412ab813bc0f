"""Spec files and command-line overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import SpecError
from builder.inputs import parse_input
from builder.spec import find_spec

GOOD = """
[model]
source = "net.py:load"
arguments = { width = 4 }

[inputs]
x = "float32[B=1:8:32, 16]"
y = "int64[B]"

[settings]
compiler = "onnxruntime"
min_block_size = 3
torch_executed_ops = ["aten::gelu"]

[settings.verify]
rtol = 1e-3

[triton]
parameters = { key = "value" }
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "net.toml"
    path.write_text(text)
    return str(path)


def test_everything_in_a_file_arrives(tmp_path: Path) -> None:
    spec = find_spec(write(tmp_path, GOOD))
    assert spec.name == "net"
    assert spec.source == "net.py:load"
    assert spec.arguments == {"width": 4}
    assert spec.base == tmp_path
    assert spec.inputs == (parse_input("x=float32[B=1:8:32, 16]"), parse_input("y=int64[B]"))
    assert (spec.settings.compiler, spec.settings.min_block_size) == ("onnxruntime", 3)
    assert spec.settings.torch_executed_ops == ("aten::gelu",)
    assert spec.settings.verify.rtol == 1e-3
    assert spec.triton.fields["parameters"] == {"key": "value"}


def test_the_command_line_wins(tmp_path: Path) -> None:
    spec = find_spec(
        write(tmp_path, GOOD),
        name="other",
        inputs=["y=int64[B, 2]"],
        output_names=["out"],
        overrides={"compiler": "auto"},
        verify={"atol": 0.5},
    )
    assert spec.name == "other"
    assert spec.outputs == ("out",)
    assert [str(i) for i in spec.inputs or ()] == ["x=float32[B=1:8:32, 16]", str(parse_input("y=int64[B, 2]"))]
    assert (spec.settings.compiler, spec.settings.min_block_size) == ("auto", 3)
    assert (spec.settings.verify.rtol, spec.settings.verify.atol) == (1e-3, 0.5)


def test_unnamed_inputs_replace_all(tmp_path: Path) -> None:
    spec = find_spec(write(tmp_path, GOOD), inputs=["float32[4]"])
    assert spec.inputs == (parse_input("float32[4]"),)


@pytest.mark.parametrize(
    ("change", "said", "fix"),
    [
        (("[settings]", "[setings]"), "unknown key setings", "did you mean 'settings'?"),
        (("min_block_size", "min_block_sise"), "unknown key settings.min_block_sise", "did you mean 'min_block_size'?"),
        (("rtol", "rtoll"), "unknown key settings.verify.rtoll", "did you mean 'rtol'?"),
        (("min_block_size = 3", "min_block_size = 0"), "settings.min_block_size = 0: input should be greater", None),
        (("min_block_size = 3", "min_block_size = 'a'"), "settings.min_block_size = 'a'", None),
        (('source = "net.py:load"', 'name = "x"'), "model.source is missing", None),
        (('source = "net.py:load"', 'source = "a:b"\nname = "a/b"'), "model.name = 'a/b'", None),
        (('x = "float32[B=1:8:32, 16]"', "x = [3]"), "inputs.x", None),
        (("[inputs]", "[inputs"), "not valid TOML", None),
    ],
)
def test_wrong_keys_and_values_are_named(tmp_path: Path, change: tuple[str, str], said: str, fix: str | None) -> None:
    path = write(tmp_path, GOOD.replace(*change))
    with pytest.raises(SpecError) as caught:
        find_spec(path)
    assert said in caught.value.what
    assert path in str(caught.value)
    if fix:
        assert fix in (caught.value.fix or "")


def test_a_wrong_input_names_its_key(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("1:8:32", "8:1:32"))
    with pytest.raises(SpecError, match="min 8 is greater than opt 1") as caught:
        find_spec(path)
    assert f"{path}: inputs.x" in (caught.value.where or "")


def test_unknown_models() -> None:
    with pytest.raises(SpecError, match="there is no model 'minilmm'") as caught:
        find_spec("minilmm")
    assert "did you mean 'minilm'?" in (caught.value.fix or "")
    with pytest.raises(SpecError, match=r"there is no spec file 'nowhere\.toml'"):
        find_spec("nowhere.toml")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("package.module:make_net", "make_net"),
        ("dir/my net.pt2", "my_net"),
        ("hf:org/Model-v2", "Model-v2"),
        ("timm:a.b", "a_b"),
    ],
)
def test_names_of_models_without_a_spec(source: str, name: str) -> None:
    assert find_spec(source).name == name


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(SpecError, match=r"name = '\.\./x'"):
        find_spec("a:b", name="../x")
