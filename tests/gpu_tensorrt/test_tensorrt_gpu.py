"""TensorRT and TensorRT-RTX on a GPU that they support: `pytest -m gpu_tensorrt`. Skipped elsewhere.

Each build is verified against eager PyTorch over its whole range; a build that comes back has passed that.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.cache.options import CacheOptions
from builder.compilers.tensorrt.compiler import TensorRTCompiler, TensorRTRTXCompiler
from builder.pipeline import BuildResult, build
from builder.runtime.model import RuntimeModel
from builder.runtime.tensorrt import RUNTIME_CACHE
from builder.runtime.values import to_torch
from builder.settings import TensorRTSettings
from builder.spec import find_spec
from tests.integration.test_build import CONVNET, HYBRID, STRUCTURED, spec
from tests.integration.test_tensorrt_settings import MAGIC
from tests.models.nets import hybrid

FLAVOURS = {c.name: c for c in (TensorRTCompiler(), TensorRTRTXCompiler())}

pytestmark = [
    pytest.mark.gpu_tensorrt,
    pytest.mark.skipif(
        not any(c.availability().can_run for c in FLAVOURS.values()), reason="no TensorRT can run on this machine"
    ),
]


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if not FLAVOURS[name].availability().can_run:
        pytest.skip(FLAVOURS[name].availability().detail)
    return name


def built(place: Path, flavour: str, *model: str, cache: Path | None = None, **settings: Any) -> BuildResult:
    result = build(
        spec(*model, compiler=flavour, **settings), root=place / "repo", cache=CacheOptions(cache or place / "cache")
    )
    assert result.report.verified and not [f for f in result.plan.fallbacks if "does not build" in f.reason]
    return result


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("model", [CONVNET, HYBRID], ids=["convnet", "hybrid"])
def test_precisions(tmp_path: Path, flavour: str, model: tuple[str, str], precision: str) -> None:
    result = built(tmp_path, flavour, *model, precision=precision)
    assert any(s.compiler == flavour for s in result.segments)


def test_profiles(tmp_path: Path, flavour: str) -> None:
    result = built(tmp_path, flavour, *HYBRID, profiles=("B=1, T=2:4:8", "B=1:2:4", "B=8:16:32, T=2:16:64"))
    model = RuntimeModel(result.publication.path, device="cuda:0")
    for size in ((1, 2), (4, 64), (32, 64), (8, 33)):
        x = torch.randn(*size, 16)
        with torch.inference_mode():
            torch.testing.assert_close(
                to_torch(model({"x": x.numpy()})["output"]).cpu(), hybrid()(x), rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize("refit", ["weights", "identical", "none"])
def test_refit(tmp_path: Path, flavour: str, refit: str) -> None:
    settings = {"tensorrt": TensorRTSettings(refit=refit)}
    first = built(tmp_path / "one", flavour, *HYBRID, cache=tmp_path / "cache", **settings)
    again = built(tmp_path / "again", flavour, *HYBRID, cache=tmp_path / "cache", **settings)
    other = built(tmp_path / "other", flavour, "reseeded_hybrid", HYBRID[1], cache=tmp_path / "cache", **settings)

    def hits(result: BuildResult) -> list[bool | None]:
        return [s.hit for s in result.segments if s.compiler == flavour]

    assert hits(first) == [False, False] and hits(again) == [True, True]
    assert hits(other) == ([True, True] if refit == "weights" else [False, False])


def test_data_dependent_outputs(tmp_path: Path, flavour: str) -> None:
    result = built(tmp_path, flavour, "Positive", "x=float32[B=1:2:4, 4]")
    model = RuntimeModel(result.publication.path, device="cuda:0")
    for count in (0, 3, 8):
        x = np.full((2, 4), -1.0, np.float32)
        x.reshape(-1)[:count] = 1.0
        assert to_torch(model({"x": x})["output"]).shape[0] == count


def test_values_that_are_sizes(tmp_path: Path, flavour: str) -> None:
    built(tmp_path, flavour, *STRUCTURED)


def test_cuda_graphs(tmp_path: Path, flavour: str) -> None:
    result = built(tmp_path, flavour, *CONVNET, cuda_graphs=True)
    model = RuntimeModel(result.publication.path, device="cuda:0")
    plain = RuntimeModel(built(tmp_path / "plain", flavour, *CONVNET).publication.path, device="cuda:0")
    for _ in range(4):
        for height in (16, 33):
            image = torch.randn(2, 3, height, 48, device="cuda")
            for name, value in model({"image": image}).items():
                torch.testing.assert_close(value, plain({"image": image})[name])


def test_threads_and_streams(tmp_path: Path, flavour: str) -> None:
    model = RuntimeModel(built(tmp_path, flavour, *HYBRID).publication.path, device="cuda:0")
    reference = hybrid()
    wrong: list[str] = []

    def call(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for length in range(2, 30):
                x = torch.randn(seed + 1, length, 16, generator=generator)
                with torch.inference_mode():
                    expected = reference(x)
                got = to_torch(model({"x": x.numpy()})["output"]).cpu()
                if not torch.allclose(got, expected, rtol=1e-3, atol=1e-4):
                    wrong.append(f"{seed}, {length}")

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_device_tensors_are_taken_as_they_are(tmp_path: Path, flavour: str) -> None:
    model = RuntimeModel(built(tmp_path, flavour, *CONVNET).publication.path, device="cuda:0")
    image = torch.randn(2, 3, 32, 48, device="cuda")
    outputs = model({"image": image})
    assert all(isinstance(v, torch.Tensor) and v.is_cuda for v in outputs.values())


def test_timing_cache(tmp_path: Path, flavour: str) -> None:
    built(tmp_path, flavour, *CONVNET)
    files = list((tmp_path / "cache" / "state" / "timing").glob("*.bin")) if flavour == "tensorrt" else []
    assert flavour == "tensorrt_rtx" or (len(files) == 1 and files[0].stat().st_size > 0)


def test_kernels_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not FLAVOURS["tensorrt_rtx"].availability().can_run:
        pytest.skip("TensorRT-RTX alone finishes kernels where it runs")
    monkeypatch.setenv(RUNTIME_CACHE, str(tmp_path / "kernels"))
    result = built(tmp_path, "tensorrt_rtx", *CONVNET)
    for _ in range(2):
        RuntimeModel(result.publication.path, device="cuda:0")({"image": np.zeros((2, 3, 32, 48), np.float32)})
    (file,) = (tmp_path / "kernels").iterdir()
    assert file.stat().st_size > 0


def test_minilm(tmp_path: Path, flavour: str) -> None:
    pytest.importorskip("transformers")
    result = build(find_spec("minilm", overrides={"compiler": flavour, "precision": "fp16"}), root=tmp_path / "repo")
    assert result.report.verified and not result.plan.fallbacks
    if flavour == "tensorrt_rtx":
        segment = result.publication.manifest.segments[0]
        assert (result.publication.path / segment.artifact).read_bytes()[:4] == MAGIC
