"""Built, served by the real Triton server, called with tritonclient: the right answers over the whole range."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.cache.options import CacheOptions
from builder.errors import ServingError
from builder.inputs import Input
from builder.pipeline import build
from builder.progress import Silent
from builder.serving.client import Client
from builder.serving.install import find_server
from builder.serving.server import TritonServer
from builder.spec import BuildSpec, find_spec
from builder.verify.smoke import smoke
from tests.integration.test_build import CONVNET, HYBRID, STRUCTURED, spec
from tests.models import nets

pytestmark = pytest.mark.skipif(find_server() is None, reason="no Triton server is installed")

PROTOCOLS = ["http", "grpc"]
MODELS = {
    "convnet": spec(*CONVNET, name="convnet"),
    "hybrid": spec(*HYBRID, name="hybrid"),
    "profiles": spec(*HYBRID, name="profiles", profiles=("B=1, T=2:4:8", "B=4:8:32, T=8:16:64")),
    "reduced": spec(*CONVNET, name="reduced", precision="fp16"),
    "halves": spec("Permute", "x=bfloat16[B=1:2:4, 3]", "scalar=bfloat16[]", name="halves"),
    "scalars": spec("Permute", "x=float32[B=1:2:4, 3]", "scalar=float32[]", name="scalars"),
    "flags": spec("Permute", "x=bool[B=1:2:4, 3]", "scalar=bool[]", name="flags"),
    "structured": spec(*STRUCTURED, name="structured"),
    "minilm": find_spec(
        "minilm",
        inputs=["input_ids=int64[B=1:2:4, T=8:16:64] in 0..30521", "attention_mask=int64[B, T] in 0..1"],
        overrides={"compiler": "onnxruntime"},
    ),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served")
    for model in MODELS.values():
        # Verified by the server's own answers below.
        quick = model.settings.model_copy(
            update={"verify": model.settings.verify.model_copy(update={"max_corners": 3})}
        )
        build(
            BuildSpec(**{**dict(model), "settings": quick}),
            root=place / "model_repo",
            cache=CacheOptions(place / "cache"),
        )
    return place / "model_repo"


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[TritonServer]:
    with TritonServer(root) as running:
        yield running


def url(server: TritonServer, protocol: str) -> str:
    return server.http_url if protocol == "http" else server.grpc_url


@pytest.mark.parametrize("name", MODELS)
def test_answers_match_eager_over_the_whole_range(server: TritonServer, root: Path, name: str) -> None:
    urls = {protocol: url(server, protocol) for protocol in PROTOCOLS}
    result = smoke(MODELS[name], root, Silent(), urls=urls)
    assert set(result.reports) == set(PROTOCOLS)
    for report in result.reports.values():
        dynamic = {d.name for t in MODELS[name].inputs or () if isinstance(t, Input) for d in t.dims if not d.is_static}
        assert report.points >= 3 ** len(dynamic - {None})
        assert report.worst is not None
        if name not in ("halves", "reduced"):
            assert report.worst.relative < 1e-4


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((33, 2, 16), "inference request batch-size must be <= 32 for 'hybrid'"),
        ((1, 1, 16), "dimension 1 of input 'x' (T) is 1, outside the range 2 to 64"),
        ((1, 65, 16), "dimension 1 of input 'x' (T) is 65, outside the range 2 to 64"),
    ],
)
def test_out_of_range_is_refused_by_name(
    server: TritonServer, protocol: str, shape: tuple[int, ...], said: str
) -> None:
    with Client(protocol, url(server, protocol)) as client:
        with pytest.raises(ServingError) as caught:
            client.infer("hybrid", {"x": np.zeros(shape, np.float32)})
        assert said in str(caught.value)
        good = client.infer("hybrid", {"x": np.zeros((1, 2, 16), np.float32)})
        assert good["output"].shape == (1, 2, 8), "the model goes on answering"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_python_int_is_checked_too(server: TritonServer, protocol: str) -> None:
    tensors = {
        "batch.values": np.ones((1, 2, 8), np.float32),
        "batch.mask": np.ones((1, 2), np.float32),
        "extra.0": np.ones((1, 2, 8), np.float32),
        "extra.1": np.ones((1, 2, 8), np.float32),
    }
    with Client(protocol, url(server, protocol)) as client:
        given = client.infer("structured", {**tensors, "copies": np.array([7], np.int64)})
        assert given["copies"].shape == (1, 7, 2, 4)
        with pytest.raises(ServingError, match="input 'copies' is 8, outside the range 1 to 7"):
            client.infer("structured", {**tensors, "copies": np.array([8], np.int64)})


def test_many_clients_get_their_own_answers(server: TritonServer) -> None:
    module = nets.hybrid()
    failures: list[object] = []

    def call(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with Client("grpc", server.grpc_url) as client:
            for size in range(2, 12):
                x = torch.randn(1 + seed, size, 16, generator=generator)
                answer = client.infer("hybrid", {"x": x.numpy()})["output"]
                with torch.inference_mode():
                    expected = module(x).numpy()
                if answer.shape != expected.shape or not np.allclose(answer, expected, atol=1e-5):
                    failures.append((seed, size))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_model_without_fallback_is_served_without_torch(server: TritonServer) -> None:
    """The stub of a Python model is a process; what it has mapped tells what it imported."""
    stubs = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"triton_python_backend_stub" in _read(p)]
    mapped = {_model_of(p): _read(p.parent / "maps") for p in stubs}
    if not {"minilm", "hybrid"} <= set(mapped):
        pytest.skip("another server's processes are in the way")
    assert b"libtorch" not in mapped["minilm"]
    assert b"libtorch" in mapped["hybrid"]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _model_of(cmdline: Path) -> str:
    arguments = _read(cmdline).decode().split("\0")
    script = next((a for a in arguments if a.endswith("model.py")), "")
    return Path(script).parent.parent.name


def run_cli(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "triton-repo"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_serve_and_smoke_as_commands(root: Path, tmp_path: Path) -> None:
    """As a user types them: serve on free ports, smoke against it, Ctrl-C."""
    only = tmp_path / "model_repo"
    only.mkdir()
    (only / "hybrid").symlink_to(root / "hybrid")
    serving = run_cli("serve", "--repo", str(only), "--json")
    assert serving.stdout is not None
    try:
        text = ""
        while not text.rstrip().endswith("}"):
            line = serving.stdout.readline()
            assert line, serving.communicate()[1]
            text += line
        urls = json.loads(text)
        command = ["smoke", "tests.models.nets:hybrid", "--input", HYBRID[1], "--repo", str(only), "--json"]
        calling = run_cli(*command, "--http-url", urls["http"], "--grpc-url", urls["grpc"])
        out, errors = calling.communicate(timeout=120)
        assert calling.returncode == 0, errors
        assert {r["points"] for r in json.loads(out)["reports"].values()} == {13}
    finally:
        serving.send_signal(signal.SIGINT)
        _, errors = serving.communicate(timeout=60)
    assert serving.returncode == 0, errors
    assert "Traceback" not in errors


def test_smoke_starts_a_server_when_none_has_the_model(root: Path, tmp_path: Path) -> None:
    only = tmp_path / "model_repo"
    only.mkdir()
    (only / "convnet").symlink_to(root / "convnet")
    result = smoke(MODELS["convnet"], only, Silent())
    assert result.server == "a server started for this test"
    assert result.version == 1


def test_smoke_tells_other_weights_apart(root: Path, tmp_path: Path) -> None:
    other = spec("reseeded_hybrid", HYBRID[1], name="hybrid")
    with pytest.raises(ServingError, match="has other weights now"):
        smoke(other, root, Silent())


def test_a_model_without_trained_weights_is_the_same_every_time(root: Path, tmp_path: Path) -> None:
    fresh = spec("Hybrid", HYBRID[1], name="fresh")
    result = build(fresh, root=tmp_path / "model_repo")
    torch.rand(3)
    assert build(fresh, root=tmp_path / "model_repo").publication.version == result.publication.version


def test_smoke_without_a_build_says_what_to_do(tmp_path: Path) -> None:
    process = run_cli("smoke", "minilm", "--repo", str(tmp_path / "model_repo"), env={**os.environ})
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "triton-repo build minilm" in errors and "Traceback" not in errors
