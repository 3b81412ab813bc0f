"""The real server, with small hand-written models."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import builder
from builder.errors import ServingError
from builder.serving.client import Client, infer
from builder.serving.install import find_server
from builder.serving.server import TritonServer

pytestmark = pytest.mark.skipif(find_server() is None, reason="needs a Triton server")

ADD_ONE = """
import sys
import builder, numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        print("SEES", sys.prefix, builder.__file__, numpy.__file__, flush=True)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x + 1)]) for x in inputs]
"""
SAME = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("y", x.to_dlpack())]) for x in inputs]
"""
CONFIG = """
backend: "python"
max_batch_size: 0
input [{{ name: "x" data_type: {dtype} dims: [-1] }}]
output [{{ name: "y" data_type: {dtype} dims: [-1] }}]
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""


def write_model(repository: Path, name: str, code: str, dtype: str = "TYPE_FP32") -> Path:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(CONFIG.format(dtype=dtype))
    return repository


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_model(tmp_path / "repository", "add", ADD_ONE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    root = tmp_path_factory.mktemp("shared")
    write_model(root, "add", ADD_ONE)
    write_model(root, "same", SAME, "TYPE_BF16")
    with TritonServer(root) as server:
        yield server


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def processes(group: int) -> list[int]:
    """The living processes of a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group_id = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group_id) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def traces(pid: int) -> list[Path]:
    """The private directory and the shared memory segments of a running server."""
    arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    maps = Path(f"/proc/{pid}/maps").read_text().split()
    private = [Path(a.partition("=")[2]).parent for a in arguments if a.startswith("--backend-directory=")]
    return private + sorted({Path(word) for word in maps if word.startswith("/dev/shm/")})


def eventually(condition: Callable[[], object], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_answers(server: TritonServer, protocol: str) -> None:
    url = {"http": server.http_url, "grpc": server.grpc_url}[protocol]
    with Client(protocol, url) as client:
        for size in (3, 0, 100_000):
            x = np.arange(size, dtype=np.float32)
            y = client.infer("add", {"x": x})["y"]
            assert y.dtype == np.float32
            np.testing.assert_array_equal(y, x + 1)
        assert client.server_ready()
        assert client.model_names() == ("add", "same")
        assert client.model_ready("add") and client.model_ready("add", "1")
        assert not client.model_ready("nobody")
    np.testing.assert_array_equal(infer(protocol, url, "add", {"x": np.zeros(1, np.float32)}, "1")["y"], [1])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_bfloat16_travels_as_float32_rounded_to_nearest_even(server: TritonServer, protocol: str) -> None:
    url = {"http": server.http_url, "grpc": server.grpc_url}[protocol]
    step = 2.0**-7
    x = np.array([1.0, -2.5, 1 + 0.5 * step, 1 + 1.5 * step, 1 + 0.9 * step, np.inf], np.float32)
    y = infer(protocol, url, "same", {"x": x})["y"]
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, np.array([1.0, -2.5, 1.0, 1 + 2 * step, 1 + step, np.inf], np.float32))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_servers_own_message_reaches_the_caller(server: TritonServer, protocol: str) -> None:
    url = {"http": server.http_url, "grpc": server.grpc_url}[protocol]
    with Client(protocol, url) as client:
        with pytest.raises(ServingError, match=r"nobody.*not found"):
            client.infer("nobody", {"x": np.zeros(1, np.float32)})
        with pytest.raises(ServingError, match=r"data-type is 'INT32', but model 'add' expects 'FP32'"):
            client.infer("add", {"x": np.zeros(1, np.int32)})
        with pytest.raises(ServingError, match="no type for complex64"):
            client.infer("add", {"x": np.zeros(1, np.complex64)})


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_is_not_there_is_a_serving_error(protocol: str) -> None:
    (port,) = free_ports(1)
    with Client(protocol, f"127.0.0.1:{port}", timeout=5) as client:
        for call in (lambda: client.infer("add", {"x": np.zeros(1, np.float32)}), lambda: client.model_ready("add")):
            with pytest.raises(ServingError, match=r"127\.0\.0\.1"):
                call()


def test_there_is_no_third_protocol() -> None:
    with pytest.raises(ServingError, match="'ftp'"):
        Client("ftp", "127.0.0.1:21")


def test_the_model_sees_this_interpreters_packages(server: TritonServer) -> None:
    (line,) = [line for line in server.log if line.startswith("SEES")]
    assert line.split()[1:] == [sys.prefix, builder.__file__, np.__file__]


def test_serving_leaves_the_models_files_as_they_were(server: TritonServer) -> None:
    root = server.repository
    files = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.parent.name != "__pycache__"}
    assert files == {f"{name}/{file}" for name in ("add", "same") for file in ("config.pbtxt", "1/model.py")}


def test_a_second_server_on_given_ports_and_its_end(
    server: TritonServer, repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ports = free_ports(3)
    log = tmp_path / "server.log"
    second = TritonServer(
        repository,
        http_port=ports[0],
        grpc_port=ports[1],
        metrics_port=ports[2],
        log_file=log,
        log_to_stderr=True,
    )
    with second:
        assert second.http_url == f"127.0.0.1:{ports[0]}"
        assert second.grpc_url == f"127.0.0.1:{ports[1]}"
        assert second.metrics_url == f"http://127.0.0.1:{ports[2]}/metrics"
        x = np.arange(4, dtype=np.float32)
        for each in (server, second):
            np.testing.assert_array_equal(infer("grpc", each.grpc_url, "add", {"x": x})["y"], x + 1)
        metrics = http.client.HTTPConnection("127.0.0.1", ports[2])
        metrics.request("GET", "/metrics", headers={"Connection": "close"})
        assert b"nv_inference_count" in metrics.getresponse().read()
        metrics.close()
        with pytest.raises(ServingError, match="runs already"):
            second.start()
        for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
            with pytest.raises(ServingError, match=f"port {port} is in use"):
                TritonServer(repository, **{f"{name}_port": port}).start()
        pid, left = second.pid, traces(second.pid)
        assert len(processes(pid)) == 2  # the server and the stub of its model
        assert len(left) >= 2 and all(p.exists() for p in left)
    assert processes(pid) == []
    assert [p for p in left if p.exists()] == []
    assert "successfully loaded 'add'" in log.read_text()
    assert "successfully loaded 'add'" in capfd.readouterr().err
    second.stop()
    assert infer("http", server.http_url, "add", {"x": np.zeros(1, np.float32)})["y"] == [1]


def test_two_ports_cannot_be_the_same(repository: Path) -> None:
    (port,) = free_ports(1)
    with pytest.raises(ServingError, match=f"port {port} is in use"):
        TritonServer(repository, http_port=port, grpc_port=port).start()


def test_a_lost_port_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from builder.serving import server as module

    root = tmp_path / "repository"
    root.mkdir()
    choose, first = module._choose_ports, []
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:

        def choose_taken_first(host: str, given: dict[str, int | None]) -> dict[str, int]:
            ports = choose(host, given)
            if not first:
                ports["grpc"] = taken.getsockname()[1]
            first.append(ports)
            return ports

        monkeypatch.setattr(module, "_choose_ports", choose_taken_first)
        with TritonServer(root, model_control_mode="explicit") as server:
            assert len(first) == 2
            assert server.grpc_url == f"127.0.0.1:{first[1]['grpc']}"
            with Client("grpc", server.grpc_url) as client:
                assert client.server_ready()


def test_what_is_no_repository_is_refused_before_a_server_starts(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "README.md").touch()
    for path, message in (
        (tmp_path / "missing", "no model repository"),
        (tmp_path / "empty", "has no model"),
        (repository / "add", "one model, not a model repository"),
    ):
        with pytest.raises(ServingError, match=message) as caught:
            TritonServer(path).start()
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("config", "code", "reason"),
    [
        (CONFIG, "import nonexistent_thing", "failed to load 'bad' version 1.*No module named 'nonexistent_thing'"),
        ('nme: "bad"', SAME, "(?s)no field named \"nme\".*Poll failed for model directory 'bad'"),
    ],
)
def test_a_broken_model_is_an_error_with_the_servers_reason(
    tmp_path: Path, config: str, code: str, reason: str
) -> None:
    root = write_model(tmp_path / "repository", "bad", code)
    (root / "bad" / "config.pbtxt").write_text(config.format(dtype="TYPE_FP32"))
    server = TritonServer(root)
    server.start()
    pid = server.pid
    with pytest.raises(ServingError, match=reason) as caught:
        server.wait_ready()
    assert "At:" not in str(caught.value)
    assert processes(pid) == []


def test_what_the_server_does_not_know_and_where_it_cannot_write_are_errors(repository: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(ServingError, match="unrecognized option '--nonsense=1'"),
        TritonServer(repository, extra_args=["--nonsense=1"]),
    ):
        pass
    with pytest.raises(ServingError, match="log cannot be written: No such file"):
        TritonServer(repository, log_file=tmp_path / "nowhere" / "log").start()


def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    root = write_model(tmp_path / "repository", "slow", "import time; time.sleep(60)")
    server = TritonServer(root, startup_timeout=1)
    server.start()
    left = traces(server.pid)
    with pytest.raises(ServingError, match="not ready after 1 seconds"):
        server.wait_ready()
    assert [p for p in left if p.exists()] == []


def test_a_killed_server_ends_the_wait_with_an_error_and_leaves_nothing(repository: Path) -> None:
    with TritonServer(repository) as server:
        left = traces(server.pid)
        group = server.pid
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ServingError, match="killed by SIGKILL"):
            server.wait()
    assert processes(group) == []
    assert [p for p in left if p.exists()] == []


FOREGROUND = """
import sys, threading
from pathlib import Path
from builder.serving.server import TritonServer

with TritonServer(Path(sys.argv[1])) as server:
    threading.Timer(0.2, print, [server.pid], {"flush": True}).start()
    try:
        server.wait()
    except KeyboardInterrupt:
        print("stopping", flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_the_foreground_process(repository: Path, sent: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", FOREGROUND, str(repository)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    private, *segments = traces(pid)
    parent.send_signal(sent)
    said = parent.communicate(timeout=30)[0]
    assert eventually(lambda: not processes(pid))
    assert [p for p in segments if p.exists()] == []
    if sent == signal.SIGKILL:
        shutil.rmtree(private)  # nobody is left to do it
    else:
        assert (said.strip(), parent.returncode) == ("stopping", 0)
        assert not private.exists()
