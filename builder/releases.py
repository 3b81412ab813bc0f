"""What is in each Triton release, what it can do, and whether what built a model fits it."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.errors import SpecError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FEATURES", "Release", "mismatches", "release", "releases"]

_TABLE = "triton_releases.toml"

FEATURES = frozenset(
    {
        "execution_context_allocation_strategy",
        "max_inflight_requests",
        "multi_device",
        "onnxruntime_bf16",
        "python_is_ready",
        "torch_aoti",
        "torch_aoti_batching",
        "torch_aoti_bf16",
        "torch_aoti_names",
    }
)


@dataclass(frozen=True, slots=True)
class Release:
    """One monthly release of the server's container image.

    Args:
        name: year and month ("26.09").
        server: the server's own version ("2.73").
        tensorrt, cuda, torch, onnxruntime, python: what the image holds, as far as it is known; torch is the one
            that NVIDIA builds, major and minor only.
        unsure: the fields above that are inferred from neighbouring releases, not read from the image or its
            documentation.
    """

    name: str
    server: str
    tensorrt: str | None = None
    cuda: str | None = None
    torch: str | None = None
    onnxruntime: str | None = None
    python: str | None = None
    unsure: frozenset[str] = frozenset()

    def can(self, feature: str) -> bool:
        """Whether the release has a feature.

        Args:
            feature: one of `FEATURES`.
        Raises:
            ValueError: when there is no such feature: a mistake of the program, not of its user.
        """
        if feature not in FEATURES:
            raise ValueError(f"there is no feature {feature!r}; there are {', '.join(sorted(FEATURES))}")
        return _month(self.name) >= _month(first_release(feature))


def releases() -> tuple[Release, ...]:
    """Every release that is known, oldest first.

    Source: the release notes, the framework support matrix and the build scripts of the server; the data file
        says for each release where its facts come from.
    """
    return tuple(_releases().values())


def release(name: str) -> Release:
    """The release of a name such as "26.09".

    Raises:
        SpecError: when it is not known.
    """
    known = _releases()
    if name not in known:
        raise SpecError(
            f"there is no Triton release {name!r}",
            fix=f"{did_you_mean(name, known)}known are {next(iter(known))} to {next(reversed(known))}",
        )
    return known[name]


def first_release(feature: str) -> str:
    """The name of the first release that has one of `FEATURES`."""
    return str(_data()["features"][feature])


def mismatches(release: Release, versions: Mapping[str, str]) -> list[str]:
    """What a release runs otherwise than what built a model.

    Args:
        release: where the model is to be served.
        versions: of the packages that built it: "torch", "tensorrt", "onnxruntime" and "python", each of which may
            be missing.
    Returns: a sentence for each, which says what will happen and what to do; none where all fits or is unknown.
    """
    return [
        *_tensorrt(release, versions.get("tensorrt")),
        *_torch(release, versions.get("torch")),
        *_onnxruntime(release, versions.get("onnxruntime")),
        *_python(release, versions.get("python")),
    ]


def _tensorrt(release: Release, built: str | None) -> Iterator[str]:
    if not _agree(release.tensorrt, built, 4):
        yield (
            f"{_has(release, 'tensorrt', 'TensorRT')} and TensorRT {built} built the model: a plan loads only in the "
            "build of TensorRT that wrote it, so the server refuses it; build where that version is installed"
        )


def _torch(release: Release, built: str | None) -> Iterator[str]:
    if not _agree(release.torch, built, 2):
        yield (
            f"{_has(release, 'torch', 'PyTorch')} and PyTorch {built} built the model: a compiled .pt2 is tied to the "
            "PyTorch that wrote it, so it may not load or may crash; build with that version"
        )


def _onnxruntime(release: Release, built: str | None) -> Iterator[str]:
    there, here = _numbers(release.onnxruntime), _numbers(built)
    if there and here and there < here[: len(there)]:
        yield (
            f"{_has(release, 'onnxruntime', 'ONNX Runtime')} and ONNX Runtime {built} built the model: the older one "
            "may not know the model's operator versions and refuse it; build with that version"
        )


def _python(release: Release, built: str | None) -> Iterator[str]:
    if not _agree(release.python, built, 2):
        yield (
            f"{_has(release, 'python', 'Python')} and Python {built} built the model: packages and environments of "
            "another minor version do not import in a Python model there; build with that version"
        )


def _has(release: Release, field: str, word: str) -> str:
    inferred = " (inferred)" if field in release.unsure else ""
    return f"Triton {release.name} has {word} {getattr(release, field)}{inferred}"


def _agree(there: str | None, here: str | None, components: int) -> bool:
    """Whether two versions are equal in the components that both name; what is unknown agrees."""
    pairs = zip(_numbers(there)[:components], _numbers(here)[:components], strict=False)
    return all(one == other for one, other in pairs)


def _numbers(version: str | None) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(map(int, found.group().split("."))) if found else ()


def _month(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split(".")))


@functools.cache
def _releases() -> dict[str, Release]:
    rows = _data()["releases"]
    return {name: _row(name, rows[name]) for name in sorted(rows, key=_month)}


def _row(name: str, row: dict[str, str | list[str]]) -> Release:
    facts = {key: str(value) for key, value in row.items() if key not in ("sources", "unsure")}
    return Release(name, unsure=frozenset(row.get("unsure", ())), **facts)


@functools.cache
def _data() -> dict[str, dict[str, dict[str, str | list[str]]]]:
    return tomllib.loads((Path(__file__).parent / _TABLE).read_text(encoding="utf-8"))
