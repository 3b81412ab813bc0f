"""What runs the artifact of one segment: positional tensors in, positional tensors out."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from builder.errors import BuilderError, CompileError
from builder.runtime.cuda_graphs import CudaGraphs
from builder.runtime.manifest import SegmentSpec
from builder.runtime.values import Value, to_numpy, to_torch

__all__ = ["Runner", "load_runner"]

# TensorProto.BFLOAT16 in onnx.proto.
_ONNX_BFLOAT16 = 16


class Runner(Protocol):
    """Runs one segment. Safe to call from several threads."""

    def run(self, inputs: Sequence[Value], profile: int = 0) -> list[Value]:
        """Tensors in the order of the segment's inputs; returns those of its outputs.

        Args:
            profile: the artifact's own profile that holds the inputs.
        """
        ...


def load_runner(
    segment: SegmentSpec,
    directory: Path,
    *,
    device: str = "cpu",
    threads: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Runner:
    """Load the artifact of a segment.

    Args:
        segment: of the manifest.
        directory: the version directory.
        device: "cpu", or "cuda:N" for what runs on a GPU.
        threads: of the CPU for one operator; None leaves it to the library.
        settings: of the build, as they stand in the manifest.
    Raises:
        CompileError: when its library is not installed here, or refuses the artifact.
    """
    path = directory / segment.artifact
    settings = settings or {}
    # A graph's outputs are as large as they were.
    fixed = not any(dim.data_dependent for spec in segment.outputs for dim in spec.dims)
    cuda_graphs = bool(settings.get("cuda_graphs")) and fixed
    graphs = CudaGraphs(segment.name, device) if cuda_graphs and device != "cpu" else None
    try:
        if segment.compiler == "torch":
            return _TorchRunner(path, device, graphs)
        if segment.compiler == "onnxruntime":
            return _OnnxRuntimeRunner(path, segment, threads)
        if segment.compiler == "inductor":
            return _InductorRunner(path, device, graphs)
        if segment.compiler in ("tensorrt", "tensorrt_rtx"):
            from builder.runtime.tensorrt import TensorRTRunner

            options = settings.get("tensorrt", {})
            return TensorRTRunner(path, segment, device, options, cuda_graphs=cuda_graphs)
    except ImportError as error:
        raise CompileError(
            f"{segment.name} needs {segment.compiler}, which is not installed here: {error}",
            where=str(path),
            fix=f"install the packages that the manifest lists under versions ({segment.compiler})",
        ) from error
    except BuilderError:
        raise
    except Exception as error:
        # Each library has errors of its own.
        text = " ".join(str(error).split())[:400] or type(error).__name__
        raise CompileError(
            f"{segment.compiler} cannot load {segment.name}: {text}",
            where=str(path),
            fix="use the versions and the kind of machine that manifest.json lists, or build again here",
        ) from error
    raise CompileError(f"no runner for the compiler {segment.compiler!r}", where=segment.name)


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Without warnings that are of no use to whoever serves a model."""
    found = logging.getLogger(logger)
    level = found.level
    found.setLevel(logging.ERROR)
    try:
        yield
    finally:
        found.setLevel(level)


class _TorchRunner:
    """A fallback segment: PyTorch runs its exported program.

    The graph is called with its weights as they lie in the program, without the checks and the
    packing of `ExportedProgram.module()`: ranges are checked once, at the model's edge.
    """

    def __init__(self, path: Path, device: str, graphs: CudaGraphs | None) -> None:
        import torch
        from torch.export.graph_signature import InputKind

        self._torch = torch
        self._device = device
        with warnings.catch_warnings(), _quiet("torch._export.serde.serialize"):
            # Its weights are views of a read-only buffer; nothing writes into weights here.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            program = torch.export.load(path)
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, device)
        lifted = {**program.constants, **program.state_dict}
        self._weights = [
            lifted[str(s.target)] for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT
        ]
        self._graph = program.graph_module
        self._graphs = graphs

    def run(self, inputs: Sequence[Value], profile: int = 0) -> list[Value]:
        tensors = [to_torch(v, self._device) for v in inputs]
        return self._run(tensors) if self._graphs is None else self._graphs(tensors, self._run)

    def _run(self, tensors: Sequence[Any]) -> list[Any]:
        with self._torch.no_grad():
            return list(self._graph(*self._weights, *tensors))


class _InductorRunner:
    """An AOTInductor package, by the loader that `torch._inductor.aoti_load_package` ends up with.

    That function first compiles small programs to find out about the processor, which takes seconds
    and a C++ compiler, and it can read packages that hold pickles. Nothing of that has a place where a
    model is served.
    """

    def __init__(self, path: Path, device: str, graphs: CudaGraphs | None) -> None:
        import torch

        self._device = device
        self._graphs = graphs
        index = torch.device(device).index
        _share_cxx_library()
        # File, model, without events between calls (no capture takes them; graphs come with a lock), number of runners, device.
        self._loader: Any = torch._C._aoti.AOTIModelPackageLoader(
            str(path), "model", graphs is not None, 1, -1 if index is None else index
        )
        built_for = self._loader.get_metadata().get("AOTI_DEVICE_KEY")
        if built_for != torch.device(device).type:
            raise CompileError(
                f"the engine was built for {built_for} and is loaded for {device}",
                where=str(path),
                fix=f"run it on {built_for}, or build again where the model will run",
            )

    def run(self, inputs: Sequence[Value], profile: int = 0) -> list[Value]:
        # It reads its inputs as if they had the strides that it was compiled for.
        tensors = [to_torch(v, self._device).contiguous() for v in inputs]
        return self._run(tensors) if self._graphs is None else self._graphs(tensors, self._run)

    def _run(self, tensors: Sequence[Any]) -> list[Any]:
        # The loader takes the tensors out of the list.
        return list(self._loader.boxed_run(list(tensors)))


def _share_cxx_library() -> None:
    """Let engines find the C++ library that torch has loaded for itself.

    AOTInductor links them without it. Where nothing else has made it visible to all, a CUDA engine crashes the process that loads it.
    """
    with contextlib.suppress(OSError):
        ctypes.CDLL("libstdc++.so.6", mode=ctypes.RTLD_GLOBAL)


class _OnnxRuntimeRunner:
    def __init__(self, path: Path, segment: SegmentSpec, threads: int | None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        self._session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        # A graph that does not use an input does not have it.
        taken = {i.name for i in self._session.get_inputs()}
        self._inputs = [(i, name) for i, name in enumerate(segment.input_names) if name in taken]
        self._outputs = list(segment.output_names)
        self._bfloat16 = any("bfloat16" in t.type for t in (*self._session.get_inputs(), *self._session.get_outputs()))

    def run(self, inputs: Sequence[Value], profile: int = 0) -> list[Value]:
        if self._bfloat16:
            return self._run_ort_values(inputs)
        return list(self._session.run(self._outputs, {name: to_numpy(inputs[i]) for i, name in self._inputs}))

    def _run_ort_values(self, inputs: Sequence[Value]) -> list[Value]:
        """numpy has no bfloat16; ONNX Runtime's own values carry it."""
        import torch
        from onnxruntime import OrtValue

        feed = {}
        for i, name in self._inputs:
            value = inputs[i]
            if isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16:
                bits = value.cpu().contiguous().view(torch.int16).numpy()
                feed[name] = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _ONNX_BFLOAT16)
            else:
                feed[name] = OrtValue.ortvalue_from_numpy(to_numpy(value))
        values = self._session.run_with_ort_values(self._outputs, feed)
        return [
            torch.utils.dlpack.from_dlpack(v._ortvalue) if "bfloat16" in v.data_type() else v.numpy() for v in values
        ]
