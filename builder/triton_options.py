"""`TritonOptions`: the `[triton]` table of a spec file, under Triton's own field names."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

__all__ = ["AllVersions", "InstanceGroup", "LatestVersions", "SpecificVersions", "TritonOptions", "VersionPolicy"]

_Positive = Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]
_Version = Annotated[StrictInt, Field(ge=1, le=2**63 - 1)]
_GpuId = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
_Key = Annotated[str, Field(min_length=1)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InstanceGroup(_Frozen):
    """How many instances of the model a server starts, and on what.

    Args:
        count: instances per GPU of a GPU group, in all of a CPU group.
        kind: KIND_AUTO is a GPU group where the server has a GPU, else a CPU group.
        gpus: ids of the GPUs; none means every GPU that the server has.
    Source: `ValidateInstanceGroup` in triton-inference-server/core, model_config_utils.cc.
    """

    count: _Positive = 1
    kind: Literal["KIND_AUTO", "KIND_GPU", "KIND_CPU"] = "KIND_AUTO"
    gpus: tuple[_GpuId, ...] = ()

    @model_validator(mode="after")
    def _check_gpus(self) -> InstanceGroup:
        if self.kind == "KIND_CPU" and self.gpus:
            raise ValueError("instance group has kind KIND_CPU but specifies one or more GPUs")
        _refuse_repeats("instance group", "gpu id", self.gpus)
        return self


class LatestVersions(_Frozen):
    """Serve the newest versions."""

    num_versions: _Positive = 1


class AllVersions(_Frozen):
    """Serve every version."""


class SpecificVersions(_Frozen):
    """Serve the versions listed, and no other."""

    versions: tuple[_Version, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_versions(self) -> SpecificVersions:
        _refuse_repeats("version policy", "version", self.versions)
        return self


class VersionPolicy(_Frozen):
    """Which versions a server loads; exactly one of the three is set."""

    latest: LatestVersions | None = None
    all: AllVersions | None = None
    specific: SpecificVersions | None = None

    @model_validator(mode="after")
    def _check_one(self) -> VersionPolicy:
        given = [name for name in ("latest", "all", "specific") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"version policy takes one of latest, all and specific, got {', '.join(given) or 'none'}")
        return self


class TritonOptions(_Frozen):
    """What a user may set in config.pbtxt; everything else there is derived from the model.

    Args:
        instance_group: empty leaves it to the server (one instance per GPU, or one on the CPU).
        version_policy: None leaves it to the server (the newest version).
        parameters: handed to the Python backend; they override those that the builder writes.
        model_warmup: run the warm-up samples when a version is loaded, before it is ready.
        response_cache: answer repeated requests from the server's cache, if it was started with one.
    Raises:
        pydantic.ValidationError: when a field is unknown or breaks one of the server's rules.
    Source: model_config.proto in triton-inference-server/common.
    """

    instance_group: tuple[InstanceGroup, ...] = ()
    version_policy: VersionPolicy | None = None
    parameters: dict[_Key, str] = Field(default_factory=dict)
    model_warmup: StrictBool = True
    response_cache: StrictBool = False


def _refuse_repeats(owner: str, word: str, values: tuple[int, ...]) -> None:
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(f"{owner} names {word} {repeated[0]} more than once")
