"""What runs the artifact of one segment: positional tensors in, positional tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from builder.errors import CompileError
from builder.runtime.manifest import SegmentSpec
from builder.runtime.values import Value, to_numpy, to_torch

__all__ = ["Runner", "load_runner"]


class Runner(Protocol):
    """Runs one segment. Safe to call from several threads."""

    def run(self, inputs: Sequence[Value]) -> list[Value]:
        """Tensors in the order of the segment's inputs; returns those of its outputs."""
        ...


def load_runner(segment: SegmentSpec, directory: Path, *, device: str = "cpu", threads: int | None = None) -> Runner:
    """Load the artifact of a segment.

    Args:
        segment: of the manifest.
        directory: the version directory.
        device: "cpu", or "cuda:N" for what runs on a GPU.
        threads: of the CPU for one operator; None leaves it to the library.
    Raises:
        CompileError: when its library is not installed here, or refuses the artifact.
    """
    path = directory / segment.artifact
    try:
        if segment.compiler == "torch":
            return _TorchRunner(path, device)
        if segment.compiler == "onnxruntime":
            return _OnnxRuntimeRunner(path, len(segment.inputs), len(segment.outputs), threads)
        if segment.compiler == "tensorrt_rtx":
            from builder.runtime.tensorrt import TensorRTRunner

            return TensorRTRunner(path, segment, device)
    except ImportError as error:
        raise CompileError(
            f"{segment.name} needs {segment.compiler}, which is not installed here: {error}",
            where=str(path),
            fix=f"install the packages that the manifest lists under versions ({segment.compiler})",
        ) from error
    raise CompileError(f"no runner for the compiler {segment.compiler!r}", where=segment.name)


class _TorchRunner:
    """A fallback segment: PyTorch runs its exported program."""

    def __init__(self, path: Path, device: str) -> None:
        import torch

        self._torch = torch
        self._device = device
        program = torch.export.load(path)
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        # Ranges are checked once at the model's edge; the guards of each segment would check them again.
        self._call = program.module(check_guards=False)

    def run(self, inputs: Sequence[Value]) -> list[Value]:
        with self._torch.inference_mode():
            return list(self._call(*(to_torch(v, self._device) for v in inputs)))


class _OnnxRuntimeRunner:
    def __init__(self, path: Path, inputs: int, outputs: int, threads: int | None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        self._session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        # A graph that does not use an input does not have it.
        taken = {i.name for i in self._session.get_inputs()}
        self._inputs = [(i, f"input_{i}") for i in range(inputs) if f"input_{i}" in taken]
        self._outputs = [f"output_{i}" for i in range(outputs)]
        self._bfloat16 = any("bfloat16" in t.type for t in (*self._session.get_inputs(), *self._session.get_outputs()))

    def run(self, inputs: Sequence[Value]) -> list[Value]:
        if self._bfloat16:
            return self._run_dlpack(inputs)
        return list(self._session.run(self._outputs, {name: to_numpy(inputs[i]) for i, name in self._inputs}))

    def _run_dlpack(self, inputs: Sequence[Value]) -> list[Value]:
        """numpy has no bfloat16; ONNX Runtime's own values carry it."""
        import torch
        from onnxruntime import OrtValue
        from onnxruntime.capi._pybind_state import OrtValue as RawOrtValue

        feed = {
            name: OrtValue(
                RawOrtValue.from_dlpack(to_torch(inputs[i]).contiguous().__dlpack__(), inputs[i].dtype == torch.bool)
            )
            for i, name in self._inputs
        }
        values = self._session.run_with_ort_values(self._outputs, feed)
        return [torch.utils.dlpack.from_dlpack(v._ortvalue.to_dlpack()) for v in values]
