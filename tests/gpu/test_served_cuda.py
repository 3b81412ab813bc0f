"""The Python layout on a GPU: what a request's tensors go through, and answers of the real server. Skipped without CUDA."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from builder.pipeline import build
from builder.progress import Silent
from builder.runtime.triton import TritonModel
from builder.serving.install import find_server
from builder.serving.server import TritonServer
from builder.spec import BuildSpec
from builder.triton_options import TritonOptions
from builder.verify.smoke import smoke
from tests.integration.test_build import HYBRID, spec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

GPU = TritonOptions(instance_group=[{"count": 1, "kind": "KIND_GPU", "gpus": [0]}])  # type: ignore[call-arg]


class _Tensor:
    """A tensor on the GPU as Triton's Python backend hands it over and takes it back."""

    def __init__(self, tensor: torch.Tensor, name: str = "") -> None:
        self.tensor = tensor
        self.name = name

    def is_cpu(self) -> bool:
        return False

    def to_dlpack(self) -> Any:
        return torch.utils.dlpack.to_dlpack(self.tensor)

    @classmethod
    def from_dlpack(cls, name: str, capsule: Any) -> _Tensor:
        return cls(torch.utils.dlpack.from_dlpack(capsule), name)

    def as_numpy(self) -> Any:
        return self.tensor.cpu().numpy()


def _utils() -> Any:
    return SimpleNamespace(
        Tensor=_Tensor,
        InferenceResponse=lambda output_tensors, error=None: (output_tensors, error),
        TritonError=str,
        get_input_tensor_by_name=lambda request, name: request.tensors.get(name),
    )


def _request(tensor: torch.Tensor) -> Any:
    return SimpleNamespace(tensors={"x": _Tensor(tensor)}, requested_output_names=list)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[BuildSpec, Path]:
    """An AOTInductor engine, a fallback segment and an engine again."""
    model = spec(*HYBRID, compiler="inductor", torch_executed_ops=["aten::special_bessel_j0"])
    model = model.model_copy(update={"triton": GPU})
    root = tmp_path_factory.mktemp("gpu") / "model_repo"
    result = build(model, root=root)
    assert [s.compiler for s in result.segments] == ["inductor", "torch", "inductor"]
    assert result.publication.manifest.target["device"] == "cuda"
    return model, root


def test_nothing_is_copied_between_server_segments_and_server(
    mixed: tuple[BuildSpec, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request's tensor is what the first segment reads, each segment reads what the one before wrote, and the answer is what the last wrote."""
    model = TritonModel(mixed[1] / "net" / "1", _utils(), {}, kind="GPU", device_id="0")
    seen: list[tuple[list[int], list[int]]] = []
    steps = model._model._steps

    def watched(run: Any) -> Any:
        def call(inputs: Any, profile: int = 0) -> Any:
            outputs = run(inputs, profile)
            seen.append(([t.data_ptr() for t in inputs], [t.data_ptr() for t in outputs]))
            return outputs

        return call

    monkeypatch.setattr(steps, "_steps", [(s, watched(run), *rest) for s, run, *rest in steps._steps])
    x = torch.randn(3, 5, 16, device="cuda")
    ((outputs, error),) = model.execute([_request(x)])
    assert error is None
    (answer,) = (o.tensor for o in outputs)
    assert seen[0][0] == [x.data_ptr()]
    assert seen[1][0] == seen[0][1]
    assert seen[2][0] == seen[1][1]
    assert answer.data_ptr() == seen[2][1][0]
    assert answer.is_cuda


def test_a_batch_is_joined_on_the_gpu(mixed: tuple[BuildSpec, Path]) -> None:
    model = TritonModel(mixed[1] / "net" / "1", _utils(), {}, kind="GPU", device_id="0")
    requests = [torch.randn(rows, 7, 16, device="cuda") for rows in (1, 4, 2)]
    together = model.execute([_request(x) for x in requests])
    for x, (outputs, _) in zip(requests, together, strict=True):
        ((alone, _),) = [model.execute([_request(x)])[0]]
        torch.testing.assert_close(outputs[0].tensor, alone[0].tensor, rtol=1e-5, atol=1e-6)
        assert outputs[0].tensor.is_cuda


@pytest.mark.skipif(find_server() is None, reason="no Triton server is installed")
def test_the_real_server(mixed: tuple[BuildSpec, Path]) -> None:
    model, root = mixed
    with TritonServer(root) as server:
        result = smoke(model, root, Silent(), urls={"http": server.http_url, "grpc": server.grpc_url})
    for report in result.reports.values():
        assert report.worst is not None and report.worst.relative < 1e-4


def test_what_is_left_out_is_made_where_the_rest_is(mixed: tuple[BuildSpec, Path]) -> None:
    model = TritonModel(mixed[1] / "net" / "1", _utils(), {}, kind="GPU", device_id="0")
    ((outputs, error),) = model.execute([SimpleNamespace(tensors={}, requested_output_names=list)])
    assert error is not None and "'x' is missing" in error
    assert np.size(outputs) == 0
