"""Rules: what a model is called, which backend runs it, and how large its batches are."""

from __future__ import annotations

from collections.abc import Iterator

from builder.repository.lint.model import Model
from builder.repository.lint.rule import Problem, rule

__all__ = ["RULES"]

# Source of this module: `ValidateModelConfig` and `AutoCompleteBackendFields` in triton-inference-server/core,
# model_config_utils.cc.

_PLATFORMS = {
    "tensorflow": ("tensorflow_graphdef", "tensorflow_savedmodel"),
    "tensorrt": ("tensorrt_plan",),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch", "torch_aoti"),
}


@rule("name-mismatch", "error")
def _name(model: Model) -> Iterator[Problem]:
    name = model.config.name
    if name and name != model.name:
        yield Problem(
            f"unexpected directory name '{model.name}' for model '{name}', directory name must equal model name",
            "rename the directory, or correct 'name'",
            ("name",),
        )


@rule("name-not-ascii", "warning")
def _ascii_name(model: Model) -> Iterator[Problem]:
    if model.backend == "python" and not model.name.isascii():
        yield Problem(
            f"the Python backend of a server in the C locale cannot load {model.name!r}, whose name is not ASCII",
            "name the directory with letters, digits, '-', '_' and '.'",
        )


@rule("backend-missing", "error")
def _backend_missing(model: Model) -> Iterator[Problem]:
    if model.backend or model.platform or model.is_ensemble:
        return
    if model.folder is None:
        message = f"must specify 'platform' or 'backend' for {model.name}"
    else:
        message = (
            f"Could not determine backend for model '{model.name}' with no backend in model configuration. "
            "Expected model name of the form 'model.<backend_name>'."
        )
    yield Problem(message, 'give the backend, for example backend: "onnxruntime"')


@rule("platform-unknown", "error")
def _platform_unknown(model: Model) -> Iterator[Problem]:
    if (
        not model.backend
        and model.platform not in ("", "ensemble")
        and not model.config.HasField("ensemble_scheduling")
    ):
        yield Problem(
            f"unexpected platform type '{model.platform}' for {model.name}",
            "give a platform that the server knows, such as tensorrt_plan or onnxruntime_onnx, or give 'backend'",
            ("platform",),
        )


@rule("platform-backend-pair", "error")
def _platform_pair(model: Model) -> Iterator[Problem]:
    known = _PLATFORMS.get(model.backend)
    if known is not None and model.platform not in known and model.platform != "ensemble":
        yield Problem(
            f"unexpected 'platform' and 'backend' pair, got:{model.platform}, {model.backend}",
            f"the backend {model.backend} takes the platform {' or '.join(known)}",
            ("platform",) if model.config.platform else ("backend",),
        )


@rule("max-batch-negative", "error")
def _negative_batch(model: Model) -> Iterator[Problem]:
    if model.config.max_batch_size < 0:
        yield Problem(
            f"'max_batch_size' must be non-negative value for {model.name}",
            "give the largest batch, or 0 for a model whose dims hold every dimension",
            ("max_batch_size",),
        )


@rule("max-batch-implicit", "warning")
def _implicit_batch(model: Model) -> Iterator[Problem]:
    if model.backend == "tensorrt" and ("max_batch_size",) not in model.positions:
        yield Problem(
            f"{model.name} gives no max_batch_size, so the server takes the first dimension of the engine's profile for "
            "the largest batch, even where that is no batch dimension",
            "write max_batch_size, 0 for none",
        )


RULES = (
    _name,
    _ascii_name,
    _backend_missing,
    _platform_unknown,
    _platform_pair,
    _negative_batch,
    _implicit_batch,
)
