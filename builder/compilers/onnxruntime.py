"""ONNX Runtime: the compiler for machines without TensorRT.

Its engine is the ONNX graph with its weights in a file beside it; ONNX Runtime optimises it for the
machine that loads it, so that it is portable. Compiling proves that it loads; a refit is another
weights file.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from builder.compilers.base import (
    Availability,
    BuildContext,
    CompiledArtifact,
    Fingerprint,
    RefitError,
    check_precision,
)
from builder.compilers.onnx_session import OnnxSession
from builder.errors import CompileError
from builder.lowering.onnx import GRAPH_FILE, WEIGHTS_FILE, LoweredSegment, external_weights
from builder.lowering.torch_onnx import OPSET
from builder.partition.plan import Segment
from builder.settings import Settings

__all__ = ["OnnxRuntimeCompiler"]

_INSTALL = "pip install 'triton-repo-builder[onnxruntime]'"


class OnnxRuntimeCompiler:
    """`onnxruntime` behind the compiler protocol."""

    name: ClassVar[str] = "onnxruntime"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def availability(self) -> Availability:
        """Installed means that it can build and run here."""
        if importlib.util.find_spec("onnxruntime") is None:
            return Availability(False, False, False, detail=_INSTALL)
        return Availability(True, True, True, _version())

    def target(self, settings: Settings) -> Mapping[str, Any]:
        """An ONNX graph is not tied to a machine; the version is that which has proved to load it."""
        return {"device": "cpu", "onnxruntime": _version()}

    def session(self, context: BuildContext) -> _Session:
        """Start a build.

        Raises:
            CompileError: when onnxruntime is not installed.
            SpecError: for a precision that it does not have.
        """
        if importlib.util.find_spec("onnxruntime") is None:
            raise CompileError("the compiler onnxruntime is not installed", fix=_INSTALL)
        # On the CPU it has no products in bfloat16.
        check_precision(self.name, context.settings, ("fp32", "fp16"))
        return _Session(context)


def _version() -> str:
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


class _Session(OnnxSession):
    library = "ONNX Runtime"
    # A float16 LSTM crashes the process when it is optimised for the CPU.
    only_float32 = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})

    def parse(self, lowered: LoweredSegment) -> Mapping[str | None, str]:
        message = _load_failure(lowered.graph)
        if message is None:
            return {}
        # It says «Node (n4) Op (Resize)» or «MatMul(13) node with name 'n0'».
        named = re.search(r"(?:[Nn]ode|name)[ :(]*'?(n\d+)\b", message)
        return {named[1] if named else None: f"ONNX Runtime: {message}"}

    def fingerprint(self, segment: Segment) -> Fingerprint:
        lowered = self.lowered(segment)
        return Fingerprint(
            components={"ir": f"onnx opset {OPSET}", "graph": lowered.graph_digest},
            text=lowered.text(),
            refit="weights",
            weights=lowered.weights,
            fixed=lowered.fixed,
        )

    def compile(self, segment: Segment, directory: Path) -> CompiledArtifact:
        # That it loads was proved when the partitioner asked.
        shutil.copyfile(self.lowered(segment).graph, directory / GRAPH_FILE)
        return CompiledArtifact(GRAPH_FILE)

    def refit(self, segment: Segment, engine: Path, directory: Path) -> CompiledArtifact:
        lowered = self.lowered(segment)
        if external_weights(engine / GRAPH_FILE) != external_weights(lowered.graph):
            raise RefitError("the engine's weights have other names, dtypes or shapes", where=segment.name)
        shutil.copyfile(engine / GRAPH_FILE, directory / GRAPH_FILE)
        if lowered.weights:
            shutil.copyfile(lowered.directory / WEIGHTS_FILE, directory / WEIGHTS_FILE)
        return CompiledArtifact(GRAPH_FILE)


def _load_failure(graph: Path) -> str | None:
    """ONNX Runtime's message when it cannot make a session of a graph; None when it can."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Support is decided when kernels are assigned; optimising here would only be thrown away.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        text = " ".join(str(error).split())
        text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
        return re.sub(r"^Load model from \S+ failed:", "", text)[:400]
    return None
