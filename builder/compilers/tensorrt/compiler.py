"""TensorRT and TensorRT-RTX behind the compiler protocol: one adapter, two flavours."""

from __future__ import annotations

import functools
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
from builder.compilers.tensorrt.build import build_plan
from builder.compilers.tensorrt.config import builder_config, keyed_settings
from builder.compilers.tensorrt.flavour import TENSORRT, TENSORRT_RTX, Flavour
from builder.compilers.tensorrt.network import (
    ParsedNetwork,
    WeightlessGraph,
    empty_network,
    name_tensors,
    parse_network,
)
from builder.compilers.tensorrt.profiles import POINTS, optimization_profiles
from builder.compilers.tensorrt.refit import can_strip, refit_flags, refit_plan
from builder.compilers.tensorrt.target import device_digest, engine_target, runs_here
from builder.compilers.tensorrt.timing import timing_cache
from builder.errors import CompileError
from builder.hashing import file_digest
from builder.lowering.onnx import WEIGHTS_FILE, LoweredSegment
from builder.lowering.torch_onnx import OPSET
from builder.partition.plan import Segment
from builder.settings import Settings

__all__ = ["TensorRTCompiler", "TensorRTRTXCompiler"]

_PLAN_FILE = "model.plan"


class _Compiler:
    flavour: ClassVar[Flavour]

    def availability(self) -> Availability:
        """TensorRT-RTX builds wherever it is installed; the rest needs a GPU."""
        flavour = self.flavour
        if not flavour.installed:
            return Availability(False, False, False, detail=flavour.install)
        can_run, reason = runs_here(flavour)
        return Availability(True, can_run or flavour.is_rtx, can_run, flavour.version, reason)

    def target(self, settings: Settings) -> Mapping[str, Any]:
        """Version, CUDA and GPU."""
        return engine_target(self.flavour, settings.tensorrt)

    def session(self, context: BuildContext) -> _Session:
        """Start a build.

        Raises:
            CompileError: when the flavour is not installed, too old, or its libraries do not load.
            SpecError: when it has no such setting.
        """
        trt = self.flavour.load()
        state = self.availability()
        if not state.can_build:
            raise CompileError(
                f"{self.flavour.library} cannot build on this machine: {state.detail}", fix="use another compiler"
            )
        check_precision(self.flavour.name, context.settings, ("fp32", "tf32", "fp16", "bf16"))
        return _Session(context, trt, self.flavour)


class TensorRTCompiler(_Compiler):
    """`tensorrt` behind the compiler protocol."""

    name: ClassVar[str] = "tensorrt"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    flavour = TENSORRT


class TensorRTRTXCompiler(_Compiler):
    """`tensorrt_rtx` behind the compiler protocol."""

    name: ClassVar[str] = "tensorrt_rtx"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    flavour = TENSORRT_RTX


class _Session(OnnxSession):
    # Others are refused by the parser, or silently narrowed (float64).
    io_dtypes = frozenset({"float32", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool"})
    bounded = True

    def __init__(self, context: BuildContext, trt: Any, flavour: Flavour) -> None:
        super().__init__(context)
        self.library = flavour.library
        self._trt = trt
        self._flavour = flavour
        self._settings = context.settings.tensorrt
        self._parsed: dict[Path, ParsedNetwork] = {}
        # Segments whose engines turned out not to take all of their weights.
        self._whole: set[tuple[str, ...]] = set()
        # That all settings are taken is told now, not after minutes.
        _, builder, _ = empty_network(trt)
        builder_config(trt, flavour, builder, context.settings)

    @functools.cached_property
    def _refit(self) -> str:
        mode = self._settings.refit
        if mode == "none" or can_strip(self._trt, mode):
            return mode
        self.context.progress.note(
            f"{self.library} cannot build engines without weights on this machine, so every fine-tune is a new engine"
        )
        return "none"

    def _mode(self, segment: Segment) -> str:
        return "none" if segment.nodes in self._whole else self._refit

    def parse(self, lowered: LoweredSegment) -> Mapping[str | None, str]:
        # What parses is built from the same network; only what does not is asked about in detail.
        parsed, refused = parse_network(self._trt, self._flavour, lowered, self._settings.plugins)
        if parsed is not None:
            self._parsed[lowered.directory] = parsed
        return refused

    def fingerprint(self, segment: Segment) -> Fingerprint:
        lowered = self.lowered(segment)
        mode = self._mode(segment)
        components: dict[str, Any] = {
            "ir": f"onnx opset {OPSET}",
            "graph": lowered.graph_digest,
            "settings": keyed_settings(self.context.settings),
            "mode": mode,
        }
        if mode != "weights":
            weights = lowered.directory / WEIGHTS_FILE
            components["weights"] = file_digest(weights) if weights.exists() else ""
        if segment.engine_profiles != (segment.inputs,):
            components["profiles"] = [
                [{p: list(t.shape(p)) for p in POINTS} for t in inputs] for inputs in segment.engine_profiles
            ]
        if segment.tensor_names is not None:
            components["names"] = [list(names) for names in segment.tensor_names]
        values = [[list(t.values) if t.values else None for t in inputs] for inputs in segment.engine_profiles]
        if any(v for profile in values for v in profile):
            components["values"] = values
        return Fingerprint(
            components,
            text=lowered.text(),
            refit="none" if mode == "none" else "weights",
            weights=lowered.weights,
            fixed=lowered.fixed,
        )

    def compile(self, segment: Segment, directory: Path) -> CompiledArtifact:
        trt, flavour = self._trt, self._flavour
        lowered = self.lowered(segment)
        parsed = self._parsed.pop(lowered.directory, None)
        if parsed is None:
            parsed, refused = parse_network(trt, flavour, lowered, self._settings.plugins)
            if parsed is None:
                raise CompileError(next(iter(refused.values())), where=segment.name)
        if segment.tensor_names is not None:
            name_tensors(parsed.network, *segment.tensor_names)
        config = builder_config(trt, flavour, parsed.builder, self.context.settings)
        for flag in refit_flags(trt, self._mode(segment)):
            config.set_flag(flag)
        for index, profile in enumerate(optimization_profiles(parsed.builder, parsed.network, segment)):
            if config.add_optimization_profile(profile) != index:
                raise CompileError(f"{self.library}: the optimization profile {index} is invalid", where=segment.name)
        try:
            with timing_cache(config, self._timing_file()):
                build_plan(
                    trt,
                    flavour,
                    parsed,
                    config,
                    directory / _PLAN_FILE,
                    timeout=self._settings.build_timeout,
                    progress=self.context.progress,
                )
        except CompileError as error:
            raise CompileError(error.what, where=segment.name, fix=error.fix) from error
        return CompiledArtifact(_PLAN_FILE)

    def _timing_file(self) -> Path | None:
        """Where measurements are kept; None where they are not wanted. TensorRT-RTX measures nothing when it builds."""
        if not self._settings.timing_cache or self.context.state is None or self._flavour.is_rtx:
            return None
        return self.context.state / "timing" / f"{self._flavour.name}-{device_digest(self._flavour)}.bin"

    def refit(self, segment: Segment, engine: Path, directory: Path) -> CompiledArtifact:
        graph = WeightlessGraph.read(self.lowered(segment))
        try:
            refit_plan(
                self._trt,
                self._flavour,
                engine / _PLAN_FILE,
                graph,
                directory / _PLAN_FILE,
                host_code=self._settings.version_compatible,
            )
        except RefitError as error:
            raise RefitError(error.what, where=segment.name) from error
        return CompiledArtifact(_PLAN_FILE)

    def without_refit(self, segment: Segment) -> bool:
        if segment.nodes in self._whole or self._mode(segment) == "none":
            return False
        self._whole.add(segment.nodes)
        return True
