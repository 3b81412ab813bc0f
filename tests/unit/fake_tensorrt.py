"""TensorRT's runtime and refitter as far as they are used here: keeps the order of calls, computes on the CPU with torch.

Only behaviour that NVIDIA documents, or that the notes of the adapter cite, is imitated.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any

import torch

__all__ = ["FakeTensorRT", "address_to_tensor"]


class DataType(enum.Enum):
    FLOAT = enum.auto()
    HALF = enum.auto()
    BF16 = enum.auto()
    INT64 = enum.auto()
    INT32 = enum.auto()
    INT8 = enum.auto()
    UINT8 = enum.auto()
    BOOL = enum.auto()


class TensorIOMode(enum.Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class SerializationFlag(enum.Enum):
    EXCLUDE_WEIGHTS = 0
    EXCLUDE_LEAN_RUNTIME = 1
    INCLUDE_REFIT = 2


def address_to_tensor(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The memory at an address as a tensor that shares it."""
    count = int(torch.Size(shape).numel())
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    buffer = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


class FakeTensorRT:
    """The module. `refuse` names calls that return False or None; `calls` keeps what was called."""

    DataType = DataType
    TensorIOMode = TensorIOMode
    SerializationFlag = SerializationFlag

    class IOutputAllocator:
        def __init__(self) -> None: ...

    class ILogger:
        ERROR, INTERNAL_ERROR = 1, 0

        def __init__(self) -> None: ...

    class Logger:
        ERROR = 1

        def __init__(self, severity: int) -> None: ...

    def __init__(
        self,
        inputs: dict[str, DataType],
        outputs: dict[str, DataType],
        compute: Any,
        *,
        profiles: int = 1,
        data_dependent: bool = False,
        host: frozenset[str] = frozenset(),
        weights: tuple[str, ...] = ("w0", "w1"),
        missing: tuple[str, ...] = (),
    ) -> None:
        self.inputs, self.outputs, self.compute = inputs, outputs, compute
        self.profiles, self.data_dependent, self.host = profiles, data_dependent, host
        self.weights, self.missing = weights, missing
        self.calls: list[Any] = []
        self.refuse: set[str] = set()

    def said(self, name: str, *details: Any, result: Any = True) -> Any:
        self.calls.append((name, *details))
        if name in self.refuse:
            return None if not isinstance(result, bool) else False
        return result

    def Runtime(self, logger: Any) -> Any:
        return _Runtime(self)

    def Refitter(self, engine: Any, logger: Any) -> Any:
        return _Refitter(self)

    def OnnxParserRefitter(self, refitter: Any, logger: Any) -> Any:
        return _ParserRefitter(self)


class _Runtime:
    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt

    def get_plugin_registry(self) -> Any:
        return self

    def load_library(self, path: str) -> Any:
        return self.trt.said("load_library", path, result=object())

    def deserialize_cuda_engine(self, data: bytes) -> Any:
        return self.trt.said("deserialize", data, result=_Engine(self.trt))


class _Engine:
    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt
        self.names = [*trt.inputs, *trt.outputs]
        self.num_io_tensors = len(self.names)
        self.num_optimization_profiles = trt.profiles
        self.weight_streaming_budget_v2: int | None = None

    def get_weight_streaming_automatic_budget(self) -> int:
        return 1 << 20

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.trt.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return {**self.trt.inputs, **self.trt.outputs}[name]

    def is_shape_inference_io(self, name: str) -> bool:
        return name in self.trt.host

    def create_execution_context(self) -> Any:
        return self.trt.said("create_execution_context", result=_Context(self.trt))

    def create_serialization_config(self) -> Any:
        return _Serialization(self.trt)

    def serialize_with_config(self, config: Any) -> Any:
        # As a stripped engine does, it leaves its weights out unless it is told not to.
        return self.trt.said(
            "serialize", result=b"empty" if SerializationFlag.EXCLUDE_WEIGHTS in config.flags else b"full"
        )


class _Serialization:
    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt
        self.flags = {SerializationFlag.EXCLUDE_WEIGHTS}

    def clear_flag(self, flag: SerializationFlag) -> bool:
        self.flags.discard(flag)
        return bool(self.trt.said("clear_flag", flag))


_TORCH = {DataType.FLOAT: torch.float32, DataType.HALF: torch.float16, DataType.INT64: torch.int64}


class _Context:
    """Computes with the module's `compute`, reading and writing at the addresses that it was given."""

    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt
        self.profile = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = index
        return bool(self.trt.said("set_optimization_profile_async", index))

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = tuple(shape)
        return bool(self.trt.said("set_input_shape", name, tuple(shape)))

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address, "TensorRT takes no null"
        self.addresses[name] = address
        return bool(self.trt.said("set_tensor_address", name))

    def infer_shapes(self) -> list[str]:
        return [n for n in self.trt.inputs if n not in self.shapes or n not in self.addresses]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if self.trt.data_dependent:
            return (-1,)
        return tuple(self._results()[list(self.trt.outputs).index(name)].shape)

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return bool(self.trt.said("set_output_allocator", name))

    def _results(self) -> list[torch.Tensor]:
        given = [address_to_tensor(self.addresses[n], self.shapes[n], _TORCH[d]) for n, d in self.trt.inputs.items()]
        return [r.contiguous() for r in self.trt.compute(*given)]

    def execute_async_v3(self, stream: int) -> bool:
        if not self.trt.said("execute", self.profile, stream):
            return False
        for name, result in zip(self.trt.outputs, self._results(), strict=True):
            address = self.addresses.get(name, 0)
            if name in self.allocators:
                allocator = self.allocators[name]
                address = allocator.reallocate_output_async(
                    name, 0, result.numel() * result.element_size(), 256, stream
                )
                allocator.notify_shape(name, tuple(result.shape))
            if result.numel():
                address_to_tensor(address, tuple(result.shape), result.dtype).copy_(result)
        return True


class _Refitter:
    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt

    def get_missing_weights(self) -> list[str]:
        self.trt.said("get_missing_weights")
        return list(self.trt.missing)

    def get_all_weights(self) -> list[str]:
        self.trt.said("get_all_weights")
        return list(self.trt.weights)

    def refit_cuda_engine(self) -> bool:
        return bool(self.trt.said("refit_cuda_engine"))


class _ParserRefitter:
    def __init__(self, trt: FakeTensorRT) -> None:
        self.trt = trt

    def load_model_proto(self, model: bytes) -> bool:
        return bool(self.trt.said("load_model_proto"))

    def load_initializer(self, name: str, address: int, size: int) -> bool:
        return bool(self.trt.said("load_initializer", name, bytes((ctypes.c_uint8 * size).from_address(address))))

    def refit_model_proto(self) -> bool:
        return bool(self.trt.said("refit_model_proto"))
