"""Every layout in the real server: its core checks the configs, joins requests and runs the warm-up; answers are compared with eager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.utils.shared_memory as shared_memory

from builder.cache.options import CacheOptions
from builder.errors import RepositoryError, ServingError
from builder.models.sources import load_model
from builder.pipeline import BuildResult, build
from builder.progress import Silent
from builder.repository.assemble import assemble
from builder.repository.lint import lint_repository
from builder.repository.publish import publish
from builder.serving.client import Client
from builder.serving.install import find_server
from builder.serving.server import TritonServer
from builder.spec import BuildSpec, find_spec
from builder.triton_options import PreprocessOptions, RepositoryOptions, TritonOptions
from builder.verify.smoke import smoke
from tests.integration.standins import answer_nothing, stand_in
from tests.integration.test_build import CONVNET, HYBRID
from tests.integration.threads import together
from tests.unit.random_assemblies import draw

pytestmark = pytest.mark.skipif(find_server() is None, reason="no Triton server is installed")

IDS = ("ids=int64[B=1:4:16, T=2:8:32] in 0..99", "mask=int64[B, T] in 0..1")


def placed(
    name: str,
    source: str,
    *inputs: str,
    layout: str = "auto",
    triton: str = "26.09",
    fallback: str = "auto",
    **options: Any,
) -> BuildSpec:
    spec = find_spec(
        f"tests.models.{source}",
        name=name,
        inputs=inputs,
        overrides={"compiler": "onnxruntime"},
    )
    quick = spec.settings.verify.model_copy(update={"max_corners": 3, "random_points": 2})
    return spec.model_copy(
        update={
            "settings": spec.settings.model_copy(update={"verify": quick}),
            "repository": RepositoryOptions(layout=layout, triton=triton, fallback=fallback),  # type: ignore[arg-type]
            "triton": TritonOptions.model_validate(options),
        }
    )


STATE = {"input_name": "state", "output_name": "new_state"}
# How many models are drawn at random, for the core to check.
DRAWN = 14

SCORES = ("x=float32[B=1:4:16, 4]", "weight=float32[B]")
SPECS = {
    s.name: s
    for s in (
        placed("plan", "nets:convnet", CONVNET[1]),
        placed("plan_rows", "rows:Scores", *SCORES),
        placed("plan_whole", "nets:convnet", CONVNET[1], max_batch_size=0),
        placed("mixed", "nets:hybrid", HYBRID[1], layout="ensemble", fallback="python"),
        placed("native", "nets:hybrid", HYBRID[1], layout="ensemble", fallback="torch_aoti"),
        placed("old", "nets:hybrid", HYBRID[1], layout="ensemble", triton="25.01", max_batch_size=8),
        placed("rows", "rows:Scores", *SCORES, layout="python"),
        placed(
            "sums",
            "rows:Accumulator",
            "x=float32[B=1:4:8, 3]",
            "state=float32[B, 3]",
            layout="python",
            sequence_batching={"state": [STATE], "oldest": {"max_candidate_sequences": 8}},
        ),
        placed(
            "padded",
            "rows:MaskedMean",
            *IDS,
            optional={"mask": 1},
            ragged={"ids": 0, "mask": 0},
            dynamic_batching={"max_queue_delay_microseconds": 100000},
        ),
    )
}
TEXTS = placed("texts", "rows:MaskedMean", *IDS, ragged={"ids": 0, "mask": 0}).model_copy(
    update={
        "base": Path(__file__).resolve().parents[1] / "models",
        "preprocess": PreprocessOptions(
            source="tokens.py:encode",
            inputs={"text": "bytes[B]"},
            files=("words.txt",),
            examples=({"text": ["the quick fox", "a dog"]}, {"text": ["the lazy dog jumps over the fox"]}),
        ),
    }
)
SPECS["texts"] = TEXTS


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuildResult]:
    place = tmp_path_factory.mktemp("layouts")
    cache = CacheOptions(place / "cache")
    return {name: build(spec, root=place / "model_repo", cache=cache) for name, spec in SPECS.items()}


@pytest.fixture(scope="module")
def root(built: dict[str, BuildResult]) -> Path:
    return built["plan"].publication.path.parent.parent


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    drawn = []
    for seed in range(DRAWN):
        plan = assemble(draw(tmp_path_factory.mktemp("drawn"), seed, f"drawn_{seed}"))
        publish(plan, root)
        drawn += [plan.name, *(m.name for m in plan.members)]
    assert [f for f in lint_repository(root) if f.severity == "error" and "onnx-" not in f.rule] == []
    for name in drawn:
        if 'platform: "ensemble"' not in (root / name / "config.pbtxt").read_text():
            answer_nothing(root / name)
    assert len(stand_in(root)) >= 7
    with TritonServer(root) as running:
        yield running


def test_layouts_and_batches(built: dict[str, BuildResult]) -> None:
    found = {n: (r.placement.layout.layout, r.placement.batching.max_batch_size) for n, r in built.items()}
    assert found == {
        "plan": ("plan", 8),
        "plan_rows": ("plan", 16),
        "plan_whole": ("plan", 0),
        "mixed": ("ensemble", 32),
        "native": ("ensemble", 32),
        "old": ("ensemble", 8),
        "rows": ("python", 16),
        "sums": ("python", 8),
        "padded": ("python", 16),
        "texts": ("python", 16),
    }
    assert built["native"].placement.layout.runners == ("onnxruntime", "inductor", "onnxruntime")
    assert built["mixed"].placement.layout.runners == ("onnxruntime", "python", "onnxruntime")
    assert any("AOTI_RUNTIME_CHECK_INPUTS" in n for n in built["native"].placement.needs)
    assert "optional" in built["padded"].placement.layout.reason


def test_equal_segments_of_two_models_are_members_of_their_own(built: dict[str, BuildResult], root: Path) -> None:
    members = set(built["mixed"].publication.manifest.members)
    assert {m.partition(".")[0] for m in members} == {"mixed"}
    assert members <= {p.name for p in root.iterdir()}


@pytest.mark.parametrize("name", SPECS)
def test_answers_match_eager(server: TritonServer, root: Path, name: str) -> None:
    result = smoke(SPECS[name], root, Silent(), urls={"http": server.http_url, "grpc": server.grpc_url})
    for report in result.reports.values():
        assert report.worst is not None and report.worst.relative < 1e-4


@pytest.mark.parametrize("name", ["plan", "mixed", "padded"])
def test_the_warmup_was_run(server: TritonServer, built: dict[str, BuildResult], name: str) -> None:
    models = list(built[name].publication.manifest.members) or [name]
    log = "\n".join(server.log)
    assert "failed to run warmup" not in log
    for model in models:
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            config = client.get_model_config(model, as_json=True)["config"]
        assert len(config["model_warmup"]) == 3


@pytest.mark.parametrize("seed", range(DRAWN))
def test_the_core_takes_whatever_is_drawn(server: TritonServer, seed: int) -> None:
    """The server would not be ready otherwise; each has run its warm-up, too."""
    with Client("grpc", server.grpc_url) as client:
        assert client.model_ready(f"drawn_{seed}")


def call(server: TritonServer, name: str, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """All at once, each from a thread of its own."""
    answers: list[Any] = [None] * len(requests)

    def one(index: int) -> None:
        with Client("grpc", server.grpc_url) as client:
            answers[index] = client.infer(name, requests[index])

    together([lambda i=i: one(i) for i in range(len(requests))])  # type: ignore[misc]
    return answers


def executions(server: TritonServer, name: str) -> tuple[int, int]:
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        stats = client.get_inference_statistics(name, as_json=True)["model_stats"][0]
    return int(stats["inference_count"]), int(stats["execution_count"])


def test_requests_of_different_lengths_are_joined(server: TritonServer) -> None:
    rows_before, runs_before = executions(server, "padded")
    generator = np.random.default_rng(0)
    requests = []
    for length in (2, 5, 9, 17, 32, 3):
        ids = generator.integers(0, 100, (2, length))
        requests.append({"ids": ids, "mask": generator.integers(0, 2, ids.shape)})
    answers = call(server, "padded", requests)
    module = load_model("tests.models.rows:MaskedMean", base=Path.cwd()).module.eval()
    for request, answer in zip(requests, answers, strict=True):
        with torch.inference_mode():
            expected = module(*(torch.from_numpy(request[n]) for n in ("ids", "mask")))
        for output, value in expected.items():
            assert answer[output].shape == tuple(value.shape)
            np.testing.assert_allclose(answer[output], value.numpy(), atol=1e-5)
    rows_after, runs_after = executions(server, "padded")
    assert rows_after - rows_before == 12
    assert runs_after - runs_before < len(requests), "the server joined some"


def test_what_is_left_out_is_filled(server: TritonServer) -> None:
    ids = np.arange(6).reshape(2, 3)
    with Client("http", server.http_url) as client:
        without = client.infer("padded", {"ids": ids})
        with_ones = client.infer("padded", {"ids": ids, "mask": np.ones_like(ids)})
    np.testing.assert_array_equal(without["mean"], with_ones["mean"])


def test_texts_are_encoded_in_the_server(server: TritonServer, root: Path) -> None:
    assert sorted(p.name for p in (root / "texts" / "1" / "preprocess").iterdir()) == ["tokens.py", "words.txt"]
    text = np.array([[b"the quick fox"], [b"a dog"]], dtype=object)
    with Client("http", server.http_url) as client:
        assert client.infer("texts", {"text": text})["mean"].shape == (2, 8)
        with pytest.raises(
            ServingError, match=r"tokens\.py:encode fails for this request: ValueError: a text is empty"
        ):
            client.infer("texts", {"text": np.array([[b""]], dtype=object)})
        with pytest.raises(ServingError, match=r"dimension 1 of input 'ids' \(T\) is 40"):
            client.infer("texts", {"text": np.array([[b"fox " * 40]], dtype=object)})


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (np.ones((1, 40), np.int64), "dimension 1 of input 'ids' (T) is 40, outside the range 2 to 32"),
        (np.full((1, 4), 5000), "segment_0 fails for this request"),
    ],
    ids=["a size that we refuse", "a value that a library refuses"],
)
def test_one_bad_request_does_not_spoil_a_batch(
    server: TritonServer, ids: np.ndarray[Any, np.dtype[np.int64]], said: str
) -> None:
    good = {"ids": np.ones((1, 4), np.int64), "mask": np.ones((1, 4), np.int64)}
    bad = {"ids": ids, "mask": np.ones_like(ids)}
    failures: list[str] = []

    def one(request: dict[str, np.ndarray]) -> None:
        with Client("grpc", server.grpc_url) as client:
            try:
                client.infer("padded", request)
            except ServingError as error:
                failures.append(error.what)

    together([lambda r=r: one(r) for r in (good, bad, good)])  # type: ignore[misc]
    assert len(failures) == 1
    assert said in failures[0]


def test_rows_are_joined_by_the_python_layout(server: TritonServer) -> None:
    before = executions(server, "rows")
    requests = [{"x": np.full((1, 4), i, np.float32), "weight": np.ones((1, 1), np.float32)} for i in range(12)]
    answers = call(server, "rows", requests)
    hidden = [a["hidden"][0] for a in answers]
    # It is linear, so that each row tells which request it belongs to.
    steps = np.diff(np.stack(hidden), axis=0)
    np.testing.assert_allclose(steps, np.broadcast_to(steps[0], steps.shape), atol=1e-4)
    rows_now, _ = executions(server, "rows")
    assert rows_now - before[0] == 12


def test_sequences_keep_their_states_apart(server: TritonServer) -> None:
    totals = {7: 0.0, 8: 0.0}
    with Client("grpc", server.grpc_url) as client:
        for turn in range(4):
            for sequence in totals:
                x = np.full((1, 3), sequence + turn, np.float32)
                answer = client.infer("sums", {"x": x}, sequence=(sequence, turn == 0, turn == 3))
                totals[sequence] += sequence + turn
                assert set(answer) == {"y"}
                np.testing.assert_allclose(answer["y"], np.full((1, 3), 2 * totals[sequence]))
        # A new sequence of the same number begins with zeros.
        again = client.infer("sums", {"x": np.ones((1, 3), np.float32)}, sequence=(7, True, True))
        np.testing.assert_allclose(again["y"], np.full((1, 3), 2.0))
        with pytest.raises(ServingError, match="START flag"):
            client.infer("sums", {"x": np.ones((1, 3), np.float32)}, sequence=(9, False, False))


@pytest.mark.parametrize("name", ["plan_rows", "mixed"])
def test_system_shared_memory(server: TritonServer, root: Path, name: str) -> None:
    shapes = {"plan_rows": {"x": (3, 4), "weight": (3, 1)}, "mixed": {"x": (3, 5, 16)}}[name]
    arrays = {n: np.random.default_rng(1).standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    output = {"plan_rows": ("hidden", (3, 3)), "mixed": ("output", (3, 5, 8))}[name]
    size = sum(a.nbytes for a in arrays.values())
    region = shared_memory.create_shared_memory_region("in", f"/layouts_{name}", size + 4 * int(np.prod(output[1])))
    try:
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.register_system_shared_memory("region", f"/layouts_{name}", size + 4 * int(np.prod(output[1])))
            shared_memory.set_shared_memory_region(region, list(arrays.values()))
            inputs, offset = [], 0
            for key, array in arrays.items():
                given = tritonclient.grpc.InferInput(key, array.shape, "FP32")
                given.set_shared_memory("region", array.nbytes, offset)
                offset += array.nbytes
                inputs.append(given)
            wanted = tritonclient.grpc.InferRequestedOutput(output[0])
            wanted.set_shared_memory("region", 4 * int(np.prod(output[1])), offset)
            client.infer(name, inputs, outputs=[wanted])
            shared = shared_memory.get_contents_as_numpy(region, np.float32, output[1], offset).copy()
            client.unregister_system_shared_memory("region")
    finally:
        shared_memory.destroy_shared_memory_region(region)
    with Client("grpc", server.grpc_url) as plain:
        np.testing.assert_allclose(shared, plain.infer(name, arrays)[output[0]], atol=1e-6)


def test_a_layout_that_cannot_be_says_why_before_it_compiles(tmp_path: Path) -> None:
    spec = placed("net", "nets:hybrid", HYBRID[1], layout="plan")
    with pytest.raises(RepositoryError, match="cannot have the layout plan: there are 3 segments"):
        build(spec, root=tmp_path / "repo", cache=CacheOptions(tmp_path / "cache"))
    assert not (tmp_path / "repo").exists()
