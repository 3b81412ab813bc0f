"""Settings as a builder configuration. What the flavour or version does not take is an error; nothing is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.compilers.tensorrt.flavour import Flavour
from builder.compilers.tensorrt.rtx import set_compute_capabilities
from builder.errors import SpecError
from builder.hashing import file_digest
from builder.settings import Settings, TensorRTSettings

__all__ = ["ENUMS", "FLAGS", "NUMBERS", "POOLS", "builder_config", "keyed_settings", "load_plugins"]

# Settings by what they are in TensorRT: an attribute of the configuration,
NUMBERS = {
    "optimization_level": "builder_optimization_level",
    "avg_timing_iterations": "avg_timing_iterations",
    "max_num_tactics": "max_num_tactics",
    "max_aux_streams": "max_aux_streams",
    "l2_limit_for_tiling": "l2_limit_for_tiling",
}
# an attribute and the enum that its values are of,
ENUMS = {
    "engine_capability": ("engine_capability", "EngineCapability"),
    "hardware_compatibility": ("hardware_compatibility_level", "HardwareCompatibilityLevel"),
    "tiling_optimization_level": ("tiling_optimization_level", "TilingOptimizationLevel"),
    "profiling_verbosity": ("profiling_verbosity", "ProfilingVerbosity"),
}
# a builder flag,
FLAGS = {
    "sparse_weights": "SPARSE_WEIGHTS",
    "strict_nans": "STRICT_NANS",
    "version_compatible": "VERSION_COMPATIBLE",
    "exclude_lean_runtime": "EXCLUDE_LEAN_RUNTIME",
    "weight_streaming": "WEIGHT_STREAMING",
}
# or the limit of a memory pool.
POOLS = {
    "workspace_size": "WORKSPACE",
    "tactic_dram": "TACTIC_DRAM",
    "tactic_shared_memory": "TACTIC_SHARED_MEMORY",
    "dla_sram_size": "DLA_MANAGED_SRAM",
    "dla_local_dram_size": "DLA_LOCAL_DRAM",
    "dla_global_dram_size": "DLA_GLOBAL_DRAM",
}

_LATER = "it chooses kernels where the engine runs, not where it is built"

# TensorRT-RTX takes these and does nothing with them: its engines are the same for all values.
_WITHOUT_EFFECT = {
    "optimization_level": _LATER,
    "avg_timing_iterations": _LATER,
    "max_num_tactics": _LATER,
    "tactic_sources": _LATER,
    "hardware_compatibility": "its engines run on all GPU families of a release; compute_capabilities narrows that",
    "version_compatible": "its engines run with the release that built them alone",
    "exclude_lean_runtime": "its engines run with the release that built them alone",
}

# None of these decides what an engine is.
_NOT_KEYED = {"timing_cache", "build_timeout", "plugins", "refit", "compute_capabilities"}

_DEFAULTS = TensorRTSettings()


def builder_config(trt: Any, flavour: Flavour, builder: Any, settings: Settings) -> Any:
    """A configuration that says all of the settings, each read back.

    Raises:
        SpecError: for a setting that this TensorRT does not have or take.
    """
    given = settings.tensorrt
    config = builder.create_builder_config()
    if flavour.is_rtx:
        for name, reason in _WITHOUT_EFFECT.items():
            if getattr(given, name) != getattr(_DEFAULTS, name):
                raise _refused(flavour, name, f"has no use for it: {reason}")
    for name, attribute in NUMBERS.items():
        _set(flavour, config, name, attribute, getattr(given, name))
    for name, (attribute, enum) in ENUMS.items():
        value = getattr(given, name)
        _set(flavour, config, name, attribute, None if value is None else getattr(getattr(trt, enum), value.upper()))
    for name, flag in FLAGS.items():
        if getattr(given, name):
            _set_flag(trt, flavour, config, name, flag)
    _set_tf32(trt, config, settings.precision == "tf32")
    _set_dla(trt, flavour, builder, config, given)
    for name, pool in POOLS.items():
        _set_pool(trt, flavour, config, name, pool, getattr(given, name))
    if given.tactic_sources is not None:
        _set_tactic_sources(trt, flavour, config, given.tactic_sources)
    if given.compute_capabilities and not flavour.is_rtx:
        why = "builds for the GPU of this machine; build on such a GPU, or see hardware_compatibility"
        raise _refused(flavour, "compute_capabilities", why)
    if given.compute_capabilities:
        set_compute_capabilities(trt, config, given.compute_capabilities)
    return config


def _refused(flavour: Flavour, name: str, why: str) -> SpecError:
    return SpecError(
        f"{flavour.library} {flavour.version} {why}",
        where=f"settings.tensorrt.{name}",
        fix="leave it out",
    )


def _set(flavour: Flavour, config: Any, name: str, attribute: str, value: Any) -> None:
    if value is None:
        return
    if not hasattr(config, attribute):
        raise _refused(flavour, name, "does not have it")
    try:
        setattr(config, attribute, value)
    except (TypeError, ValueError) as error:
        raise _refused(flavour, name, f"does not take {value}: {error}") from error
    if getattr(config, attribute) != value:
        raise _refused(flavour, name, f"does not take {value}: it keeps {getattr(config, attribute)}")


def _set_flag(trt: Any, flavour: Flavour, config: Any, name: str, flag: str) -> None:
    member = getattr(trt.BuilderFlag, flag, None)
    if member is None:
        raise _refused(flavour, name, "does not have it")
    config.set_flag(member)
    if not config.get_flag(member):
        raise _refused(flavour, name, "does not take it here")


def _set_tf32(trt: Any, config: Any, wanted: bool) -> None:
    """TensorRT rounds by default; float32 is what users of float32 expect."""
    if wanted:
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)


def _set_dla(trt: Any, flavour: Flavour, builder: Any, config: Any, given: TensorRTSettings) -> None:
    if given.dla_core is None:
        return
    if given.dla_core >= builder.num_DLA_cores:
        raise _refused(
            flavour, "dla_core", f"sees {builder.num_DLA_cores} DLA cores here, so there is no core {given.dla_core}"
        )
    config.default_device_type = trt.DeviceType.DLA
    _set(flavour, config, "dla_core", "DLA_core", given.dla_core)
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)


def _set_pool(trt: Any, flavour: Flavour, config: Any, name: str, pool: str, size: int | None) -> None:
    if size is None:
        return
    kind = getattr(trt.MemoryPoolType, pool)
    try:
        config.set_memory_pool_limit(kind, size)
    except (TypeError, ValueError) as error:
        raise _refused(flavour, name, f"does not take {size} bytes") from error
    if config.get_memory_pool_limit(kind) != size:
        raise _refused(flavour, name, f"does not take {size} bytes here")


def _set_tactic_sources(trt: Any, flavour: Flavour, config: Any, names: tuple[str, ...]) -> None:
    known = trt.TacticSource.__members__
    unknown = [n for n in names if n.upper() not in known]
    if unknown:
        raise _refused(flavour, "tactic_sources", f"has no source {unknown[0]!r}; it has {', '.join(known)}")
    bits = sum(1 << int(known[n.upper()]) for n in dict.fromkeys(names))
    if not config.set_tactic_sources(bits):
        raise _refused(flavour, "tactic_sources", f"does not take {', '.join(names)} together")


def load_plugins(flavour: Flavour, builder: Any, paths: tuple[str, ...]) -> None:
    """Load plugin libraries.

    Raises:
        SpecError: when one is not there or does not load.
    """
    registry = builder.get_plugin_registry()
    for path in paths:
        if not Path(path).is_file():
            raise SpecError(f"there is no plugin library {path!r}", where="settings.tensorrt.plugins")
        try:
            handle = registry.load_library(path)
        except Exception as error:
            raise _refused(flavour, "plugins", f"cannot load {path!r}: {error}") from error
        if handle is None:
            raise _refused(flavour, "plugins", f"cannot load {path!r}")


def keyed_settings(settings: Settings) -> dict[str, Any]:
    """Those settings that decide an engine, as JSON values; plugins by the digests of their files."""
    kept = {k: v for k, v in settings.tensorrt.model_dump(mode="json").items() if k not in _NOT_KEYED}
    return {
        **{name: value for name, value in kept.items() if value is not None and value is not False},
        "tf32": settings.precision == "tf32",
        "plugins": [file_digest(Path(path)) for path in settings.tensorrt.plugins],
    }
