"""Start a Triton server on a model repository, wait until it is ready, stop it without leftovers."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from builder.errors import ServingError
from builder.serving.install import ServerInstall, find_server
from builder.serving.log import error_lines
from builder.serving.process import ServerProcess

__all__ = ["TritonServer"]

_PORT_NAMES = ("http", "grpc", "metrics")
_PORT_ATTEMPTS = 5
_POLL_SECONDS = 0.05
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1"}


class TritonServer:
    """A Triton server in the background, stopped at the end of a `with` block.

    Args:
        repository: the model repository.
        http_port, grpc_port, metrics_port: free ones if not given.
        host: the address to listen on; only this machine can reach the default.
        model_control_mode: "none", "poll" or "explicit"; the server's own default is "none".
        auto_complete_config: let the server complete `config.pbtxt`. Ours are complete, and each
            Python model would start twice.
        extra_args: further arguments of `tritonserver`.
        log_file: the server's log is also written there.
        log_to_stderr: the server's log is also written to standard error.
        startup_timeout: seconds until every model must be ready.
    """

    def __init__(
        self,
        repository: Path,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        host: str = "127.0.0.1",
        model_control_mode: str | None = None,
        auto_complete_config: bool = False,
        extra_args: Sequence[str] = (),
        log_file: Path | None = None,
        log_to_stderr: bool = False,
        startup_timeout: float = 120.0,
    ) -> None:
        self.repository = Path(repository)
        self.host = host
        self._given_ports = (http_port, grpc_port, metrics_port)
        self._model_control_mode = model_control_mode
        self._auto_complete_config = auto_complete_config
        self._extra_args = tuple(extra_args)
        self._log_file = log_file
        self._log_to_stderr = log_to_stderr
        self._startup_timeout = startup_timeout
        self._install: ServerInstall | None = None
        self._process: ServerProcess | None = None
        self._ports: dict[str, int] = {}
        self._stopped = False

    def __enter__(self) -> TritonServer:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        """HOST:PORT, as tritonclient takes it."""
        return self._url("http")

    @property
    def grpc_url(self) -> str:
        """HOST:PORT, as tritonclient takes it."""
        return self._url("grpc")

    @property
    def metrics_url(self) -> str:
        """The whole URL of the Prometheus metrics."""
        return f"http://{self._url('metrics')}/metrics"

    @property
    def pid(self) -> int:
        """Process id of the server, which is also the id of its process group."""
        return self._running().pid

    @property
    def log(self) -> list[str]:
        """The last lines of the server's log."""
        return self._running().log.lines

    def start(self) -> None:
        """Start the server and return at once.

        Raises:
            ServingError: when there is no server to start, it runs already, the repository is
                missing or has no model, or a given port is in use.
        """
        if self._process is not None:
            raise ServingError("the server runs already", where=f"process {self._process.pid}", fix="stop it first")
        _check_repository(self.repository, may_be_empty=self._model_control_mode == "explicit")
        self._install = find_server()
        if self._install is None:
            raise ServingError(
                "there is no Triton server on this machine",
                fix="pip install 'triton-repo-builder[serve]', or install tritonserver",
            )
        self._stopped = False
        self._launch(self._install)

    def wait_ready(self) -> None:
        """Wait until every model of the repository is ready.

        A port that we chose and another process took first is replaced, so the URLs are final only
        now.

        Raises:
            ServingError: when the server ends, a model is not loaded, or time is up; with what the
                server's log says of it. The server is stopped then.
        """
        deadline = time.monotonic() + self._startup_timeout
        relaunches = _PORT_ATTEMPTS - 1
        while lacking := self._lacking():
            if self._running().poll() is not None:
                if relaunches and self._lost_chosen_port():
                    relaunches -= 1
                    self._relaunch()
                    continue
                raise self._given_up("the server ended while it started")
            if time.monotonic() > deadline:
                raise self._given_up(f"the server is not ready after {self._startup_timeout:g} seconds, {lacking}")
            time.sleep(_POLL_SECONDS)

    def wait(self) -> None:
        """Block until the server ends, by itself or by `stop` from another thread.

        In the main thread SIGTERM ends the wait like Ctrl-C, so that a `with` block stops the server.

        Raises:
            KeyboardInterrupt: at Ctrl-C or SIGTERM; the server still runs.
            ServingError: when the server was killed or failed.
        """
        process = self._running()
        with _sigterm_as_interrupt():
            status = process.wait()
        if status and not self._stopped:
            raise self._failure(_died_of(status))

    def stop(self) -> None:
        """End the server and everything that it started; does nothing if it does not run."""
        self._stopped = True
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def _launch(self, install: ServerInstall) -> None:
        self._ports = _choose_ports(self.host, dict(zip(_PORT_NAMES, self._given_ports, strict=True)))
        self._process = ServerProcess(
            install, self._arguments(), log_file=self._log_file, log_to_stderr=self._log_to_stderr
        )

    def _relaunch(self) -> None:
        self._running().stop()
        self._process = None
        assert self._install is not None
        self._launch(self._install)

    def _arguments(self) -> list[str]:
        mode = self._model_control_mode
        return [
            f"--model-repository={self.repository.resolve()}",
            f"--http-address={self.host}",
            f"--grpc-address={self.host}",
            # The metrics listen where HTTP does.
            *(f"--{name}-port={port}" for name, port in self._ports.items()),
            *([f"--model-control-mode={mode}"] if mode else []),
            *([] if self._auto_complete_config else ["--disable-auto-complete-config"]),
            *self._extra_args,
        ]

    def _lacking(self) -> str | None:
        """What is not ready yet; None when all is."""
        # Another server may have taken our port, so the answer counts only under our id.
        metadata = self._get("http", "/v2")
        if metadata is None or json.loads(metadata).get("name") != self._server_id():
            return "it does not answer over HTTP"
        # The server opens its metrics port last, and ends if it cannot.
        if self._has_metrics() and self._get("metrics", "/metrics") is None:
            return "its metrics do not answer"
        for name in self._expected_models():
            if self._get("http", f"/v2/models/{name}/ready") is None:
                return f"model {name} is not"
        if self._get("http", "/v2/health/ready") is None:
            return "not every model is"
        return None if self._running().poll() is None else "it ended"

    def _expected_models(self) -> list[str]:
        named = _option_values(self._extra_args, "load-model")
        if self._model_control_mode == "explicit" and "*" not in named:
            return named
        return [p.name for p in self.repository.iterdir() if p.is_dir()]

    def _server_id(self) -> str:
        return (_option_values(self._extra_args, "id") or [self._running().id])[-1]

    def _has_metrics(self) -> bool:
        return not {"false", "0"} & {v.lower() for v in _option_values(self._extra_args, "allow-metrics")}

    def _get(self, service: str, path: str) -> bytes | None:
        """The body of the answer; None without one, or when its status is an error."""
        # Neither urllib, which would use a proxy, nor a connection left open: the server waits for
        # those when it ends.
        connection = http.client.HTTPConnection(_reachable(self.host), self._ports[service], timeout=5)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path, headers={"Connection": "close"})
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                return None
        return body if response.status == http.HTTPStatus.OK else None

    def _lost_chosen_port(self) -> bool:
        lines = [line for line in self._running().log.lines if "already in use" in line]
        chosen = [
            self._ports[name] for name, given in zip(_PORT_NAMES, self._given_ports, strict=True) if given is None
        ]
        return any(f":{port}'" in line for line in lines for port in chosen)

    def _failure(self, what: str) -> ServingError:
        process = self._running()
        if process.poll() is not None:
            process.log.close(timeout=1)
        reasons = error_lines(process.log.lines)
        return ServingError(
            ": ".join([what, "\n".join(reasons)]) if reasons else what,
            where=str(self.repository),
            fix=f"see the server's log in {self._log_file}" if self._log_file else None,
        )

    def _given_up(self, what: str) -> ServingError:
        failure = self._failure(what)
        self.stop()
        return failure

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise ServingError("the server does not run", where=str(self.repository), fix="start it first")
        return self._process

    def _url(self, service: str) -> str:
        if not self._ports:
            raise ServingError("the server was not started, so it has no address", fix="start it first")
        return f"{_reachable(self.host)}:{self._ports[service]}"


def _check_repository(repository: Path, *, may_be_empty: bool) -> None:
    if not repository.is_dir():
        raise ServingError(
            "there is no model repository here", where=str(repository), fix="build a model: triton-repo build MODEL"
        )
    if (repository / "config.pbtxt").is_file():
        raise ServingError(
            "this is one model, not a model repository", where=str(repository), fix=f"serve {repository.parent}"
        )
    if not may_be_empty and not any(p.is_dir() for p in repository.iterdir()):
        raise ServingError(
            "the model repository has no model", where=str(repository), fix="build one: triton-repo build MODEL"
        )


def _choose_ports(host: str, given: dict[str, int | None]) -> dict[str, int]:
    """A port for each service, all free at this moment.

    Raises:
        ServingError: when one that was given is not.
    """
    with contextlib.ExitStack() as sockets:
        # The given ones first, so that no chosen one takes their place.
        held = {
            name: sockets.enter_context(_bound(host, port or 0, name))
            for name, port in sorted(given.items(), key=lambda item: item[1] is None)
        }
        return {name: held[name].getsockname()[1] for name in given}


def _bound(host: str, port: int, service: str) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # As the server does: a port that only waits for old connections to end is free.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        # Without it two of our own could have the same port.
        bound.listen(1)
    except (OSError, OverflowError) as error:
        bound.close()
        raise _port_error(host, port, service, error) from None
    return bound


def _port_error(host: str, port: int, service: str, error: Exception) -> ServingError:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return ServingError(
            f"port {port} is in use",
            where=f"{service} at {host}:{port}",
            fix=f"give another --{service}-port, or none for a free one",
        )
    return ServingError(f"the server cannot listen here: {error}", where=f"{service} at {host}:{port or 'any port'}")


def _reachable(host: str) -> str:
    return _ANY_ADDRESS.get(host, host)


def _option_values(arguments: Sequence[str], option: str) -> list[str]:
    prefix = f"--{option}="
    return [a.removeprefix(prefix) for a in arguments if a.startswith(prefix)]


def _died_of(status: int) -> str:
    if status > 0:
        return f"the server ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the server was killed by {name}"


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, unless the program handles it itself."""
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    if not mine:
        yield
        return

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
