"""config.pbtxt: rendered from a template, read back, and checked before a server sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from builder.errors import RepositoryError
from builder.model_config import config_text
from builder.releases import Release
from builder.repository import templates
from builder.repository.lint import lint_config
from builder.repository.plan import CONFIG_NAME
from builder.types import DTYPES, TensorSpec

__all__ = [
    "TEMPLATE",
    "ConfigSample",
    "ConfigTensor",
    "EnsembleStep",
    "ModelConfig",
    "config_dims",
    "declared",
    "render_config",
    "validate_config",
]

TEMPLATE = "config.pbtxt.j2"

_ANY = -1


@dataclass(frozen=True, slots=True)
class ConfigTensor:
    """An input or output as config.pbtxt declares it.

    Args:
        name: that clients use.
        data_type: "TYPE_FP32".
        dims: without the batch; -1 for a size that varies.
        reshaped: the one element of `dims` is no dimension of the model's.
        optional, ragged: of inputs.
        labels: the file of labels of an output.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    reshaped: bool = False
    optional: bool = False
    ragged: bool = False
    labels: str = ""


@dataclass(frozen=True, slots=True)
class ConfigSample:
    """A warm-up request: for each input, name, data type, concrete dims, and its file, "" for zeros."""

    name: str
    batch_size: int
    tensors: tuple[tuple[str, str, tuple[int, ...], str], ...]


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """A call of a member: for its inputs and for its outputs, which of the ensemble's tensors they are."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What a config.pbtxt says.

    Args:
        name: the model's directory.
        backend, platform: as Triton wants them, together or one of both.
        max_batch_size: 0 where `dims` are the whole shapes.
        inputs, outputs: in the model's order.
        fields: an `inference.ModelConfig` with everything that has no argument of its own here.
        remark: why the batch size is what it is.
        steps: of an ensemble.
        max_inflight_requests: of an ensemble; 0 leaves it out.
        warmup: requests that the server runs before the model is ready.
    """

    name: str
    max_batch_size: int
    inputs: tuple[ConfigTensor, ...]
    outputs: tuple[ConfigTensor, ...]
    backend: str = ""
    platform: str = ""
    fields: Any = None
    remark: str = ""
    steps: tuple[EnsembleStep, ...] = ()
    max_inflight_requests: int = 0
    warmup: tuple[ConfigSample, ...] = field(default=())


def render_config(config: ModelConfig) -> str:
    """The text of config.pbtxt. Everything is said, so that the server derives nothing."""
    return templates.render(
        TEMPLATE,
        name=config.name,
        backend=config.backend,
        platform=config.platform,
        remark=config.remark,
        max_batch_size=config.max_batch_size,
        inputs=config.inputs,
        outputs=config.outputs,
        steps=config.steps,
        max_inflight_requests=config.max_inflight_requests,
        fields=list(config_text(config.fields)) if config.fields is not None else [],
        warmup=[
            {
                "name": sample.name,
                "batch_size": sample.batch_size,
                "tensors": [
                    {"name": name, "data_type": data_type, "dims": dims, "file": file}
                    for name, data_type, dims, file in sample.tensors
                ],
            }
            for sample in config.warmup
        ],
    )


def config_dims(spec: TensorSpec) -> tuple[int, ...]:
    """The whole shape of a tensor: -1 for a dimension that varies, (1,) for a scalar, which Triton cannot declare."""
    return tuple(dim.min if dim.is_static else _ANY for dim in spec.dims) or (1,)


def declared(spec: TensorSpec, *, batched: bool, name: str = "") -> ConfigTensor:
    """A tensor as config.pbtxt declares it; in a batch without its first dimension.

    What has no other is declared with one element, since Triton has no tensors without dimensions.
    """
    dims = config_dims(spec)[1:] if batched else config_dims(spec)
    return ConfigTensor(name or spec.name, DTYPES[spec.dtype].triton, dims or (1,), reshaped=not dims)


def validate_config(text: str, directory_name: str, release: Release | None = None) -> list[str]:
    """Check a config.pbtxt against the rules that the server enforces, and against those that it should.

    Args:
        text: the content of the file.
        directory_name: the model's directory in the repository.
        release: of the server, if it is known.
    Returns: what the server takes, but does not do what it says.
    Raises:
        RepositoryError: with every fault, in the server's own words where it has any.
    """
    findings = lint_config(text, directory_name, release=release)
    faults = [f for f in findings if f.severity == "error"]
    if faults:
        raise RepositoryError(
            "\n".join(f.message for f in faults),
            where=f"{CONFIG_NAME} of model {directory_name!r}",
            fix="\n".join(dict.fromkeys(f.fix for f in faults if f.fix))
            or "correct the [triton] table of the spec, or the model's inputs and outputs",
        )
    return [f"{f.message}; {f.fix}" for f in findings]
