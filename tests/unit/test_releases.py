"""The table of Triton releases, and what does not fit one."""

from __future__ import annotations

import pytest

from builder import doctor
from builder.errors import SpecError
from builder.releases import FEATURES, Release, first_release, mismatches, release, releases

EXACT = Release("26.09", "2.73", "10.14.1.48", "13.0.2", "2.10", "1.23.2", "3.12", frozenset({"torch"}))


def test_every_month_from_25_01_to_26_11_is_there_oldest_first():
    names = [f"{year}.{month:02}" for year in (25, 26) for month in range(1, 13)]
    assert [r.name for r in releases()] == names[: names.index("26.11") + 1]


def test_the_servers_versions_rise():
    versions = [tuple(map(int, r.server.split("."))) for r in releases()]
    assert versions == sorted(set(versions))


def test_what_is_unsure_is_named_and_known():
    for each in releases():
        assert all(getattr(each, name) for name in each.unsure), each


def test_what_the_table_says():
    assert release("26.07").tensorrt == "11.1.0.106"
    assert (release("26.11").server, release("26.11").tensorrt) == ("2.75", None)
    assert "tensorrt" in release("26.09").unsure
    assert "tensorrt" not in release("26.07").unsure


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_features_begin_with_a_release(feature: str):
    able = [r.name for r in releases() if r.can(feature)]
    assert able[0] == first_release(feature)
    assert able == [r.name for r in releases()][-len(able) :]


def test_a_feature_that_there_is_not_is_a_mistake_of_the_program():
    with pytest.raises(ValueError, match="there is no feature 'torch_aoit'"):
        EXACT.can("torch_aoit")


@pytest.mark.parametrize(("name", "near"), [("26.9", "26.09"), ("2609", "26.09"), ("26.9.", "26.09")])
def test_an_unknown_release_is_an_error_that_names_the_nearest(name: str, near: str):
    with pytest.raises(SpecError) as caught:
        release(name)
    assert f"did you mean '{near}'?" in str(caught.value.fix)
    assert "25.01 to 26.11" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, []),
        ({"tensorrt": "10.14.1.48", "torch": "2.10.3+cu130", "onnxruntime": "1.23.2", "python": "3.12.3"}, []),
        ({"tensorrt": "10.14.1.48.post1", "onnxruntime": "1.20", "numpy": "2.0"}, []),
        ({"tensorrt": "10.14"}, []),
        ({"tensorrt": "10.14.1.50"}, ["has TensorRT 10.14.1.48 and TensorRT 10.14.1.50 built the model: a plan loads"]),
        ({"torch": "2.13.0+cpu"}, ["has PyTorch 2.10 (inferred) and PyTorch 2.13.0+cpu built the model"]),
        ({"onnxruntime": "1.24.0"}, ["ONNX Runtime 1.23.2 and ONNX Runtime 1.24.0 built the model: the older one"]),
        ({"python": "3.11.9"}, ["has Python 3.12 and Python 3.11.9 built the model"]),
        ({"torch": "unknown", "tensorrt": ""}, []),
        ({"tensorrt": "11.0", "python": "3.13"}, ["TensorRT", "Python"]),
    ],
)
def test_mismatches(versions: dict[str, str], said: list[str]):
    found = mismatches(EXACT, versions)
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert part in sentence
        assert sentence.startswith("Triton 26.09 has ")


def test_what_a_release_does_not_say_is_no_mismatch():
    assert (
        mismatches(Release("26.11", "2.75"), {"tensorrt": "9.0", "torch": "1.0", "onnxruntime": "9", "python": "2.7"})
        == []
    )


def test_the_doctor_compares_what_is_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_installed", lambda: {"torch": "2.9", "python": "3.12.1"})
    assert [(c["what"], c["state"]) for c in doctor._release(EXACT)] == [("Triton 26.09", "limited")]
    monkeypatch.setattr(doctor, "_installed", lambda: {"torch": "2.10"})
    assert [(c["what"], c["state"]) for c in doctor._release(EXACT)] == [("Triton 26.09", "ok")]
