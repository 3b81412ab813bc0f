"""Keyword arguments of the library: our names, Torch-TensorRT's, and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from builder.errors import SpecError
from builder.library_options import ALIASES, REFUSED, library_options
from builder.settings import Settings, TensorRTSettings

DOCS = Path(__file__).resolve().parents[2] / "docs" / "library.md"


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"enabled_precisions": {torch.float32, torch.float16}}, "precision", "fp16"),
        ({"enabled_precisions": {torch.bfloat16}}, "precision", "bf16"),
        ({"enabled_precisions": torch.float32}, "precision", "fp32"),
        ({"disable_tf32": False}, "precision", "tf32"),
        ({"disable_tf32": True, "enabled_precisions": {torch.float16}}, "precision", "fp16"),
        ({"enabled_precisions": {torch.float16}, "disable_tf32": True}, "precision", "fp16"),
        ({"workspace_size": 1 << 30}, "tensorrt.workspace_size", 1 << 30),
        ({"workspace_size": 0}, "tensorrt.workspace_size", None),
        ({"min_block_size": 5}, "min_block_size", 5),
        ({"torch_executed_ops": {torch.ops.aten.gelu.default}}, "torch_executed_ops", ("aten.gelu.default",)),
        ({"torch_executed_modules": [torch.nn.LayerNorm]}, "torch_executed_modules", ("torch.nn.modules.normalization.LayerNorm",)),
        ({"require_full_compilation": True}, "require_full_compilation", True),
        ({"optimization_level": 3}, "tensorrt.optimization_level", 3),
        ({"device": torch.device("cuda", 0)}, "device", "cuda"),
        ({"device": "cpu"}, "device", "cpu"),
        ({"sparse_weights": True}, "tensorrt.sparse_weights", True),
        ({"truncate_double": True}, "truncate_double", True),
        ({"dla_sram_size": 1 << 20}, "tensorrt.dla_sram_size", 1 << 20),
        ({"hardware_compatible": True}, "tensorrt.hardware_compatibility", "ampere_plus"),
        ({"immutable_weights": True}, "tensorrt.refit", "none"),
        ({"immutable_weights": False}, "tensorrt.refit", "weights"),
        ({"num_avg_timing_iters": 4}, "tensorrt.avg_timing_iterations", 4),
        ({"l2_limit_for_tiling": -1}, "tensorrt.l2_limit_for_tiling", None),
        ({"tensorrt": {"strict_nans": True}, "sparse_weights": True}, "tensorrt.strict_nans", True),
        ({"settings": Settings(min_block_size=7), "precision": "fp16"}, "min_block_size", 7),
        ({"verify": {"rtol": 0.5}}, "verify.rtol", 0.5),
        ({"max_autotune": True}, "inductor.max_autotune", True),
        ({"inductor": {"max_autotune": True}, "workspace_size": 0}, "inductor.max_autotune", True),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_names_and_values(given: dict[str, Any], field: str, value: object) -> None:
    found: Any = library_options(given).settings
    for part in field.split("."):
        found = getattr(found, part)
    assert found == value


def test_the_cache(tmp_path: Path) -> None:
    options = library_options({"engine_cache_dir": str(tmp_path), "engine_cache_size": 1 << 20})
    assert options.cache is not None
    assert (options.cache.directory, options.cache.limit) == (tmp_path, 1 << 20)
    none = library_options({"cache_built_engines": False, "reuse_cached_engines": False})
    assert none.cache is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_autotun": True}, "did you mean 'max_autotune'"),
        ({"inductor": {"max_autotun": True}}, "max_autotun"),
        ({"min_blok_size": 3}, "did you mean 'min_block_size'"),
        ({"enabled_precision": {torch.float16}}, "did you mean 'enabled_precisions'"),
        ({"enabled_precisions": {torch.float16, torch.bfloat16}}, "give one of them"),
        ({"enabled_precisions": {torch.int8}}, "dtypes other than"),
        ({"device": "cuda:1"}, "CUDA_VISIBLE_DEVICES"),
        ({"use_fp32_acc": True}, "fp32_ops"),
        ({"timing_cache_path": "/x"}, "timing_cache"),
        ({"cache_built_engines": True, "reuse_cached_engines": False}, "same value"),
        ({"out_of_range": "pad"}, "error, eager, recompile"),
        ({"min_block_size": 0}, "min_block_size = 0"),
        ({"precision": "fp16", "enabled_precisions": {torch.bfloat16}}, "two names of precision"),
        ({"settings": {"compiler": "auto"}}, "give a builder.Settings"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_honoured_is_an_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        library_options(given)
    assert said in str(error.value)


@pytest.mark.parametrize("name", REFUSED)
def test_defaults_of_torch_tensorrt_ask_for_nothing(name: str) -> None:
    default, _ = REFUSED[name]
    assert library_options({name: default}).settings == Settings()


def test_every_alias_leads_to_a_setting() -> None:
    for name, alias in ALIASES.items():
        table, _, key = alias.field.partition(".")
        known = TensorRTSettings.model_fields if key else {*Settings.model_fields, "cache_dir", "cache_size"}
        assert (key or table) in known, name


def test_the_table_in_the_docs_is_complete() -> None:
    text = DOCS.read_text()
    listed = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    assert {*ALIASES, *REFUSED} <= listed
