"""The linter against the real server: it says error of exactly those models that the server refuses."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.repository.lint import lint_repository
from builder.serving.install import find_server
from builder.serving.server import TritonServer

pytestmark = pytest.mark.skipif(find_server() is None, reason="needs a Triton server")

CODE = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        y = pb_utils.Tensor("y", numpy.zeros((1, 4), numpy.float32))
        return [pb_utils.InferenceResponse([y]) for _ in requests]
"""
MODEL = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { kind: KIND_CPU }
"""
STEP = (
    'step { model_name: "%s" model_version: %s input_map { key: "x" value: "%s" } output_map { key: "y" value: "%s" } }'
)
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling { %s }
"""
PLAIN = ENSEMBLE % (STEP % ("good", "-1", "x", "y"))
WARMUP = 'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 %s } } }'

# Name of the model: its configuration, what else is in its directory, and whether it is to be loaded.
MODELS: dict[str, tuple[str, dict[str, bytes], bool]] = {
    "good": (MODEL, {}, True),
    "good_ensemble": (PLAIN, {}, True),
    "good_warmup": (MODEL + WARMUP % 'input_data_file: "f"', {"warmup/f": bytes(16)}, True),
    "count_zero": (MODEL.replace("KIND_CPU", "KIND_CPU count: 0"), {}, True),
    "batching_without_effect": (MODEL.replace("size: 4", "size: 0") + "dynamic_batching { }", {}, True),
    "name": (MODEL + 'name: "other"', {}, False),
    "no_backend": (MODEL.replace('backend: "python"', ""), {"1/model.bin": b""}, False),
    "negative": (MODEL.replace("size: 4", "size: -1"), {}, False),
    "zero_dim": (MODEL.replace("[ 4 ]", "[ 0 ]"), {}, False),
    "reshape": (MODEL.replace("[ 4 ] }", "[ 4 ] reshape { shape: [ 3 ] } }"), {}, False),
    "gpus": (MODEL.replace("KIND_CPU", "KIND_CPU gpus: 0"), {}, False),
    "profile": (MODEL.replace("KIND_CPU", 'KIND_CPU profile: "0"'), {}, False),
    "preferred": (MODEL + "dynamic_batching { preferred_batch_size: 8 }", {}, False),
    "control": (MODEL + 'sequence_batching { control_input { name: "c" control { } } }', {}, False),
    "cache": (MODEL + "model_transaction_policy { decoupled: true } response_cache { enable: true }", {}, False),
    "no_version": (MODEL + "version_policy { specific { versions: 2 } }", {}, False),
    "warmup_type": (MODEL + (WARMUP % "zero_data: true").replace("FP32", "INT64"), {}, False),
    "warmup_dims": (MODEL + (WARMUP % "zero_data: true").replace("dims: 4", "dims: [ 1, 4 ]"), {}, False),
    "warmup_file": (MODEL + WARMUP % 'input_data_file: "f"', {}, False),
    "warmup_short": (MODEL + WARMUP % 'input_data_file: "f"', {"warmup/f": bytes(15)}, False),
    "warmup_long": (MODEL + WARMUP % 'input_data_file: "f"', {"warmup/f": bytes(20)}, True),
    "no_class": (MODEL, {"1/model.py": b"class Model: pass"}, False),
    "label": (MODEL.replace("[ 4 ] }\ninst", '[ 4 ] label_filename: "l" }\ninst'), {}, False),
    "unused_input": (PLAIN + 'input { name: "z" data_type: TYPE_FP32 dims: 1 }', {}, False),
    "unknown_member": (PLAIN.replace('"good"', '"nobody"'), {}, False),
    "inconsistent_type": (PLAIN.replace("FP32", "INT32"), {}, False),
    "inconsistent_shape": (PLAIN.replace("[ 4 ]", "[ 5 ]"), {}, False),
    "batch": (PLAIN.replace("size: 4", "size: 8"), {}, False),
    "pinned": (PLAIN.replace("model_version: -1", "model_version: 5"), {}, False),
    "unpinned": (PLAIN.replace("model_version: -1", ""), {}, False),
    "fields": (PLAIN + "optimization { }", {}, False),
    "circle": (ENSEMBLE % (STEP % ("good", "-1", "t", "y") + STEP % ("good", "-1", "u", "t")), {}, False),
    "itself": (PLAIN.replace('"good"', '"itself"'), {}, False),
}

WORDED = "gpus no_version warmup_file label unknown_member inconsistent_type inconsistent_shape batch pinned unpinned"


def load(server: TritonServer, name: str) -> tuple[bool, str]:
    connection = http.client.HTTPConnection(server.http_url, timeout=30)
    connection.request("POST", f"/v2/repository/models/{name}/load", body="{}")
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status == 200, text


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    for name, (config, files, _) in MODELS.items():
        artifact = {} if files.keys() & {"1/model.bin"} else {"1/model.py": CODE.encode()}
        for path, content in {"config.pbtxt": config.encode(), **artifact, **files}.items():
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).write_bytes(content)
    return root


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[TritonServer]:
    with TritonServer(repository, model_control_mode="explicit") as server:
        yield server


@pytest.fixture(scope="module")
def findings(repository: Path) -> dict[str, list[str]]:
    """The messages of the errors of each model that has any."""
    found: dict[str, list[str]] = {}
    for finding in lint_repository(repository):
        if finding.severity == "error":
            found.setdefault(Path(finding.path).relative_to(repository).parts[0], []).append(finding.message)
    return found


def test_the_server_refuses_what_the_linter_says_error_of(server: TritonServer, findings: dict[str, list[str]]) -> None:
    answers = {name: load(server, name) for name in MODELS}
    refused = {name for name, (loaded, _) in answers.items() if not loaded}
    assert refused == findings.keys(), {name: answers[name] for name in refused ^ findings.keys()}
    assert refused == {name for name, (_, _, good) in MODELS.items() if not good}
    # The server gives its reason only where it had read the configuration; there the linter gives the same one.
    for name in WORDED.split():
        assert any(message in answers[name][1] for message in findings[name]), (answers[name][1], findings[name])
