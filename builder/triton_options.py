"""What a user may say of the repository: the `[triton]` and `[repository]` tables of a spec file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from builder.errors import SpecError
from builder.model_config import config_from_fields

__all__ = ["Fill", "Layout", "PreprocessOptions", "RepositoryOptions", "TritonOptions"]

Layout: TypeAlias = Literal["auto", "plan", "ensemble", "python"]
Fill: TypeAlias = bool | int | float

_DERIVED = "it follows from the model"
_OWNED = {
    "name": "give the model another name: --name, or name under [model]",
    "platform": f"{_DERIVED} and its layout: --layout",
    "backend": f"{_DERIVED} and its layout: --layout",
    "runtime": _DERIVED,
    "input": f"{_DERIVED}; labels, optional and ragged are keys of [triton]",
    "output": f"{_DERIVED}; labels is a key of [triton]",
    "default_model_filename": _DERIVED,
}


class TritonOptions(BaseModel):
    """What a user sets in config.pbtxt: Triton's own fields, over what the builder derives; and what needs more than a field.

    `TritonOptions(instance_group=[{"count": 2}])` and `TritonOptions(fields={"instance_group": [{"count": 2}]})` are the same.

    Args:
        fields: of Triton's model configuration, as its JSON form has them. A parameter may be a plain value.
        model_warmup: run the warm-up samples when a version is loaded, before it is ready.
        labels: a file with a label in each line, by output; relative to the spec.
        optional: inputs that a request may leave out, and the value that fills them then.
        ragged: inputs of requests that are joined to one batch although their sizes differ, and the value that the
            smaller ones are filled up with.
    Raises:
        SpecError: when a field is one that Triton does not have, or that the builder derives.
    Source: model_config.proto in triton-inference-server/common.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fields: dict[str, Any] = Field(default_factory=dict)
    model_warmup: StrictBool = True
    labels: dict[str, str] = Field(default_factory=dict)
    optional: dict[str, Fill] = Field(default_factory=dict)
    ragged: dict[str, Fill] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _split(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        own = {k: v for k, v in data.items() if k in cls.model_fields}
        fields = {**own.pop("fields", {}), **{k: v for k, v in data.items() if k not in cls.model_fields}}
        if isinstance(fields.get("response_cache"), bool):
            fields["response_cache"] = {"enable": fields["response_cache"]}
        return {**own, "fields": fields}

    @model_validator(mode="after")
    def _check(self) -> TritonOptions:
        for name in self.fields:
            if name in _OWNED:
                raise SpecError(f"{name} cannot be set", where="[triton]", fix=_OWNED[name])
        if not self.fields:
            return self
        config = self.message()
        if config.ensemble_scheduling.step:
            raise SpecError(
                "the steps of an ensemble cannot be set", where="[triton].ensemble_scheduling", fix=_DERIVED
            )
        if config.model_transaction_policy.decoupled:
            raise SpecError(
                "decoupled cannot be set: each request has one response",
                where="[triton].model_transaction_policy",
                fix="leave it out",
            )
        return self

    def message(self) -> Any:
        """`fields` as an `inference.ModelConfig`."""
        return config_from_fields(self.fields, "[triton]")


class RepositoryOptions(BaseModel):
    """How the model sits in the repository.

    Args:
        layout: "plan" is one engine under a native backend, "ensemble" a Triton model for each segment,
            "python" one Python model that runs all segments; "auto" picks one.
        triton: the release that will serve it ("26.09"); without one the repository is for any, so that "auto" is "python".
        fallback: what runs the fallback segments of an ensemble: "torch_aoti" compiles them for the PyTorch backend,
            "python" has a Python model run them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: Layout = "auto"
    triton: str | None = None
    fallback: Literal["auto", "torch_aoti", "python"] = "auto"


class PreprocessOptions(BaseModel):
    """A function that makes inputs of the model out of what clients send.

    Args:
        source: "file.py:function", relative to the spec. It takes arrays by keyword and returns a dict of arrays.
        inputs: what clients send, as DTYPE[DIM, ...]: `text = "bytes[B]"`. A dimension is a number, the name of one of the
            model's, or `*` for any size.
        files: that the function reads from beside it; relative to the spec.
        examples: requests, for the checks of the build, for the warm-up and for `smoke`; at least one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    inputs: dict[str, str] = Field(min_length=1)
    files: tuple[str, ...] = ()
    examples: tuple[dict[str, Any], ...] = Field(min_length=1)
