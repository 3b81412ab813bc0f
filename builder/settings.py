"""`Settings`: everything that decides how a model is split, compiled and verified."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Settings", "VerifySettings"]

_FROZEN = ConfigDict(frozen=True, extra="forbid")


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


class Settings(BaseModel):
    """Settings of a build, under the same names in Python, in a spec file and on the command line.

    Args:
        compiler: "auto", or the name of an engine compiler ("onnxruntime", "tensorrt_rtx").
        min_block_size: engine segments with fewer operators are left to PyTorch.
        torch_executed_ops: operators that PyTorch runs ("aten::gelu", "torch.ops.aten.gelu").
        torch_executed_modules: modules that PyTorch runs with all inside, by their name in the model
            ("encoder.layers.0") or their class ("torch.nn.LayerNorm", "LayerNorm").
        require_full_compilation: fail where an operator would fall back to PyTorch.
    """

    model_config = _FROZEN

    compiler: str = "auto"
    min_block_size: Annotated[int, Field(ge=1)] = 1
    torch_executed_ops: tuple[str, ...] = ()
    torch_executed_modules: tuple[str, ...] = ()
    require_full_compilation: bool = False
    verify: VerifySettings = VerifySettings()
