"""One engine for many: same weights, new weights, another model, equal blocks of one model."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from builder.cache.options import CacheOptions
from builder.cache.store import LocalStore
from builder.compilers import inductor, onnxruntime
from builder.compilers.aoti_package import WeightsFile, fill_package
from builder.compilers.base import RefitError
from builder.pipeline import BuildResult, build
from builder.runtime.model import RuntimeModel
from tests.integration.needs import needs_compiler
from tests.integration.test_build import HYBRID, spec
from tests.integration.told import Told

COMPILERS = ["onnxruntime", pytest.param("inductor", marks=needs_compiler)]

# Where the other compiler says nearly all there is to say.
LESS_OF_INDUCTOR = [COMPILERS[0], pytest.param("inductor", marks=[needs_compiler, pytest.mark.slow])]

RANGES = HYBRID[1]


@pytest.fixture
def told() -> Told:
    return Told()


def run(tmp_path: Path, name: str, text: str, told: Told | None = None, **settings: Any) -> BuildResult:
    options = settings.pop("options", None)
    model = spec(name, text, name=name.rpartition(":")[2], **settings)
    result = build(model, root=tmp_path / "repo", cache=options, progress=told)
    assert result.report.verified
    return result


def engines(result: BuildResult) -> list[Any]:
    return [s for s in result.segments if s.compiler != "torch"]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "engine-cache")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_new_weights_and_another_model_hit(tmp_path: Path, store: LocalStore, told: Told, compiler: str) -> None:
    first = run(tmp_path, "hybrid", RANGES, told, compiler=compiler)
    assert [s.hit for s in engines(first)] == [False] * len(engines(first))
    same = run(tmp_path, "hybrid", RANGES, told, compiler=compiler)
    trained = run(tmp_path, "reseeded_hybrid", RANGES, told, compiler=compiler)
    renamed = run(
        tmp_path, "renamed_hybrid", RANGES.replace("x=", "sequence=").replace("T=", "L="), told, compiler=compiler
    )
    for result in (same, trained, renamed):
        assert [(s.hit, s.key) for s in engines(result)] == [(True, s.key) for s in engines(first)]
        assert compiler == "onnxruntime" or all(s.saved_seconds > 0 for s in engines(result))
    assert not same.publication.created and told.warnings == []
    x = torch.randn(5, 9, 16)
    outputs = [
        torch.as_tensor(next(iter(RuntimeModel(r.publication.path)({r.plan.inputs[0].name: x.numpy()}).values())))
        for r in (first, trained, renamed)
    ]
    assert not torch.allclose(outputs[0], outputs[1]) and not torch.allclose(outputs[1], outputs[2])
    users = {u["model"] for key in store.stored_keys() for u in store.users(key)}
    assert users == {"hybrid", "reseeded_hybrid", "renamed_hybrid"}


@pytest.mark.parametrize("compiler", LESS_OF_INDUCTOR)
def test_no_weight_is_in_the_cache(tmp_path: Path, store: LocalStore, compiler: str) -> None:
    """A team's cache is readable for more people than a checkpoint may be."""
    from tests.models.nets import hybrid

    run(tmp_path, "hybrid", RANGES, compiler=compiler)
    weights = [p.detach().numpy().tobytes()[:64] for p in hybrid().parameters() if p.std() > 0]
    content = b"".join(p.read_bytes() for p in store.directory.rglob("*") if p.is_file())
    assert len(weights) >= 4 and not any(w in content for w in weights)


@pytest.mark.parametrize("compiler", LESS_OF_INDUCTOR)
def test_equal_blocks_compile_once(tmp_path: Path, compiler: str) -> None:
    result = run(
        tmp_path, "four_blocks", "x=float32[B=1:2:4, T=2:6:8, 8]", compiler=compiler, torch_executed_ops=["aten::special_bessel_j0"]
    )  # fmt: skip
    made = engines(result)
    assert len(made) == 5
    assert sum(not s.hit for s in made) == 3
    assert made[1].key == made[2].key == made[3].key
    file = {"inductor": "model.pt2", "onnxruntime": "weights.bin"}[compiler]
    assert len({(result.publication.path / s.segment.name / file).read_bytes() for s in made[1:4]}) == 3


def test_equal_blocks_compile_once_without_a_cache(tmp_path: Path, told: Told) -> None:
    (tmp_path / "file").write_text("")
    result = run(
        tmp_path,
        "four_blocks",
        "x=float32[B=1:2:4, T=2:6:8, 8]",
        told,
        options=CacheOptions(tmp_path / "file" / "cache"),
    )
    assert sum(not s.hit for s in engines(result)) == 3
    assert len(told.warnings) == 1 and "nothing new is kept" in told.warnings[0]


@pytest.mark.parametrize("compiler", LESS_OF_INDUCTOR)
def test_an_engine_that_computes_something_else_is_put_aside_and_rebuilt(
    tmp_path: Path, store: LocalStore, told: Told, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    """A wrong hit is staged: the engine of another function is stored under this one's key."""
    first = run(tmp_path, "first_half", RANGES, compiler=compiler)
    (key,) = (s.key for s in engines(first))
    module = {"onnxruntime": onnxruntime, "inductor": inductor}[compiler]
    wrong = spec("first_half", RANGES, name="first_half", compiler=compiler)
    monkeypatch.setattr(module._Session, "compile", other_function(module, compiler))
    assert store.remove(key)
    with pytest.raises(Exception, match="differs from eager"):
        build(wrong, root=tmp_path / "poisoned")
    monkeypatch.undo()
    monkeypatch.setenv("TRITON_REPO_CACHE", str(store.directory))
    assert store.has(key)
    again = run(tmp_path, "first_half", RANGES, told, compiler=compiler)
    assert [s.hit for s in engines(again)] == [False]
    assert len(told.warnings) == 1
    assert "was put aside and is built again: after the refit" in told.warnings[0]
    assert store.quarantined() == 1
    assert [s.hit for s in engines(run(tmp_path, "first_half", RANGES, compiler=compiler))] == [True]


def other_function(module: Any, compiler: str) -> Any:
    original = module._Session.compile

    def compile_another(self: Any, segment: Any, directory: Path) -> Any:
        for node in segment.program.graph.nodes:
            if "relu" in str(node.target):
                node.target = torch.ops.aten.sigmoid.default
        if compiler == "onnxruntime":
            import onnx

            artifact = original(self, segment, directory)
            model = onnx.load(directory / artifact.file, load_external_data=False)
            (relu,) = (n for n in model.graph.node if n.op_type == "Relu")
            relu.op_type = "Sigmoid"
            onnx.save(model, directory / artifact.file)
            return artifact
        self._canonical.clear()
        return original(self, segment, directory)

    return compile_another


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with an engine of AOTInductor."""
    place = tmp_path_factory.mktemp("half")
    run(place, "first_half", RANGES, compiler="inductor", options=CacheOptions(place / "cache"))
    return place / "cache"


@needs_compiler
def test_an_engine_with_other_weights_is_rebuilt(tmp_path: Path, store: LocalStore, told: Told, half: Path) -> None:
    """An entry whose list of weights is not that of the segment: checked before anything runs."""
    shutil.copytree(half, store.directory)
    (key,) = store.stored_keys()
    path = store.path(key) / "files" / "weights.json"
    contents = json.loads(path.read_text())
    contents["weights"][0]["shape"] = [1, 1]
    _replace(store, key, "files/weights.json", json.dumps(contents).encode())
    again = run(tmp_path, "first_half", RANGES, told, compiler="inductor")
    assert [s.hit for s in engines(again)] == [False]
    assert "the engine wants a weight w0 of float32[1, 1]" in told.warnings[0]


def _replace(store: LocalStore, key: str, name: str, content: bytes) -> None:
    """Change a file of an entry and its checksum, as one could who may write to the cache."""
    import blake3

    (store.path(key) / name).write_bytes(content)
    entry = store.path(key) / "entry.json"
    document = json.loads(entry.read_text())
    document["record"]["files"][name] = {"size": len(content), "blake3": blake3.blake3(content).hexdigest()}
    entry.write_text(json.dumps(document))


@needs_compiler
def test_a_package_with_a_pickle_is_refused(tmp_path: Path, store: LocalStore, told: Told, half: Path) -> None:
    shutil.copytree(half, store.directory)
    (key,) = store.stored_keys()
    package = store.path(key) / "files" / "model.pt2"
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr("model/data/weights/model_weights_config.json", "{}")
    _replace(store, key, "files/model.pt2", package.read_bytes())
    again = run(tmp_path, "first_half", RANGES, told, compiler="inductor")
    assert [s.hit for s in engines(again)] == [False]
    assert "has no place in one" in told.warnings[0]


def test_a_tensor_of_another_shape_is_not_put_in(tmp_path: Path) -> None:
    from builder.compilers.aoti_package import PlacedWeight

    contents = WeightsFile("data/x_weights.blob", 64, (PlacedWeight("w0", "float32", (2, 2), (2, 1), 0, 16),))
    for wrong in ({}, {"w0": torch.ones(4)}, {"w0": torch.ones(2, 2).t()}, {"w0": torch.ones(2, 2).double()}):
        with pytest.raises(RefitError, match="wants a weight w0"):
            fill_package(tmp_path / "none.pt2", tmp_path / "full.pt2", contents, wrong)


def test_what_is_in_the_key_by_value_is_said(tmp_path: Path, store: LocalStore) -> None:
    image = "x=float32[B=1:2:4, 3, 8, 8]"
    result = run(tmp_path, "tests.models.nets:ordered", image)
    (entry,) = store.entries()
    reasons = {f["origin"]: f["reason"] for f in entry.record.fixed}
    assert "int64 tensors hold indices" in reasons["positions"]
    assert reasons["order"] == "its value becomes an index or a condition (TopK)"
    other = run(tmp_path, "tests.models.nets:ordered_otherwise", image)
    assert engines(other)[0].key != engines(result)[0].key


@pytest.mark.parametrize("compiler", LESS_OF_INDUCTOR)
def test_a_custom_operator_is_compiled_at_every_build(tmp_path: Path, told: Told, compiler: str) -> None:
    """Its name does not tell what it does."""
    for _ in range(2):
        result = run(tmp_path, "tests.models.custom:net", "x=float32[B=1:2:4, 8]", told, compiler=compiler)
        if compiler == "inductor":
            assert [s.hit for s in engines(result)] == [False]
    if compiler == "inductor":
        assert all("is compiled at every build: the operator" in n for n in told.notes) and len(told.notes) == 2


@pytest.fixture(autouse=True)
def own_compiler_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """AOTInductor has caches of its own, which would make a second compile look like a hit."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    yield
