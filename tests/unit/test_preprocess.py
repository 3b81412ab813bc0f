"""The function before a model: what is refused before anything is compiled, and what it may do to a request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from builder.errors import RepositoryError, RequestError, SpecError
from builder.preprocess import bytes_of, prepare
from builder.repository.examples import example_samples, seen_inputs
from builder.runtime.manifest import Manifest
from builder.runtime.preprocess import Preprocessor
from builder.triton_options import PreprocessOptions
from tests.unit.assemblies import BATCH, TOKENS, tensor
from tests.unit.test_layout import choose, one

IDS = [tensor("ids", "int64", BATCH, TOKENS)]
CODE = """
import numpy as np
from pathlib import Path

def encode(text):
    rows = [list(item[:8].ljust(8)) for item in text]
    return {"ids": np.array(rows, np.int64)}

def nothing(text):
    return {}

def strange(text):
    return {"ids": np.zeros((1, 8), np.int64), "more": np.zeros(1)}

def short(text):
    return {"ids": np.zeros((1, 2), np.int64)}

def broken(text):
    raise KeyError("fox")

def words(text):
    return [1, 2]

def read(text):
    (Path(__file__).parent / "words.txt").read_text()
    return encode(text)
"""


def options(function: str = "encode", **changes: object) -> PreprocessOptions:
    given: dict[str, object] = {
        "source": f"code.py:{function}",
        "inputs": {"text": "bytes[B]"},
        "examples": [{"text": ["one", "another one"]}],
    }
    return PreprocessOptions.model_validate({**given, **changes})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "words.txt").write_text("fox")
    (tmp_path / "worse.py").write_text("import a_package_that_is_not_there")
    return tmp_path


def test_it_is_tried_with_its_examples(base: Path) -> None:
    found = prepare(options("read", files=["words.txt"]), base, IDS)
    assert found.spec.inputs == (("text", "bytes", (-1,)),)
    assert found.spec.gives == ("ids",)
    assert sorted(found.files) == ["preprocess/code.py", "preprocess/words.txt"]
    assert found.requests[0]["ids"].shape == (2, 8)
    assert found.examples[0]["text"].tolist() == [b"one", b"another one"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"source": "other.py:encode"}, "there is no file"),
        ({"source": "encode"}, "there is no file encode"),
        ({"source": "code.py:decode"}, "has no function 'decode'"),
        ({"source": "worse.py:encode"}, "cannot be imported: ModuleNotFoundError"),
        ({"files": ["missing.txt"]}, "missing.txt"),
        ({"inputs": {"text": "bytes B"}}, "cannot read 'bytes B'"),
        ({"inputs": {"text": "bfloat16[B]"}}, "cannot read"),
        ({"inputs": {"text": "bytes[Q]"}}, "'Q' is no dimension of the model"),
        ({"inputs": {"text": "bytes[B, 2]"}}, "has the shape [2], declared is [-1, 2]"),
        ({"inputs": {"text": "bytes[B]", "more": "int8[1]"}}, "there is no 'more'"),
        ({"source": "code.py:nothing"}, "'ids' is missing"),
        ({"source": "code.py:strange"}, "makes 'more', which is no input"),
        ({"source": "code.py:short"}, "is 2, outside the range 8 to 256"),
        ({"source": "code.py:broken"}, "fails for this request: KeyError"),
        ({"source": "code.py:words"}, "returns a list, not a dict"),
    ],
)
def test_what_is_refused(base: Path, given: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        prepare(options(**given), base, IDS)  # type: ignore[arg-type]
    assert said in caught.value.what
    assert "[preprocess]" in str(caught.value.where)


def test_a_failure_is_the_requests(base: Path) -> None:
    with pytest.raises(RequestError, match=r"code\.py:broken fails for this request: KeyError: 'fox'"):
        Preprocessor(base / "code.py", "broken")({"text": np.array([b""], dtype=object)})


def test_nothing_is_written_beside_it(base: Path) -> None:
    Preprocessor(base / "code.py", "encode")
    assert not (base / "__pycache__").exists()


def test_only_our_python_model_has_it() -> None:
    chosen = choose(one("onnxruntime"), preprocessed=True)
    assert chosen.layout == "python" and "[preprocess]" in chosen.reason
    with pytest.raises(RepositoryError, match="our Python model does"):
        choose(one("onnxruntime"), layout="plan", preprocessed=True)


def test_strings_have_their_lengths_before_them(base: Path) -> None:
    assert bytes_of(np.array([b"ab", b""], dtype=object)) == b"\x02\0\0\0ab\0\0\0\0"
    found = prepare(options(), base, IDS)
    ((sample, files),) = example_samples(found, 32)
    assert sample.batch_size == 2
    ((name, data_type, dims, file),) = sample.tensors
    assert (name, data_type, dims) == ("text", "TYPE_STRING", (1,))
    assert files[file] == b"\x03\0\0\0one"
    ((whole, _),) = example_samples(found, 0)
    assert (whole.batch_size, whole.tensors[0][2]) == (1, (2,))
    (declared,) = seen_inputs(found, batched=True)
    assert (declared.dims, declared.reshaped) == ((1,), True)


def test_the_manifest_keeps_it(base: Path, tmp_path: Path) -> None:
    spec = prepare(options(), base, IDS).spec
    (tmp_path / "manifest.json").write_text(Manifest("net", (), (), (), preprocess=spec).to_json())
    assert Manifest.read(tmp_path).preprocess == spec
