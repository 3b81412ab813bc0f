"""Call a Triton server over HTTP or gRPC, with numpy arrays by tensor name."""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from builder.errors import ServingError
from builder.types import INT32_MAX

__all__ = ["PROTOCOLS", "Array", "Client", "ModelState", "infer"]

PROTOCOLS = ("http", "grpc")
Array = np.ndarray[Any, Any]

_BF16 = "BF16"


def infer(protocol: str, url: str, model: str, tensors: Mapping[str, Array], version: str = "") -> dict[str, Array]:
    """One request over a connection of its own; see `Client.infer`."""
    with Client(protocol, url) as client:
        return client.infer(model, tensors, version)


@dataclass(frozen=True, slots=True)
class ModelState:
    """A version of a model in a server: "READY", "UNAVAILABLE", ... and why."""

    name: str
    version: str
    state: str
    reason: str


class Client:
    """A connection to a server. Not for several threads at once.

    numpy has no bfloat16, so tensors of this type are float32 arrays here, rounded to the nearest
    bfloat16 on the way to the server.

    Args:
        protocol: "http" or "grpc".
        url: HOST:PORT.
        timeout: seconds that one call may take.
    Raises:
        ServingError: when the protocol is unknown or the URL cannot be used.
    """

    def __init__(self, protocol: str, url: str, *, timeout: float = 60.0) -> None:
        if protocol not in PROTOCOLS:
            raise ServingError(f"there is no protocol {protocol!r}", fix=f"use one of {', '.join(PROTOCOLS)}")
        self.protocol = protocol
        self.url = url
        self._timeout = timeout
        self._input_types: dict[tuple[str, str], dict[str, str]] = {}
        # Imported here, for commands that call no server start faster without it.
        self._api = importlib.import_module(f"tritonclient.{protocol}")
        self._utils = importlib.import_module("tritonclient.utils")
        with self._reported("the client cannot be made"):
            self._client = self._connect()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def infer(
        self,
        model: str,
        tensors: Mapping[str, Array],
        version: str = "",
        *,
        sequence: tuple[int, bool, bool] | None = None,
    ) -> dict[str, Array]:
        """The model's outputs by name; the arrays may be read-only.

        Args:
            model: its name in the repository.
            tensors: the inputs by name.
            version: "3"; empty lets the server choose.
            sequence: that the request belongs to: its id (1 or more), whether it begins and whether it ends here.
        Raises:
            ServingError: with the server's message, when it refuses or cannot be reached.
        """
        named = dict(zip(("sequence_id", "sequence_start", "sequence_end"), sequence or (), strict=False))
        with self._reported(f"the request to model {model} failed"):
            types = self._types_of_inputs(model, version)
            inputs = [self._input(name, array, types.get(name)) for name, array in tensors.items()]
            result = self._client.infer(model, inputs, model_version=version, **named, **self._per_call())
            return {name: _received(result.as_numpy(name)) for name in self._output_names(result)}

    def server_ready(self) -> bool:
        """Whether the server and all of its models are ready.

        Raises:
            ServingError: when it cannot be reached.
        """
        with self._reported("the server cannot be asked"):
            return bool(self._client.is_server_ready(**self._per_call()))

    def model_ready(self, model: str, version: str = "") -> bool:
        """Whether the server has the model and it is ready.

        Raises:
            ServingError: when the server cannot be reached.
        """
        with self._reported(f"the server cannot be asked for model {model}"):
            return bool(self._client.is_model_ready(model, version, **self._per_call()))

    def model_names(self) -> tuple[str, ...]:
        """The models in the server's repositories, ready or not, sorted.

        Raises:
            ServingError: when the server cannot be reached.
        """
        return tuple(sorted({state.name for state in self.model_states()}))

    def load_model(self, model: str) -> None:
        """Have the server load the model as its repository has it now; returns when that is done.

        Raises:
            ServingError: with the server's message, when it refuses, fails or cannot be reached.
        """
        with self._reported(f"the server did not load model {model}"):
            self._client.load_model(model, **self._per_call())
        self._forget(model)

    def unload_model(self, model: str, *, members: bool = False) -> None:
        """Have the server let go of the model; it may still finish what it is doing.

        Args:
            model: its name in the repository.
            members: also those models that it calls.
        Raises:
            ServingError: with the server's message, when it refuses or cannot be reached.
        """
        with self._reported(f"the server did not unload model {model}"):
            self._client.unload_model(model, unload_dependents=members, **self._per_call())
        self._forget(model)

    def model_states(self) -> tuple[ModelState, ...]:
        """Every version that the server knows, sorted; a model that it never loaded has the version "".

        Raises:
            ServingError: when the server cannot be reached.
        """
        with self._reported("the server cannot be asked for its models"):
            index = self._client.get_model_repository_index(**self._per_call(), **self._as_json())
        models = index if isinstance(index, list) else index.get("models", [])
        found = (ModelState(m["name"], *(m.get(k, "") for k in ("version", "state", "reason"))) for m in models)
        return tuple(sorted(found, key=lambda state: (state.name, state.version)))

    def _connect(self) -> Any:
        if self.protocol == "http":
            return self._api.InferenceServerClient(
                self.url, connection_timeout=self._timeout, network_timeout=self._timeout
            )
        options = [("grpc.max_send_message_length", INT32_MAX), ("grpc.max_receive_message_length", INT32_MAX)]
        if _is_loopback(self.url):
            # Else calls to this machine go through a proxy that the environment names.
            options.append(("grpc.enable_http_proxy", 0))
        return self._api.InferenceServerClient(self.url, channel_args=options)

    def _per_call(self) -> dict[str, Any]:
        return {"client_timeout": self._timeout} if self.protocol == "grpc" else {}

    def _as_json(self) -> dict[str, Any]:
        return {"as_json": True} if self.protocol == "grpc" else {}

    def _forget(self, model: str) -> None:
        """What is loaded next may have other types."""
        self._input_types = {key: types for key, types in self._input_types.items() if key[0] != model}

    def _types_of_inputs(self, model: str, version: str) -> dict[str, str]:
        key = (model, version)
        if key not in self._input_types:
            found = self._client.get_model_metadata(model, version, **self._per_call(), **self._as_json())
            self._input_types[key] = {i["name"]: i["datatype"] for i in found.get("inputs", [])}
        return self._input_types[key]

    def _input(self, name: str, array: Array, declared: str | None) -> Any:
        if declared == _BF16 and array.dtype == np.float32:
            array, wire = self._bfloat16(array), _BF16
        else:
            wire = self._utils.np_to_triton_dtype(array.dtype)
        if wire is None:
            raise ServingError(f"Triton has no type for {array.dtype}", where=f"input {name}")
        tensor = self._api.InferInput(name, list(array.shape), wire)
        tensor.set_data_from_numpy(array)
        return tensor

    def _bfloat16(self, array: Array) -> Array:
        import ml_dtypes

        rounded = array.astype(ml_dtypes.bfloat16)
        # tritonclient before 2.70 takes float32 and cuts off the low half, which is now zero.
        takes_bfloat16 = self._utils.np_to_triton_dtype(rounded.dtype) == _BF16
        return rounded if takes_bfloat16 else rounded.astype(np.float32)

    def _output_names(self, result: Any) -> list[str]:
        response = result.get_response()
        if self.protocol == "grpc":
            return [output.name for output in response.outputs]
        return [output["name"] for output in response["outputs"]]

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Errors of tritonclient and of the network as ServingError."""
        try:
            yield
        except self._utils.InferenceServerException as error:
            raise ServingError(f"{what}: {error.message() or error}", where=f"{self.protocol} {self.url}") from None
        except (OSError, ValueError) as error:
            raise ServingError(f"{what}: {error}", where=f"{self.protocol} {self.url}") from None


def _received(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _is_loopback(url: str) -> bool:
    host = url.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
