"""What needs CUDA; skipped without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from builder.pipeline import BuildResult, build
from builder.runtime.model import RuntimeModel
from builder.runtime.values import to_torch
from tests.integration.test_build import HYBRID, spec
from tests.models.nets import hybrid, reseeded_hybrid

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize("smallest", [1, 1000])
def test_fallback_segments_run_on_the_gpu(tmp_path: Path, smallest: int) -> None:
    result = build(spec(*HYBRID, min_block_size=smallest), root=tmp_path / "repo")
    model = RuntimeModel(result.publication.path, device="cuda:0")
    for size in ((1, 2), (7, 33), (32, 64)):
        x = torch.randn(*size, 16)
        output = model({"x": x.numpy()})["output"]
        if smallest == 1000:
            assert isinstance(output, torch.Tensor) and output.is_cuda, "a fallback segment leaves its output there"
        with torch.inference_mode():
            expected = hybrid()(x)
        torch.testing.assert_close(to_torch(output), expected, rtol=1e-4, atol=1e-5)


FRESH = """
import sys
from pathlib import Path
import numpy as np
from builder.runtime.model import RuntimeModel
output = RuntimeModel(Path(sys.argv[1]), device="cuda:0")({"x": np.zeros((2, 3, 16), np.float32)})["output"]
assert "onnxruntime" not in sys.modules
print(tuple(output.shape), output.device)
"""


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_inductor_engines_load_in_a_process_that_has_nothing_else(tmp_path: Path, precision: str) -> None:
    result = build(spec(*HYBRID, compiler="inductor", precision=precision), root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["inductor"]
    place = str(result.publication.path)
    done = subprocess.run([sys.executable, "-c", FRESH, place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cuda:0" in done.stdout


def test_device_tensors_are_taken_as_they_are(tmp_path: Path) -> None:
    result = build(spec(*HYBRID, min_block_size=1000), root=tmp_path / "repo")
    model = RuntimeModel(result.publication.path, device="cuda:0")
    x = torch.randn(3, 5, 16, device="cuda")
    on_device = model({"x": x})["output"]
    from_host = model({"x": np.ascontiguousarray(x.cpu().numpy())})["output"]
    torch.testing.assert_close(to_torch(on_device), to_torch(from_host))


def test_inductor_compiles_for_the_gpu(tmp_path: Path) -> None:
    result = build(spec(*HYBRID, compiler="inductor"), root=tmp_path / "repo")
    manifest = result.publication.manifest
    assert [s.compiler for s in result.segments] == ["inductor"]
    assert manifest.target["device"] == "cuda"
    assert result.report.verified and result.report.worst is not None and result.report.worst.relative < 1e-3
    output = RuntimeModel(result.publication.path, device="cuda:0")({"x": np.zeros((2, 3, 16), np.float32)})["output"]
    assert isinstance(output, torch.Tensor) and output.is_cuda


def test_inductor_with_a_fallback_between(tmp_path: Path) -> None:
    between = spec(*HYBRID, compiler="inductor", torch_executed_ops=["aten::special_bessel_j0"])
    result = build(between, root=tmp_path / "repo")
    assert [s.compiler for s in result.segments] == ["inductor", "torch", "inductor"]
    assert result.report.verified


def test_inductor_engines_take_new_weights_on_the_gpu(tmp_path: Path) -> None:
    def run(name: str) -> BuildResult:
        result = build(spec(name, HYBRID[1], name=name, compiler="inductor"), root=tmp_path / "repo")
        assert result.report.verified
        return result

    first, trained = run("hybrid"), run("reseeded_hybrid")
    assert [s.hit for r in (first, trained) for s in r.segments] == [False, True]
    x = torch.randn(7, 33, 16)
    for result, module in ((first, hybrid()), (trained, reseeded_hybrid())):
        with torch.inference_mode():
            expected = module(x)
        given = RuntimeModel(result.publication.path, device="cuda:0")({"x": x.numpy()})["output"]
        torch.testing.assert_close(to_torch(given), expected, rtol=1e-4, atol=1e-5)
