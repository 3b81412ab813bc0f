"""The bridge between Triton's Python backend and a runtime model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from builder.errors import BuilderError, ServingError
from builder.runtime.check import check_request
from builder.runtime.joining import Joiner
from builder.runtime.manifest import Manifest
from builder.runtime.model import RuntimeModel
from builder.runtime.optional import with_defaults
from builder.runtime.precision import keep_float32
from builder.runtime.preprocess import Preprocessor
from builder.runtime.sequences import SequenceStates
from builder.runtime.values import Value, to_numpy
from builder.types import TensorSpec

__all__ = ["TritonModel", "instance_device"]


class TritonModel:
    """What `TritonPythonModel` in a written `model.py` delegates to.

    Args:
        directory: the version directory.
        utils: `triton_python_backend_utils`, which exists only inside the server.
        config: the model configuration as the server gives it.
        kind, device_id: of this instance. KIND_GPU places nothing by itself.

    Raises:
        ServingError: this server hands over arrays with wrong values.
        RepositoryError: the manifest or its files are damaged.
    """

    def __init__(self, directory: Path, utils: Any, config: Mapping[str, Any], *, kind: str, device_id: str) -> None:
        _check_arrays(utils)
        self._utils = utils
        self._manifest = Manifest.read(directory)
        self._joiner = Joiner(self._manifest) if self._manifest.batched else None
        self._states = SequenceStates(self._manifest.states, config)
        # A sequence begins with zeros.
        self._defaults = {**dict.fromkeys(self._manifest.states, 0), **self._manifest.optional}
        before = self._manifest.preprocess
        self._preprocessor = Preprocessor(directory / before.file, before.function) if before else None
        instances = sum(int(group.get("count", 1)) for group in config.get("instance_group", ())) or 1
        device = instance_device(kind, device_id, self._manifest.target)
        if device != "cpu":
            keep_float32()
        self._model = RuntimeModel(
            directory,
            manifest=self._manifest,
            device=device,
            threads=_threads(instances),
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request; a request that does not fit the model gets an error, the others their answer."""
        if self._joiner is None or len(requests) == 1:
            return [self._alone(request) for request in requests]
        responses: list[Any] = [None] * len(requests)
        fitting: dict[int, dict[str, Value]] = {}
        for index, request in enumerate(requests):
            try:
                fitting[index] = self._read(request)
                check_request(self._manifest.inputs, fitting[index])
            except BuilderError as error:
                fitting.pop(index, None)
                responses[index] = self._refusal(error)
        order = list(fitting)
        for group in self._joiner.groups([fitting[i] for i in order]):
            for index, response in self._together([order[i] for i in group], requests, fitting):
                responses[index] = response
        return responses

    def _together(
        self, group: Sequence[int], requests: Sequence[Any], read: Mapping[int, dict[str, Value]]
    ) -> Iterator[tuple[int, Any]]:
        """The responses to requests that are one batch; one by one where the batch cannot be computed."""
        assert self._joiner is not None
        if len(group) > 1:
            rows = [read[i] for i in group]
            # No profile may hold all of them, or the data of one may break a bound.
            with contextlib.suppress(BuilderError):
                answers = self._joiner.split(rows, self._model(self._joiner.join(rows)))
                for i, answer in zip(group, answers, strict=True):
                    self._keep(requests[i], answer)
                    yield i, self._response(requests[i], answer)
                return
        yield from ((i, self._alone(requests[i])) for i in group)

    def _alone(self, request: Any) -> Any:
        try:
            outputs = self._model(self._read(request))
            self._keep(request, outputs)
            return self._response(request, outputs)
        except BuilderError as error:
            return self._refusal(error)

    def _read(self, request: Any) -> dict[str, Value]:
        made = self._preprocessed(request)
        specs = [s for s in self._manifest.inputs if s.name not in self._states.inputs and s.name not in made]
        given = {spec.name: self._input(request, spec) for spec in specs}
        found = {**made, **{name: value for name, value in given.items() if value is not None}}
        if self._states.inputs:
            found.update(self._states.before(self._control(request, "CORRID"), bool(self._control(request, "START"))))
        return with_defaults(self._manifest.inputs, found, self._defaults)

    def _preprocessed(self, request: Any) -> dict[str, Value]:
        if self._preprocessor is None or self._manifest.preprocess is None:
            return {}
        names = [name for name, _, _ in self._manifest.preprocess.inputs]
        return self._preprocessor({n: self._utils.get_input_tensor_by_name(request, n).as_numpy() for n in names})

    def _control(self, request: Any, name: str) -> int:
        return int(self._utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0])

    def _keep(self, request: Any, outputs: Mapping[str, Value]) -> None:
        if self._states.inputs:
            self._states.after(self._control(request, "CORRID"), bool(self._control(request, "END")), outputs)

    def _response(self, request: Any, outputs: Mapping[str, Value]) -> Any:
        wanted = set(request.requested_output_names())
        tensors = [
            self._output(o.tensor, outputs[o.tensor.name])
            for o in self._manifest.outputs
            if (not wanted or o.tensor.name in wanted) and o.tensor.name not in self._states.outputs
        ]
        self._wait_for(outputs)
        return self._utils.InferenceResponse(output_tensors=tensors)

    def _refusal(self, error: BuilderError) -> Any:
        return self._utils.InferenceResponse(output_tensors=[], error=self._utils.TritonError(str(error)))

    @staticmethod
    def _wait_for(outputs: Mapping[str, Value]) -> None:
        """Triton reads what lies on a GPU on a stream of its own, so that it must be there."""
        for value in outputs.values():
            if not isinstance(value, np.ndarray) and value.is_cuda:
                import torch

                torch.cuda.current_stream(value.device).synchronize()
                return

    def _input(self, request: Any, spec: TensorSpec) -> Value | None:
        tensor = self._utils.get_input_tensor_by_name(request, spec.name)
        if tensor is None:
            return None
        value: Value
        if tensor.is_cpu() and spec.dtype != "bfloat16":
            value = tensor.as_numpy()
        else:
            import torch

            value = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
        # Triton cannot declare a scalar, so it travels as one element.
        return value.reshape(()) if not spec.dims and tuple(value.shape) == (1,) else value

    def _output(self, spec: TensorSpec, value: Value) -> Any:
        if not spec.dims:
            value = value.reshape(1)
        if isinstance(value, np.ndarray) or (spec.dtype != "bfloat16" and value.device.type == "cpu"):
            return self._utils.Tensor(spec.name, to_numpy(value))
        return self._utils.Tensor.from_dlpack(spec.name, value.contiguous().__dlpack__())


def _check_arrays(utils: Any) -> None:
    """Python backends before 24.11 were built for NumPy 1: with NumPy 2 they read and write wrong values, without an error.

    Source: triton-inference-server/python_backend, pull request 384.
    """
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return
    # NumPy's own capsules can crash these backends.
    import torch

    expected = torch.arange(6).reshape(2, 3)
    found = utils.Tensor.from_dlpack("expected", expected.__dlpack__()).as_numpy()
    if not np.array_equal(found, expected.numpy()):
        raise ServingError(
            f"this server's Python backend was not built for NumPy {np.__version__} and would compute with wrong values",
            where="the environment of the server's python3",
            fix="install 'numpy<2' there, or take a server from 24.11 on",
        )


def instance_device(kind: str, device_id: str, target: Mapping[str, Any]) -> str:
    """Where an instance runs: on its GPU only if the engines were built for one, whatever the server offers."""
    return f"cuda:{device_id}" if kind == "GPU" and target.get("device") == "cuda" else "cpu"


def _threads(instances: int) -> int | None:
    """CPU threads for each instance: they share the machine's cores, and more threads than cores are slower."""
    import os

    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // instances) if instances > 1 else None
