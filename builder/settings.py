"""`Settings`: everything that decides how a model is split, compiled and verified."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["InductorSettings", "Precision", "Settings", "TensorRTSettings", "VerifySettings"]

_FROZEN = ConfigDict(frozen=True, extra="forbid")

Precision: TypeAlias = Literal["fp32", "tf32", "fp16", "bf16"]

_Bytes = Annotated[int, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]


class VerifySettings(BaseModel):
    """How closely the compiled model must follow eager PyTorch.

    Args:
        rtol: tolerance relative to the largest magnitude of an output; None takes the one for
            its dtype.
        atol: absolute tolerance added to it; None takes the one for the dtype.
        random_points: sizes drawn at random inside the ranges, besides the corners.
        max_corners: at most so many corners; with more dynamic dimensions a spread of them is used.
        seed: of the samples.
    """

    model_config = _FROZEN

    rtol: Annotated[float, Field(ge=0)] | None = None
    atol: Annotated[float, Field(ge=0)] | None = None
    random_points: Annotated[int, Field(ge=0, le=1000)] = 4
    max_corners: Annotated[int, Field(ge=3, le=10000)] = 81
    seed: int = 0


class TensorRTSettings(BaseModel):
    """What TensorRT's builder is told, under Torch-TensorRT's names where it has them. None leaves it to TensorRT.

    A setting that the installed flavour or version lacks is an error, never ignored.

    Args:
        workspace_size: bytes of GPU memory that one layer may use while it runs.
        tactic_dram, tactic_shared_memory: bytes that a kernel may use.
        optimization_level: 0 (quick build) to 5 (fast engine).
        avg_timing_iterations: how often each kernel is timed.
        max_num_tactics: how many kernels are timed for a layer.
        max_aux_streams: CUDA streams beside the main one.
        tactic_sources: where kernels come from ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS", ...).
        sparse_weights: use kernels for 2:4 sparse weights.
        strict_nans: no optimisation that could change where NaNs appear.
        engine_capability: restricts the engine to what a safety runtime or a DLA takes.
        dla_core: the DLA that runs what it can; the GPU runs the rest.
        dla_sram_size, dla_local_dram_size, dla_global_dram_size: bytes for the DLA.
        hardware_compatibility: GPUs that the engine runs on beside those like the one that built it.
        version_compatible: the engine loads in later releases too.
        exclude_lean_runtime: leave the runtime out of a version-compatible engine.
        tiling_optimization_level, l2_limit_for_tiling: search for tilings; bytes of L2 cache they may use.
        weight_streaming: weights may stay in host memory while the engine runs.
        profiling_verbosity: what an inspector can tell of the engine.
        plugins: shared libraries with plugins that the model needs.
        compute_capabilities: GPUs to build for ("8.6", "12.0"); TensorRT-RTX only. Without any, it decides.
        refit: "weights" keeps one engine for any weights of an architecture, "identical" keeps engines small for the
            same weights, "none" makes weights part of the engine.
        timing_cache: keep what was measured for later builds.
        build_timeout: seconds after which a build of one engine is given up.
    """

    model_config = _FROZEN

    workspace_size: _Bytes | None = None
    tactic_dram: _Bytes | None = None
    tactic_shared_memory: _Bytes | None = None
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = None
    avg_timing_iterations: Annotated[int, Field(ge=1)] | None = None
    max_num_tactics: Annotated[int, Field(ge=1)] | None = None
    max_aux_streams: _Count | None = None
    tactic_sources: tuple[str, ...] | None = None
    sparse_weights: bool = False
    strict_nans: bool = False
    engine_capability: Literal["standard", "safety", "dla_standalone"] | None = None
    dla_core: _Count | None = None
    dla_sram_size: _Bytes | None = None
    dla_local_dram_size: _Bytes | None = None
    dla_global_dram_size: _Bytes | None = None
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] | None = None
    version_compatible: bool = False
    exclude_lean_runtime: bool = False
    tiling_optimization_level: Literal["none", "fast", "moderate", "full"] | None = None
    l2_limit_for_tiling: _Bytes | None = None
    weight_streaming: bool = False
    profiling_verbosity: Literal["layer_names_only", "none", "detailed"] | None = None
    plugins: tuple[str, ...] = ()
    compute_capabilities: tuple[str, ...] = ()
    refit: Literal["weights", "identical", "none"] = "weights"
    timing_cache: bool = True
    build_timeout: Annotated[float, Field(gt=0)] | None = None


class InductorSettings(BaseModel):
    """What AOTInductor is told.

    Args:
        max_autotune: time several kernels for each product and convolution, and take the fastest: minutes more for a
            build, mostly on a GPU. False leaves it to torch's own setting (TORCHINDUCTOR_MAX_AUTOTUNE).
    """

    model_config = _FROZEN

    max_autotune: bool = False


class Settings(BaseModel):
    """Settings of a build, under the same names in Python, in a spec file and on the command line.

    Args:
        compiler: "auto", or the name of an engine compiler ("onnxruntime", "tensorrt_rtx").
        device: what engines are for; "auto" takes the GPU where the compiler has engines for it and there is one.
        min_block_size: engine segments with fewer operators are left to PyTorch.
        torch_executed_ops: operators that PyTorch runs ("aten::gelu", "torch.ops.aten.gelu").
        torch_executed_modules: modules that PyTorch runs with all inside, by their name in the model
            ("encoder.layers.0") or their class ("torch.nn.LayerNorm", "LayerNorm").
        require_full_compilation: fail where an operator would fall back to PyTorch.
        precision: of what engines compute. "fp16" and "bf16" convert weights and activations, and keep in float32
            what needs it: statistics of normalisations, softmax, large reductions, exponentials. Inputs and outputs keep
            their dtypes. "tf32" lets a GPU round the factors of float32 products to 10 bits.
        fp32_ops, fp32_modules: what else stays in float32, named as in `torch_executed_ops` and
            `torch_executed_modules`.
        truncate_double: engines compute float64 in float32, where the compiler has no float64.
        cuda_graphs: on a GPU, each segment is captured as a CUDA graph when a shape comes again, and replayed from then
            on: less work for the CPU in each call, memory for each of up to 16 shapes.
        tensorrt, inductor: for that compiler alone.
    """

    model_config = _FROZEN

    compiler: str = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    min_block_size: Annotated[int, Field(ge=1)] = 1
    torch_executed_ops: tuple[str, ...] = ()
    torch_executed_modules: tuple[str, ...] = ()
    require_full_compilation: bool = False
    precision: Precision = "fp32"
    fp32_ops: tuple[str, ...] = ()
    fp32_modules: tuple[str, ...] = ()
    truncate_double: bool = False
    cuda_graphs: bool = False
    tensorrt: TensorRTSettings = TensorRTSettings()
    inductor: InductorSettings = InductorSettings()
    verify: VerifySettings = VerifySettings()
