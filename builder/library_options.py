"""Keyword arguments of the library: the fields of `Settings`, and Torch-TensorRT's names where they mean the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from pydantic import BaseModel

from builder.cache.options import CacheOptions
from builder.errors import SpecError, did_you_mean
from builder.inputs import Constant, Input, parse_input
from builder.settings import InductorSettings, Settings, TensorRTSettings, VerifySettings
from builder.spec import validated
from builder.types import canonical_dtype

__all__ = ["ALIASES", "REFUSED", "LibraryOptions", "OutOfRange", "given_inputs", "library_options"]

OutOfRange = Literal["error", "eager", "recompile"]

_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class LibraryOptions:
    """What `builder.compile` and the `torch.compile` backend go by.

    Args:
        settings: of the build.
        cache: where engines are kept; None keeps none.
        out_of_range: what becomes of a call outside the declared ranges: an error, eager PyTorch, or new engines for
            wider ranges.
        debug: report every stage on standard error.
        dryrun: print the plan, compile nothing.
    """

    settings: Settings
    cache: CacheOptions | None
    out_of_range: OutOfRange = "error"
    debug: bool = False
    dryrun: bool = False


@dataclass(frozen=True, slots=True)
class _Alias:
    """Torch-TensorRT's name for something that we have.

    Args:
        field: of `Settings`, or an option of the library, with dots.
        convert: of its value to ours; raises ValueError for one that cannot be.
    """

    field: str
    convert: Callable[[Any], Any] = lambda value: value


def _precision(value: Any) -> str:
    items = value if isinstance(value, set | frozenset | list | tuple) else [value]
    known = {_PRECISIONS.get(canonical_dtype(item) or "") for item in items}
    if None in known:
        raise ValueError(f"it has dtypes other than {', '.join(_PRECISIONS)}")
    reduced = sorted(str(k) for k in known - {"fp32"})
    if len(reduced) > 1:
        raise ValueError("float16 and bfloat16 together are not possible; give one of them")
    return reduced[0] if reduced else "fp32"


def _device(value: Any) -> str:
    # A torch.device says "cuda:0" too.
    kind, _, index = str(value).partition(":")
    number = int(index or 0)
    if kind == "gpu":
        kind = "cuda"
    if kind not in ("cpu", "cuda") or number:
        raise ValueError('it can be "cpu", "cuda" or "cuda:0"; choose another GPU with CUDA_VISIBLE_DEVICES')
    return kind


def _names(value: Any) -> tuple[str, ...]:
    """Operators and modules may be given as objects."""
    items = [value] if isinstance(value, str) else value
    return tuple(sorted(_name(item) for item in items))


def _name(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, type):
        return f"{item.__module__}.{item.__qualname__}"
    return str(item)


def _or_none(value: Any) -> Any:
    return value or None


def _number_or_none(value: Any) -> Any:
    return None if value == -1 else value


def _on_off(on: str, off: str) -> Callable[[Any], str]:
    return lambda value: on if value else off


def _level(value: Any) -> Any:
    return None if value in (None, "none") else value


ALIASES: Mapping[str, _Alias] = {
    "enabled_precisions": _Alias("precision", _precision),
    "disable_tf32": _Alias("precision", _on_off("fp32", "tf32")),
    "workspace_size": _Alias("tensorrt.workspace_size", _or_none),
    "optimization_level": _Alias("tensorrt.optimization_level"),
    "sparse_weights": _Alias("tensorrt.sparse_weights"),
    "num_avg_timing_iters": _Alias("tensorrt.avg_timing_iterations"),
    "max_aux_streams": _Alias("tensorrt.max_aux_streams"),
    "dla_sram_size": _Alias("tensorrt.dla_sram_size"),
    "dla_local_dram_size": _Alias("tensorrt.dla_local_dram_size"),
    "dla_global_dram_size": _Alias("tensorrt.dla_global_dram_size"),
    "version_compatible": _Alias("tensorrt.version_compatible"),
    "hardware_compatible": _Alias("tensorrt.hardware_compatibility", _on_off("ampere_plus", "none")),
    "tiling_optimization_level": _Alias("tensorrt.tiling_optimization_level", _level),
    "l2_limit_for_tiling": _Alias("tensorrt.l2_limit_for_tiling", _number_or_none),
    "enable_weight_streaming": _Alias("tensorrt.weight_streaming"),
    "immutable_weights": _Alias("tensorrt.refit", _on_off("none", "weights")),
    "make_refittable": _Alias("tensorrt.refit", _on_off("weights", "none")),
    "refit_identical_engine_weights": _Alias("tensorrt.refit", _on_off("identical", "weights")),
    "torch_executed_ops": _Alias("torch_executed_ops", _names),
    "torch_executed_modules": _Alias("torch_executed_modules", _names),
    "device": _Alias("device", _device),
    "engine_cache_dir": _Alias("cache_dir"),
    "engine_cache_size": _Alias("cache_size"),
}

# What Torch-TensorRT has and we do not, and why. Its default is taken for no request.
REFUSED: Mapping[str, tuple[Any, str]] = {
    "pass_through_build_failures": (
        False,
        "a segment that does not build runs in PyTorch; require_full_compilation makes it an error",
    ),
    "use_fast_partitioner": (True, "there is one partitioner"),
    "use_python_runtime": (None, "there is one runtime"),
    "use_explicit_typing": (None, "networks are always strongly typed; precision says what engines compute in"),
    "use_fp32_acc": (False, "precision keeps in float32 what needs it; fp32_ops and fp32_modules keep more"),
    "enable_autocast": (False, "precision says what engines compute in"),
    "enable_experimental_decompositions": (False, "operators are decomposed as the compiler needs"),
    "assume_dynamic_shape_support": (False, "the compiler's own parser says what it supports"),
    "strip_engine_weights": (False, "engines in the cache are always without weights where the compiler can refit"),
    "lazy_engine_init": (False, "engines are loaded when they are made"),
    "timing_cache_path": (None, "the timing cache lies beside the engine cache; tensorrt.timing_cache turns it off"),
    "custom_engine_cache": (None, "use cache_dir, or a remote: TRITON_REPO_REMOTE"),
    "offload_module_to_cpu": (False, "the module stays where it is"),
    "dynamically_allocate_resources": (False, "there is no such thing here"),
    "enable_cross_compile_for_windows": (False, "engines are for this platform"),
    "use_distributed_mode_trace": (False, "there is no such thing here"),
    "enable_resource_partitioning": (False, "there is no such thing here"),
    "cpu_memory_budget": (None, "there is no such thing here"),
    "allow_shape_tensors": (False, "sizes are recomputed inside segments"),
}

_TABLES: dict[str, type[BaseModel]] = {
    "tensorrt": TensorRTSettings,
    "inductor": InductorSettings,
    "verify": VerifySettings,
}

# Fields of the tables of compilers may be given directly.
_OF_COMPILERS = {name: f"{table}.{name}" for table in ("tensorrt", "inductor") for name in _TABLES[table].model_fields}

_OWN = ("out_of_range", "debug", "dryrun", "cache_dir", "cache_size", "cache_built_engines", "reuse_cached_engines")


def given_inputs(given: Any, where: str) -> tuple[Input | Constant, ...]:
    """Inputs as a program gives them: one, or several in any iterable; a tensor stands for its sizes.

    Raises:
        SpecError: when one is none, or its text cannot be read.
    """
    several = isinstance(given, Iterable) and not isinstance(given, str | torch.Tensor)
    return tuple(_given_input(item, where) for item in (given if several else [given]))


def _given_input(item: Any, where: str) -> Input | Constant:
    if isinstance(item, str):
        return parse_input(item, where="inputs")
    if isinstance(item, torch.Tensor):
        return Input(shape=tuple(item.shape), dtype=item.dtype)
    if isinstance(item, Input | Constant):
        return item
    raise SpecError(
        f"there is an object of type {type(item).__name__} among the inputs",
        where=where,
        fix="give Input(min_shape=, opt_shape=, max_shape=), or text: 'x=float32[B=1:8:32, 16]'",
    )


def library_options(given: Mapping[str, Any], **defaults: Any) -> LibraryOptions:
    """Options from keyword arguments.

    Args:
        given: as the user wrote them. `settings` may be a `Settings` that the others are laid over; `tensorrt` and
            `verify` may be mappings.
        defaults: for settings that are not given.
    Raises:
        SpecError: for an unknown option, with the nearest right name; for one that cannot be honoured; for a value
            that is none.
    """
    given = dict(given)
    base = given.pop("settings", None) or Settings()
    if not isinstance(base, Settings):
        raise SpecError(f"settings is a {type(base).__name__}", where="settings", fix="give a builder.Settings")
    changes: dict[str, Any] = {name: value for name, value in defaults.items() if getattr(base, name) == "auto"}
    own: dict[str, Any] = {}
    by: dict[str, str] = {}
    for name, value in given.items():
        field, value = _resolved(name, value)
        if field is None:
            continue
        if field in by and _at(changes, own, field) != value and name != "disable_tf32" and by[field] != "disable_tf32":
            raise SpecError(
                f"{by[field]} and {name} are two names of {field}, with two values", where=name, fix="give one of them"
            )
        if field in by and name == "disable_tf32":
            # It speaks of float32 alone, where another precision was asked for by its own name.
            continue
        by[field] = name
        _put(changes, own, field, value)
    return LibraryOptions(
        settings=_settings(base, changes),
        cache=_cache(own),
        out_of_range=_chosen("out_of_range", own.get("out_of_range", "error"), get_args(OutOfRange)),
        debug=bool(own.get("debug", False)),
        dryrun=bool(own.get("dryrun", False)),
    )


def _resolved(name: str, value: Any) -> tuple[str | None, Any]:
    if name in ALIASES:
        alias = ALIASES[name]
        try:
            return alias.field, alias.convert(value)
        except (ValueError, TypeError) as error:
            raise SpecError(f"{name} = {value!r}: {error}", where=name) from None
    if name in _OWN or name in Settings.model_fields or name in _OF_COMPILERS:
        field = _OF_COMPILERS.get(name, name)
        if name in ("fp32_ops", "fp32_modules"):
            value = _names(value)
        return field, value
    if name in REFUSED:
        default, reason = REFUSED[name]
        if value is None or value == default:
            return None, None
        raise SpecError(f"{name} = {value!r} cannot be honoured: {reason}", where=name)
    known = sorted({*ALIASES, *_OWN, *Settings.model_fields, *_OF_COMPILERS})
    raise SpecError(
        f"there is no option {name!r}", where=name, fix=f"{did_you_mean(name, known)}docs/library.md lists them"
    )


def _put(changes: dict[str, Any], own: dict[str, Any], field: str, value: Any) -> None:
    table, _, key = field.partition(".")
    if field in _OWN:
        own[field] = value
    elif key:
        changes[table] = {**changes.get(table, {}), key: value}
    elif field in _TABLES and isinstance(value, Mapping):
        changes[field] = {**changes.get(field, {}), **value}
    else:
        changes[field] = value


def _at(changes: Mapping[str, Any], own: Mapping[str, Any], field: str) -> Any:
    table, _, key = field.partition(".")
    if field in own:
        return own[field]
    return changes[table][key] if key else changes.get(field)


def _settings(base: Settings, changes: Mapping[str, Any]) -> Settings:
    data = base.model_dump()
    for name, value in changes.items():
        inside = isinstance(value, Mapping)
        plain = value.model_dump() if isinstance(value, BaseModel) else value
        data[name] = {**data[name], **plain} if inside else plain
    return validated(Settings, data, "options")


def _cache(own: Mapping[str, Any]) -> CacheOptions | None:
    keep, reuse = own.get("cache_built_engines", True), own.get("reuse_cached_engines", True)
    if bool(keep) != bool(reuse):
        raise SpecError(
            f"cache_built_engines = {keep} and reuse_cached_engines = {reuse} cannot be told apart here",
            where="reuse_cached_engines",
            fix="give both the same value; without the cache nothing is kept and nothing reused",
        )
    if not keep:
        return None
    size = own.get("cache_size")
    if isinstance(size, int):
        options = dataclasses.replace(CacheOptions.resolve(_path(own.get("cache_dir"))), limit=size)
    else:
        options = CacheOptions.resolve(_path(own.get("cache_dir")), limit=size)
    return options


def _path(value: Any) -> Path | None:
    return None if value is None else Path(value).expanduser()


def _chosen(name: str, value: Any, choices: Iterable[str]) -> Any:
    if value not in choices:
        raise SpecError(f"{name} = {value!r}", where=name, fix=f"use one of {', '.join(choices)}")
    return value
