"""New versions in a server that runs: taken, put to the test, withdrawn, rolled back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from builder.errors import ServingError, VerificationError
from builder.repository.plan import MemberPlan, Publication, RepositoryPlan
from builder.repository.prune import prune
from builder.repository.publish import publish
from builder.repository.rollback import rollback
from builder.serving.client import Client
from builder.serving.install import find_server
from builder.serving.reload import publish_live, reload
from builder.serving.server import TritonServer
from tests.unit.publishing import STEP, make_manifest, tree

pytestmark = pytest.mark.skipif(find_server() is None, reason="needs a Triton server")

CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x + {added})]) for x in inputs]
"""
CONFIG = """name: "{name}"
{kind}
max_batch_size: 0
input {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }}
"""
ON_CPU = "instance_group { count: 1 kind: KIND_CPU }\n"


def model(name: str, added: object, extra: str = "") -> RepositoryPlan:
    config = CONFIG.format(name=name, kind='backend: "python"') + ON_CPU + extra
    return RepositoryPlan(make_manifest(name), config, texts={"model.py": CODE.format(added=added)})


def ensemble(name: str, *added: float) -> RepositoryPlan:
    members, steps = [], []
    tensors = ["x", *(f"t{i}" for i in range(1, len(added))), "y"]
    for index, number in enumerate(added):
        member = f"{name}.segment_{index}.{number:g}"
        config = CONFIG.format(name=member, kind='backend: "python"') + ON_CPU
        members.append(MemberPlan(member, config, {"1/model.py": CODE.format(added=number).encode()}))
        steps.append(STEP.format(member=member, source=tensors[index], target=tensors[index + 1]))
    config = CONFIG.format(name=name, kind='platform: "ensemble"')
    config += f"ensemble_scheduling {{\n{''.join(steps)}}}\n"
    return RepositoryPlan(make_manifest(name, layout="ensemble"), config, members=tuple(members))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    root = tmp_path_factory.mktemp("live") / "repository"
    root.mkdir()
    with TritonServer(root, model_control_mode="explicit") as server:
        yield server


def ask(server: TritonServer, name: str, version: str = "") -> float:
    with Client("grpc", server.grpc_url) as client:
        return float(client.infer(name, {"x": np.zeros(1, np.float32)}, version)["y"][0])


def ready(server: TritonServer) -> set[str]:
    with Client("http", server.http_url) as client:
        return {state.name for state in client.model_states() if state.state == "READY"}


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


class Caller:
    """Calls a model all the time, in a thread."""

    def __init__(self, server: TritonServer, name: str) -> None:
        self.answers: list[float] = []
        self.errors: list[Exception] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(server, name))

    def _run(self, server: TritonServer, name: str) -> None:
        with Client("grpc", server.grpc_url) as client:
            while not self._stopped.is_set():
                try:
                    self.answers.append(float(client.infer(name, {"x": np.zeros(1, np.float32)})["y"][0]))
                except Exception as error:
                    self.errors.append(error)

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


def written(root: Path) -> dict[str, bytes]:
    """All but what Python leaves."""
    return {path: content for path, content in tree(root).items() if "__pycache__" not in path}


def live(server: TritonServer, published: Publication, smoke: Callable[[], object] | None = None) -> None:
    publish_live(published, server.repository, f"grpc://{server.grpc_url}", smoke, timeout=30, log=lambda: server.log)


def test_a_new_version_is_taken_without_a_failed_request(server: TritonServer) -> None:
    root = server.repository
    live(server, publish(model("add", 1), root), lambda: ask(server, "add", "1"))
    with Caller(server, "add") as caller:
        assert eventually(lambda: len(caller.answers) > 10)
        live(server, publish(model("add", 2), root), lambda: ask(server, "add", "2"))
        assert eventually(lambda: caller.answers[-1] == 2)
    assert caller.errors == [] and set(caller.answers) == {1, 2}
    assert caller.answers == sorted(caller.answers)


def test_a_version_that_does_not_load_is_withdrawn(server: TritonServer) -> None:
    root = server.repository
    live(server, publish(model("load", 1), root))
    before = written(root)
    with Caller(server, "load") as caller:
        with pytest.raises(ServingError, match=r"(?s)version 2 of 'load' .*SyntaxError.*withdrawn; version 1 still"):
            live(server, publish(model("load", "1 +"), root))
        assert written(root) == before
        assert eventually(lambda: len(caller.answers) > 10)
    assert caller.errors == [] and set(caller.answers) == {1}
    assert publish(model("load", 2), root).version == 2


def test_a_version_with_wrong_answers_is_withdrawn(server: TritonServer) -> None:
    root = server.repository

    def smoke() -> None:
        if (answer := ask(server, "wrong")) != 1:
            raise VerificationError(f"the answer is {answer:g}")

    live(server, publish(model("wrong", 1), root), smoke)
    before = written(root)
    with pytest.raises(ServingError, match=r"the answer is 5\nit was withdrawn; version 1 still serves"):
        live(server, publish(model("wrong", 5), root), smoke)
    assert ask(server, "wrong") == 1 and written(root) == before


def test_a_first_version_that_fails_is_gone(server: TritonServer) -> None:
    before = written(server.repository)
    with pytest.raises(ServingError, match=r"withdrawn; no version serves"):
        live(server, publish(model("never", "1 +"), server.repository))
    assert written(server.repository) == before and "never" not in ready(server)


def test_a_reason_that_only_the_log_has(server: TritonServer) -> None:
    published = publish(model("opaque", 1), server.repository)
    config = server.repository / "opaque" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace('"opaque"', '"other"'))
    with pytest.raises(ServingError, match=r"unexpected directory name 'opaque' for model 'other'"):
        reload("opaque", server.http_url, log=lambda: server.log)
    with pytest.raises(ServingError, match="failed to poll from model repository") as caught:
        reload("opaque", server.http_url)
    assert "its log has the reason" in (caught.value.fix or "")
    config.write_text(text)
    reload("opaque", f"http://{server.http_url}", version=published.version)
    with pytest.raises(ServingError, match="has no version 7 of it"):
        reload("opaque", server.http_url, version=7)


def test_an_ensemble_flips_with_its_members_and_back(server: TritonServer) -> None:
    root = server.repository
    live(server, publish(ensemble("whole", 1, 10, 100), root), lambda: ask(server, "whole"))
    with Caller(server, "whole") as caller:
        assert eventually(lambda: len(caller.answers) > 10)
        live(server, publish(ensemble("whole", 1, 10, 200), root), lambda: ask(server, "whole", "2"))
        assert eventually(lambda: caller.answers[-1] == 211)
        live(server, rollback(root, "whole"), lambda: ask(server, "whole", "3"))
        assert eventually(lambda: caller.answers[-1] == 111)
    assert caller.errors == [] and set(caller.answers) == {111, 211}
    assert eventually(lambda: "whole.segment_2.200" not in ready(server))
    assert {"whole", "whole.segment_0.1", "whole.segment_1.10", "whole.segment_2.100"} <= ready(server)
    assert prune(root, "whole", 1).members == ("whole.segment_2.200",)
    with Client("http", server.http_url) as client:
        client.unload_model("whole", members=True)
    assert eventually(lambda: not any(name.startswith("whole") for name in ready(server)))
