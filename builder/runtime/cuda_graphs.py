"""CUDA graphs of a segment: one for each of the shapes that come again, replayed instead of launching kernel by kernel."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["CudaGraphs", "Enqueue"]

# Puts a segment's work for tensors on the current CUDA stream, and returns its outputs.
Enqueue: TypeAlias = "Callable[[Sequence[Any]], list[Any]]"

# Shapes that are captured for one segment, the first that come again; each has memory of its own.
_LIMIT = 16


@dataclass(slots=True)
class _Captured:
    """One shape: the buffers that its graph reads and writes, and what it must outlive."""

    graph: Any
    inputs: list[Any]
    outputs: list[Any]
    enqueue: Enqueue
    last_use: Any = None


class CudaGraphs:
    """Calls a segment, and captures each shape when it comes for the second time: the first call may still load kernels.

    What a graph cannot hold (a size that the host reads, a copy from the host) ends capturing with a warning, and is run
    as it always was. Several threads may share it, and streams: calls are put behind each other on the GPU.

    Args:
        name: of the segment.
        device: "cuda:N".
    """

    def __init__(self, name: str, device: str) -> None:
        self._name = name
        self._device = device
        self._lock = threading.Lock()
        self._captured: dict[tuple[Any, ...], _Captured] = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._capturing = True

    def __call__(
        self, tensors: Sequence[Any], enqueue: Enqueue, own: Callable[[], Enqueue] | None = None, profile: int = 0
    ) -> list[Any]:
        """The segment's outputs, in memory that no later call writes to.

        Args:
            tensors: on the device.
            enqueue: runs the segment.
            own: makes what a new graph captures, where `enqueue` has state that a graph must not share.
            profile: of the engine.
        """
        key = (profile, *(tuple(t.shape) for t in tensors))
        with self._lock:
            if key in self._captured:
                return self._replayed(self._captured[key], tensors)
            outputs = enqueue(tensors)
            if self._capturing and len(self._captured) < _LIMIT:
                if key in self._seen:
                    self._try_to_capture(key, tensors, own or (lambda: enqueue))
                self._seen.add(key)
        return outputs

    def _replayed(self, captured: _Captured, tensors: Sequence[Any]) -> list[Any]:
        import torch

        with torch.cuda.device(self._device), torch.no_grad():
            stream = torch.cuda.current_stream()
            if captured.last_use is not None:
                stream.wait_event(captured.last_use)
            for buffer, tensor in zip(captured.inputs, tensors, strict=True):
                buffer.copy_(tensor)
            captured.graph.replay()
            outputs = [o.clone() for o in captured.outputs]
            captured.last_use = stream.record_event()
        return outputs

    def _try_to_capture(self, key: tuple[Any, ...], tensors: Sequence[Any], own: Callable[[], Enqueue]) -> None:
        try:
            self._captured[key] = self._capture(tensors, own())
        except Exception as error:
            # Each library has errors of its own for what it cannot do while a stream is captured.
            self._capturing = False
            text = " ".join(str(error).split())[:200]
            warnings.warn(f"{self._name} captures no more CUDA graphs: {text}", stacklevel=2)

    def _capture(self, tensors: Sequence[Any], enqueue: Enqueue) -> _Captured:
        import torch

        # Buffers made in inference mode could not be written outside of it.
        with torch.cuda.device(self._device), torch.inference_mode(False), torch.no_grad():
            inputs = [torch.empty_like(t).copy_(t) for t in tensors]
            torch.cuda.current_stream().synchronize()
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with torch.cuda.stream(side):
                # Once before the capture, so that all kernels are there.
                enqueue(inputs)
                side.synchronize()
                graph, outputs = _record(lambda: enqueue(inputs), torch.device(self._device))
            if any(not o.is_cuda for o in outputs):
                raise RuntimeError("an output lies in the host's memory")
        return _Captured(graph, inputs, outputs, enqueue)


def _record(work: Callable[[], list[Any]], device: Any) -> tuple[Any, list[Any]]:
    """Capture what work puts on the current stream.

    `torch.cuda.graph` has the GPU's generator of random numbers count for the graph while it captures, and for ever
    when that fails: meanwhile no other thread can draw any. Here the graph gets a generator of its own, so that
    work that draws random numbers cannot be captured.
    """
    import torch

    generator = torch.cuda.default_generators[device.index or 0]
    everybodys = generator.graphsafe_get_state()
    graph: Any = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    finally:
        generator.graphsafe_set_state(everybodys)
    try:
        outputs = work()
        graph.capture_end()
    except BaseException:
        _abandon(graph, pool, device)
        raise
    return graph, outputs


def _abandon(graph: Any, pool: Any, device: Any) -> None:
    """End a capture that failed. Where torch stops halfway, its allocator would go on as if there were one."""
    import torch

    with contextlib.suppress(RuntimeError):
        graph.capture_end()
    with contextlib.suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)
