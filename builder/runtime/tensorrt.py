"""Run a plan of TensorRT or TensorRT-RTX on tensors that stay on the GPU."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.errors import CompileError
from builder.runtime.cuda_graphs import CudaGraphs, Enqueue
from builder.runtime.manifest import SegmentSpec
from builder.runtime.values import Value, to_torch

__all__ = ["RUNTIME_CACHE", "TensorRTRunner"]

# Where TensorRT-RTX keeps the kernels that it finishes on this machine; unset or empty, they are made at every start.
RUNTIME_CACHE = "TRITON_REPO_RUNTIME_CACHE"

_LIBRARY = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}


class TensorRTRunner:
    """One plan, with an execution context for each of its profiles. Several threads may share it.

    Work goes to the caller's current CUDA stream, and is not waited for; calls on other streams are put behind each other on the GPU.

    Args:
        path: of the plan.
        segment: of the manifest.
        device: "cuda:N"; "cpu" takes the first GPU.
        options: the manifest's `settings.tensorrt`: `plugins`, `weight_streaming` and `version_compatible` count.
        cuda_graphs: replay shapes that come again.
    Raises:
        CompileError: when the plan cannot be loaded here.
    """

    def __init__(
        self, path: Path, segment: SegmentSpec, device: str, options: Mapping[str, Any], *, cuda_graphs: bool = False
    ) -> None:
        import torch

        self._device = device if device != "cpu" else "cuda:0"
        # What is loaded goes to the GPU that is current.
        with torch.cuda.device(self._device):
            self._load(path, segment, options)
        # A size that the host reads is in no graph.
        self._graphs = CudaGraphs(segment.name, self._device) if cuda_graphs and not self._on_host else None

    def _load(self, path: Path, segment: SegmentSpec, options: Mapping[str, Any]) -> None:
        import torch

        self._trt: Any = importlib.import_module(segment.compiler)
        self._torch = torch
        self._segment = segment
        self._library = _LIBRARY[segment.compiler]
        self._lock = threading.Lock()
        self._logger = self._trt.Logger(self._trt.Logger.ERROR)
        runtime = self._trt.Runtime(self._logger)
        runtime.engine_host_code_allowed = bool(options.get("version_compatible"))
        for library in options.get("plugins", ()):
            self._checked(runtime.get_plugin_registry().load_library(library), f"the plugin library {library}")
        self._runtime = runtime
        self._engine = runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise CompileError(
                f"{self._library} cannot load the plan on this machine",
                where=str(path),
                fix=f"serve it on a GPU and with the {self._library} version that the manifest names, or build it here",
            )
        engine = self._engine
        if options.get("weight_streaming"):
            # Until it is given a budget, all weights go to the GPU.
            engine.weight_streaming_budget_v2 = engine.get_weight_streaming_automatic_budget()
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        self._taken = {n for n in names if engine.get_tensor_mode(n) == self._trt.TensorIOMode.INPUT}
        self._dtypes = {n: self._torch_dtype(engine.get_tensor_dtype(n)) for n in names}
        # Values that are used as sizes are read by the host.
        self._on_host = {n for n in self._taken if engine.is_shape_inference_io(n)}
        self._nothing = torch.empty(1, device=self._device)
        self._contexts: dict[int, Any] = {}
        self._last_use: dict[int, Any] = {}
        self._allocators: dict[tuple[int, str], Any] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._kernels = _KernelCache(self._engine, path) if hasattr(self._trt, "IRuntimeCache") else None

    def _torch_dtype(self, dtype: Any) -> Any:
        kinds = self._trt.DataType
        torch = self._torch
        return {
            kinds.FLOAT: torch.float32,
            kinds.HALF: torch.float16,
            kinds.BF16: torch.bfloat16,
            kinds.INT64: torch.int64,
            kinds.INT32: torch.int32,
            kinds.INT8: torch.int8,
            kinds.UINT8: torch.uint8,
            kinds.BOOL: torch.bool,
        }[dtype]

    def run(self, inputs: Sequence[Value], profile: int = 0) -> list[Value]:
        torch = self._torch
        with torch.cuda.device(self._device):
            named = zip(self._segment.input_names, inputs, strict=True)
            held = {name: value for name, value in named if name in self._taken}
            tensors = [self._prepared(name, value) for name, value in held.items()]
            shared = functools.partial(self._run, tuple(held), profile)
            if self._graphs is None:
                outputs = shared(tensors)
            else:
                own = functools.partial(self._on_own_context, tuple(held), profile)
                outputs = self._graphs(tensors, shared, own, profile)
        return [o.to(getattr(torch, spec.dtype)) for o, spec in zip(outputs, self._segment.outputs, strict=True)]

    def _prepared(self, name: str, value: Value) -> Any:
        """The value where the engine reads it, in its dtype; itself if it is there already."""
        device = "cpu" if name in self._on_host else self._device
        return to_torch(value, device).to(self._dtypes[name]).contiguous()

    def _run(self, names: Sequence[str], profile: int, tensors: Sequence[Any]) -> list[Any]:
        """On the context that all calls of a profile share."""
        shapes = (profile, *(tuple(t.shape) for t in tensors))
        stream = self._torch.cuda.current_stream()
        with self._lock:
            context = self._context(profile, stream)
            outputs = self._enqueued(context, dict(zip(names, tensors, strict=True)), stream)
            self._used(context, stream)
            if self._kernels is not None and shapes not in self._seen:
                self._seen.add(shapes)
                self._kernels.save()
        return outputs

    def _on_own_context(self, names: Sequence[str], profile: int) -> Enqueue:
        """For a CUDA graph, which holds the state of its context."""
        if self._allocators:
            raise CompileError("a size depends on the data", where=self._segment.name)
        context = self._new_context(profile, self._torch.cuda.current_stream())

        def enqueue(tensors: Sequence[Any]) -> list[Any]:
            return self._enqueued(context, dict(zip(names, tensors, strict=True)), self._torch.cuda.current_stream())

        return enqueue

    def _context(self, profile: int, stream: Any) -> Any:
        """The context of a profile, made when it is first used. A plan of one profile may have been built without any."""
        if profile not in self._contexts:
            self._contexts[profile] = self._new_context(profile, stream)
        context = self._contexts[profile]
        event = self._last_use.get(id(context))
        if event is not None:
            stream.wait_event(event)
        return context

    def _new_context(self, profile: int, stream: Any) -> Any:
        made = self._kernels.context() if self._kernels is not None else self._engine.create_execution_context()
        context = self._checked(made, "an execution context")
        if 0 < profile < self._engine.num_optimization_profiles:
            chosen = context.set_optimization_profile_async(profile, stream.cuda_stream)
            self._checked(chosen, f"the optimization profile {profile}")
        return context

    def _used(self, context: Any, stream: Any) -> None:
        """Note that a context is busy until the stream comes here."""
        self._last_use[id(context)] = stream.record_event()

    def _enqueued(self, context: Any, tensors: Mapping[str, Any], stream: Any) -> list[Any]:
        for name, tensor in tensors.items():
            self._checked(
                context.set_input_shape(name, tuple(tensor.shape)), f"the shape {list(tensor.shape)} of {name}"
            )
            self._checked(context.set_tensor_address(name, self._address(tensor)), f"the address of {name}")
        unknown = context.infer_shapes()
        self._checked(not unknown, f"the call without {', '.join(unknown)}")
        outputs: list[Any] = []
        for name in self._segment.output_names:
            shape = tuple(context.get_tensor_shape(name))
            if min(shape, default=0) < 0:
                # Its size depends on the data: TensorRT asks for memory when it knows.
                allocator = _allocator(self._trt, self._torch, self._device)
                self._checked(context.set_output_allocator(name, allocator), f"an allocator for {name}")
                # The context has a plain pointer to it.
                self._allocators[id(context), name] = allocator
                outputs.append(allocator)
                continue
            output = self._torch.empty(shape, dtype=self._dtypes[name], device=self._device)
            self._checked(context.set_tensor_address(name, self._address(output)), f"the address of {name}")
            outputs.append(output)
        self._checked(context.execute_async_v3(stream.cuda_stream), "the call")
        return [
            o if isinstance(o, self._torch.Tensor) else o.tensor(self._dtypes[name])
            for name, o in zip(self._segment.output_names, outputs, strict=True)
        ]

    def _address(self, tensor: Any) -> int:
        """Where a tensor lies. An empty one has no address, and TensorRT takes no null."""
        return int(tensor.data_ptr()) or int(self._nothing.data_ptr())

    def _checked(self, result: Any, what: str) -> Any:
        """What TensorRT returned; None and False mean that it refused, and why went to its log."""
        if result is None or result is False:
            raise CompileError(f"{self._library} refused {what}", where=self._segment.name, fix="see the server log")
        return result


def _allocator(trt: Any, torch: Any, device: str) -> Any:
    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        """Memory for one output whose shape is known when it has been computed."""

        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.memory: Any = None
            self.shape: tuple[int, ...] = ()

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            # torch aligns to 512 bytes, and TensorRT takes no null for an empty output.
            if self.memory is None or self.memory.numel() < size:
                self.memory = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
            return int(self.memory.data_ptr())

        def reallocate_output(self, name: str, memory: int, size: int, alignment: int) -> int:
            return self.reallocate_output_async(name, memory, size, alignment, 0)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def tensor(self, dtype: Any) -> Any:
            size = dtype.itemsize
            for extent in self.shape:
                size *= extent
            if size == 0:
                return torch.empty(self.shape, dtype=dtype, device=device)
            return self.memory[:size].view(dtype).reshape(self.shape)

    return Allocator()


class _KernelCache:
    """Kernels that TensorRT-RTX finished here before, in a file for each plan; it refuses those of another GPU or driver itself."""

    def __init__(self, engine: Any, plan: Path) -> None:
        self._engine = engine
        self._config = engine.create_runtime_config()
        self._cache = self._config.create_runtime_cache()
        directory = os.environ.get(RUNTIME_CACHE)
        self._path = Path(directory) / f"{_plan_name(plan)}.bin" if directory else None
        self._size = 0
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._cache.deserialize(self._path.read_bytes())
        self._config.set_runtime_cache(self._cache)

    def context(self) -> Any:
        return self._engine.create_execution_context(self._config)

    def save(self) -> None:
        """Write the file anew if there are more kernels now."""
        if self._path is None:
            return
        data = self._cache.serialize()
        if data is None or data.nbytes == self._size:
            return
        self._size = data.nbytes
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                Path(name).replace(self._path)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise


def _plan_name(plan: Path) -> str:
    """One name for one plan, wherever it lies."""
    digest = hashlib.sha256()
    with plan.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:32]
