"""Segments and a layout in, a `RepositoryPlan` out."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from builder.repository.assembly import (
    MODEL_FILE,
    Assembly,
    beside,
    described,
    model_config,
    model_file,
)
from builder.repository.backends import NATIVE
from builder.repository.config import render_config, validate_config
from builder.repository.ensemble import assemble_ensemble
from builder.repository.native import assemble_plan
from builder.repository.plan import RepositoryPlan

__all__ = ["assemble", "check_options", "lay_out"]


def assemble(parts: Assembly) -> RepositoryPlan:
    """Put a model together.

    Raises:
        RepositoryError: when the layout cannot hold the model after all, or the configuration breaks a rule of the server.
        SpecError: when an option names an input or output that is not there.
    """
    plan = _LAYOUTS[parts.layout.layout](parts)
    validate_config(plan.config, plan.name, parts.release)
    for member in plan.members:
        validate_config(member.config, member.name, parts.release)
    return plan


def check_options(parts: Assembly) -> tuple[str, list[str]]:
    """Check what the user set, before anything is compiled.

    Returns: the config.pbtxt that it comes to, without warm-up, "" where that is not known yet; and what of it the server takes, but does not do.

    Raises:
        RepositoryError, SpecError: as `assemble`.
    """
    if parts.layout.layout == "plan":
        config = model_config(parts, native=NATIVE[parts.layout.runners[0]])
    else:
        # The members of an ensemble get what is set for models that have instances.
        config = model_config(parts)
    text = render_config(dataclasses.replace(config, warmup=()))
    warnings = validate_config(text, parts.manifest.name, parts.release)
    if parts.layout.layout == "plan" and NATIVE[parts.layout.runners[0]].positional:
        # What clients will call the tensors is not known before the segments are.
        return "", warnings
    return text, warnings


def lay_out(plan: RepositoryPlan, root: Path) -> Path:
    """The version directory of a repository of hard links, to run the model as it will stand there.

    ONNX Runtime follows no symbolic link to weights.
    """
    version = root / plan.name / "1"
    version.mkdir(parents=True)
    sources = {version / path: source for path, source in plan.artifacts.items()}
    for member in plan.members:
        sources.update((root / member.name / path, s) for path, s in member.files.items() if isinstance(s, Path))
    for target, source in sources.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, target)
    return version


def _assemble_python(parts: Assembly) -> RepositoryPlan:
    """One Python model that runs all segments."""
    artifacts = {f"{name}/{path}": source for name, s in parts.files.items() for path, source in s.files.items()}
    segments = tuple(
        dataclasses.replace(s, artifact=f"{s.name}/{parts.files[s.name].artifact}") for s in parts.manifest.segments
    )
    return RepositoryPlan(
        manifest=described(parts, segments),
        config=render_config(model_config(parts)),
        artifacts={**artifacts, **(parts.preprocessing.files if parts.preprocessing else {})},
        texts={MODEL_FILE: model_file(parts)},
        beside=beside(parts),
    )


_LAYOUTS: dict[str, Callable[[Assembly], RepositoryPlan]] = {
    "plan": assemble_plan,
    "ensemble": assemble_ensemble,
    "python": _assemble_python,
}
