"""TensorRT-RTX: its ONNX parser answers what it supports, its builder makes plans, both without a GPU.

Facts behind the code: networks are strongly typed, so precision is in the graph; the parser's
support query flags everything between two failing nodes "unknown", so only the errors count; a
failed build returns None and its reason goes to the logger alone.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from builder.compilers.base import Availability, CompiledArtifact, Fingerprint
from builder.compilers.onnx_session import OnnxSession
from builder.errors import CompileError
from builder.hashing import file_digest
from builder.lowering.onnx import WEIGHTS_FILE, LoweredSegment
from builder.lowering.torch_onnx import OPSET
from builder.partition.plan import Segment
from builder.types import TensorSpec

__all__ = ["TensorRTRTXCompiler"]

_INSTALL = "pip install 'triton-repo-builder[tensorrt-rtx]'"
_PLAN_FILE = "model.plan"
_POINTS = ("min", "opt", "max")

# Compute capabilities that TensorRT-RTX takes: Turing, Ampere, Ada and consumer Blackwell, not data-centre Hopper.
_CAPABILITIES = {(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (12, 0), (12, 1)}


class TensorRTRTXCompiler:
    """`tensorrt_rtx` behind the compiler protocol. Full plans: weights are part of them."""

    name: ClassVar[str] = "tensorrt_rtx"

    def availability(self) -> Availability:
        """It builds wherever it is installed; running needs a GPU that it supports."""
        if importlib.util.find_spec("tensorrt_rtx") is None:
            return Availability(False, False, False, detail=_INSTALL)
        can_run, reason = _can_run()
        return Availability(True, True, can_run, _version(), reason)

    def target(self) -> Mapping[str, Any]:
        """Without explicit targets a plan runs on every GPU family of this TensorRT-RTX release, on any OS."""
        return {"device": "cuda", "tensorrt_rtx": _version(), "machine": platform.machine()}

    def session(self, work: Path) -> _Session:
        """Start a build.

        Raises:
            CompileError: when tensorrt_rtx is not installed, or its libraries do not load.
        """
        if importlib.util.find_spec("tensorrt_rtx") is None:
            raise CompileError("the compiler tensorrt_rtx is not installed", fix=_INSTALL)
        try:
            import tensorrt_rtx
        except Exception as error:
            raise CompileError(f"tensorrt_rtx is installed but does not import: {error}", fix=_INSTALL) from error
        return _Session(work, tensorrt_rtx)


def _version() -> str:
    try:
        return importlib.metadata.version("tensorrt_rtx")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _can_run() -> tuple[bool, str]:
    """Whether a plan can run on this machine, and what is in the way if not."""
    import torch

    if not torch.cuda.is_available():
        return False, "it builds here, but running needs an NVIDIA GPU, and torch sees none"
    capability = torch.cuda.get_device_capability()
    if capability not in _CAPABILITIES:
        major, minor = capability
        return False, f"it builds here, but TensorRT-RTX does not run on a GPU of compute capability {major}.{minor}"
    return True, ""


class _Session(OnnxSession):
    library = "TensorRT-RTX"
    # Others are refused by the parser, or silently narrowed (float64).
    io_dtypes = frozenset({"float32", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool"})
    bounded = True

    def __init__(self, work: Path, trt: Any) -> None:
        super().__init__(work)
        self._trt = trt

    def parse(self, lowered: LoweredSegment) -> Mapping[str | None, str]:
        trt = self._trt
        logger, _, network = _network(trt)
        parser = trt.OnnxParser(network, logger)
        taken = parser.supports_model_v2(lowered.graph.read_bytes(), str(lowered.graph))
        if not taken:
            return _errors(parser, lowered) or {None: _said(logger, "the parser refuses the graph")}
        # Bytes that hold no graph are "supported" too, in no subgraph.
        if parser.num_subgraphs < 1:
            return {None: "TensorRT's parser found no subgraph"}
        return {}

    def fingerprint(self, segment: Segment) -> Fingerprint:
        # Its builder strips no plan on a machine without a GPU, so weights are part of it.
        lowered = self.lowered(segment)
        weights = lowered.directory / WEIGHTS_FILE
        components: dict[str, Any] = {
            "ir": f"onnx opset {OPSET}",
            "graph": lowered.graph_digest,
            "weights": file_digest(weights) if weights.exists() else "",
        }
        if len(segment.engine_profiles) > 1:
            components["profiles"] = [
                [{p: list(t.shape(p)) for p in _POINTS} for t in inputs] for inputs in segment.engine_profiles
            ]
        return Fingerprint(components, text=lowered.text())

    def compile(self, segment: Segment, directory: Path) -> CompiledArtifact:
        trt = self._trt
        lowered = self.lowered(segment)
        logger, builder, network = _network(trt)
        parser = trt.OnnxParser(network, logger)
        if not parser.parse_from_file(str(lowered.graph)):
            messages = _errors(parser, lowered)
            raise CompileError(next(iter(messages.values()), _said(logger, "parsing failed")), where=segment.name)
        config = builder.create_builder_config()
        for index, profile in enumerate(optimization_profiles(builder, network, segment)):
            if config.add_optimization_profile(profile) != index:
                raise CompileError(_said(logger, f"the optimization profile {index} is invalid"), where=segment.name)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise CompileError(_said(logger, "the build failed"), where=segment.name)
        with (directory / _PLAN_FILE).open("wb") as file:
            file.write(plan)
        return CompiledArtifact(_PLAN_FILE)


def _network(trt: Any) -> tuple[Any, Any, Any]:
    logger = _capturing_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    return logger, builder, network


def _capturing_logger(trt: Any) -> Any:
    class Capture(trt.ILogger):  # type: ignore[misc]
        """Keeps the messages of errors: a failed build says why nowhere else."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            # Without a GPU every CUDA query fails; that is expected and not the reason of anything.
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR) and "catchCudaError" not in message:
                self.errors.append(message)

    return Capture()


def _said(logger: Any, fallback: str) -> str:
    text = "; ".join(" ".join(m.split()) for m in logger.errors) or fallback
    return f"TensorRT-RTX: {text[:400]}"


def _errors(parser: Any, lowered: LoweredSegment) -> dict[str | None, str]:
    """The parser's errors by ONNX node; an error of an input or of the graph goes under None."""
    names = _node_names(lowered)
    found: dict[str | None, str] = {}
    for i in range(parser.num_errors):
        error = parser.get_error(i)
        index = error.node()
        name = names[index] if 0 <= index < len(names) else None
        text = " ".join(str(error.desc()).split())
        found.setdefault(name, f"TensorRT-RTX: {error.node_operator() or 'graph'}: {text[:300]}")
    return found


def _node_names(lowered: LoweredSegment) -> list[str]:
    import onnx

    model = onnx.load(lowered.graph, load_external_data=False)
    return [node.name for node in model.graph.node]


def optimization_profiles(builder: Any, network: Any, segment: Segment) -> list[Any]:
    """One for each of the segment's engine profiles, in order; none where the network has no dynamic input.

    Raises:
        CompileError: when the network takes the values of an input for a shape.
    """
    profiles = [_profile(builder, network, inputs, segment.name) for inputs in segment.engine_profiles]
    return [p for p in profiles if p is not None]


def _profile(builder: Any, network: Any, inputs: Sequence[TensorSpec], where: str) -> Any | None:
    """An optimization profile of the ranges of the inputs; None where the network has no dynamic one."""
    profile = builder.create_optimization_profile()
    dynamic = False
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        spec = inputs[int(tensor.name.rpartition("_")[2])]
        if getattr(tensor, "is_shape_tensor", False):
            raise CompileError(
                f"TensorRT takes the values of {spec.name!r} for a shape; the range of such values is not known",
                where=where,
            )
        if -1 in tuple(tensor.shape):
            dynamic = True
            profile.set_shape(tensor.name, *(spec.shape(p) for p in _POINTS))
    return profile if dynamic else None
