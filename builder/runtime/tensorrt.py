"""Run a TensorRT-RTX plan on tensors that stay on the GPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder.errors import CompileError
from builder.runtime.manifest import SegmentSpec
from builder.runtime.values import Value, to_torch

__all__ = ["TensorRTRunner"]


class TensorRTRunner:
    """One plan, an execution context for each of its profiles; a lock lets several threads share it."""

    def __init__(self, path: Path, segment: SegmentSpec, device: str) -> None:
        import tensorrt_rtx
        import torch

        self._trt: Any = tensorrt_rtx
        self._torch = torch
        self._segment = segment
        self._device = device if device != "cpu" else "cuda:0"
        self._lock = threading.Lock()
        self._logger = tensorrt_rtx.Logger(tensorrt_rtx.Logger.ERROR)
        runtime = tensorrt_rtx.Runtime(self._logger)
        self._engine = runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise CompileError(
                "TensorRT-RTX cannot load the plan on this machine",
                where=str(path),
                fix="serve it on a supported GPU with the TensorRT-RTX version that the manifest names",
            )
        self._contexts: dict[int, Any] = {}
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        self._taken = {n for n in names if self._engine.get_tensor_mode(n) == tensorrt_rtx.TensorIOMode.INPUT}

    def _context(self, profile: int, stream: Any) -> Any:
        """The context of a profile, made when it is first used. A plan of one profile may have been built without any."""
        profile = min(profile, max(self._engine.num_optimization_profiles - 1, 0))
        if profile not in self._contexts:
            context = self._engine.create_execution_context()
            if context is None:
                raise CompileError(
                    "TensorRT-RTX cannot create an execution context", where=self._segment.name, fix="free GPU memory"
                )
            if profile:
                chosen = context.set_optimization_profile_async(profile, stream.cuda_stream)
                self._check(chosen, f"the optimization profile {profile}")
            self._contexts[profile] = context
        return self._contexts[profile]

    def run(self, inputs: Sequence[Value], profile: int = 0) -> list[Value]:
        torch = self._torch
        held = [to_torch(v, self._device).contiguous() for v in inputs]
        with self._lock, torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            context = self._context(profile, stream)
            for i, tensor in enumerate(held):
                name = f"input_{i}"
                if name in self._taken:
                    self._check(context.set_input_shape(name, tuple(tensor.shape)), f"the shape of {name}")
                    self._check(context.set_tensor_address(name, tensor.data_ptr()), f"the address of {name}")
            outputs = []
            for i, spec in enumerate(self._segment.outputs):
                name = f"output_{i}"
                shape = tuple(context.get_tensor_shape(name))
                self._check(all(s >= 0 for s in shape), f"the shape {shape} of {name}")
                output = torch.empty(shape, dtype=getattr(torch, spec.dtype), device=self._device)
                # An empty tensor has no address, and TensorRT takes no null.
                address = output.data_ptr() or torch.empty(1, device=self._device).data_ptr()
                self._check(context.set_tensor_address(name, address), f"the address of {name}")
                outputs.append(output)
            self._check(context.execute_async_v3(stream.cuda_stream), "the call")
            stream.synchronize()
        return list(outputs)

    def _check(self, accepted: bool, what: str) -> None:
        if not accepted:
            raise CompileError(f"TensorRT-RTX refused {what}", where=self._segment.name, fix="see the server log")
