"""`BuildSpec`: what to build, from a TOML file, from the command line, or both."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from builder.dims import parse_bound
from builder.errors import SpecError, did_you_mean
from builder.inputs import Constant, Input, parse_input
from builder.profiles import Profile, parse_profile
from builder.settings import Settings
from builder.triton_options import PreprocessOptions, RepositoryOptions, TritonOptions
from builder.types import Range

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FORMS", "BuildSpec", "example_specs", "find_spec", "validated"]

FORMS = (
    "MODEL is the name of a spec in examples/, a spec file (model.toml), package.module:callable, "
    "path/file.py:callable, an exported program (model.pt2), hf:ID_OR_DIR, torchvision:NAME or timm:NAME"
)

_Model = TypeVar("_Model", bound=BaseModel)

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


class _File(BaseModel):
    """A spec file, table by table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    class Model(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")

        source: str
        name: str | None = Field(default=None, pattern=_NAME)
        arguments: dict[str, Any] = {}

    model: Model
    inputs: dict[str, str | bool | int | float] = {}
    profile: tuple[dict[str, str | int], ...] = ()
    outputs: tuple[str, ...] | None = None
    bounds: dict[str, str | int] = {}
    settings: Settings = Settings()
    repository: RepositoryOptions = RepositoryOptions()
    triton: TritonOptions = TritonOptions()
    preprocess: PreprocessOptions | None = None


class BuildSpec(BaseModel):
    """Everything that a build depends on besides the target.

    Args:
        name: the model's name in the repository.
        source: of the model, as `builder.models` takes it.
        arguments: keyword arguments for the source's callable.
        base: the directory that relative paths in `source` start from.
        inputs: None takes those that the source suggests.
        profiles: optimization profiles, in order; without any there is one, of the declared ranges.
        outputs: names for the outputs, in order.
        bounds: ranges of the outputs' sizes that depend on the data, by output and axis ("boxes[0]").
        settings, repository, triton, preprocess: as the tables of the same name in a spec file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = Field(pattern=_NAME)
    source: str
    arguments: dict[str, Any] = {}
    base: Path
    inputs: tuple[Input | Constant, ...] | None = None
    profiles: tuple[Profile, ...] = ()
    outputs: tuple[str, ...] | None = None
    bounds: dict[str, Range] = {}
    settings: Settings = Settings()
    repository: RepositoryOptions = RepositoryOptions()
    triton: TritonOptions = TritonOptions()
    preprocess: PreprocessOptions | None = None

    def labels(self) -> dict[str, Path]:
        """The file of labels of each output that has one.

        Raises:
            SpecError: when a file is not there.
        """
        found = {output: self.base / path for output, path in self.triton.labels.items()}
        for output, path in found.items():
            if not path.is_file():
                raise SpecError(
                    f"there is no file {path}", where=f"[triton].labels.{output}", fix="name a file of labels"
                )
        return found


def find_spec(
    model: str,
    *,
    name: str | None = None,
    inputs: Sequence[str] = (),
    profiles: Sequence[str] = (),
    output_names: Sequence[str] | None = None,
    bounds: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    verify: Mapping[str, Any] | None = None,
    repository: Mapping[str, Any] | None = None,
) -> BuildSpec:
    """The spec that MODEL stands for, with the command line's options over it.

    Args:
        model: a spec's name or file, or a source of a model.
        name: of the model in the repository, instead of the spec's or the source's.
        inputs: as text; each replaces the spec's input of that name, unnamed ones replace all.
        profiles: as text ("B=1, T=8:64:256"); together they replace the spec's.
        output_names: for the outputs, in order.
        bounds: as text ("boxes[0]=0:100:300"); each replaces the spec's of that name.
        overrides, verify, repository: settings that were given on the command line, those of verification, and of the
            repository.
    Raises:
        SpecError: when there is no such model, or a key or value is wrong; names its place.
    """
    path = _spec_file(model)
    if path is not None:
        file = _read(path)
        spec: dict[str, Any] = {
            "name": file.model.name or path.stem,
            "source": file.model.source,
            "arguments": file.model.arguments,
            "base": path.parent,
            "inputs": tuple(_input(n, v, f"{path}: inputs.{n}") for n, v in file.inputs.items()) or None,
            "profiles": tuple(parse_profile(p, f"{path}: profile {i}") for i, p in enumerate(file.profile)),
            "outputs": file.outputs,
            "bounds": {n: parse_bound(n, str(t), f"{path}: bounds.{n}") for n, t in file.bounds.items()},
            "settings": file.settings,
            "repository": file.repository,
            "triton": file.triton,
            "preprocess": file.preprocess,
        }
    else:
        _plausible(model)
        spec = {"name": _default_name(model), "source": model, "base": Path.cwd()}
    if name is not None:
        spec["name"] = name
    if inputs:
        spec["inputs"] = _overridden(spec.get("inputs"), [parse_input(t) for t in inputs])
    if profiles:
        spec["profiles"] = tuple(parse_profile(p, f"--profile {p!r}") for p in profiles)
    if bounds:
        given = (text.partition("=") for text in bounds)
        spec["bounds"] = {
            **spec.get("bounds", {}),
            **{n.strip(): parse_bound(n.strip(), t, f"--bound '{n}={t}'") for n, _, t in given},
        }
    if output_names:
        spec["outputs"] = tuple(output_names)
    if overrides or verify:
        base = spec.get("settings", Settings()).model_dump()
        merged = {**base, **(overrides or {}), "verify": {**base["verify"], **(verify or {})}}
        spec["settings"] = validated(Settings, merged, "the command line")
    if repository:
        merged = {**spec.get("repository", RepositoryOptions()).model_dump(), **repository}
        spec["repository"] = validated(RepositoryOptions, merged, "the command line")
    return validated(BuildSpec, spec, str(path or model))


def _input(name: str, value: str | bool | int | float, where: str) -> Input | Constant:
    return parse_input(value, name=name, where=where) if isinstance(value, str) else Constant(value, name)


def _overridden(old: tuple[Input | Constant, ...] | None, new: list[Input | Constant]) -> tuple[Input | Constant, ...]:
    if old is None or any(i.name is None for i in new):
        return tuple(new)
    named = {i.name: i for i in new}
    kept = [named.pop(i.name, i) for i in old]
    return (*kept, *named.values())


def example_specs() -> dict[str, Path]:
    """The specs in `examples/`, of the working directory and of the source tree, by name."""
    places = (Path.cwd() / "examples", Path(__file__).resolve().parent.parent / "examples")
    return {p.stem: p for place in reversed(places) if place.is_dir() for p in sorted(place.glob("*.toml"))}


def _spec_file(model: str) -> Path | None:
    if model.endswith(".toml"):
        if not Path(model).is_file():
            raise SpecError(f"there is no spec file {model!r}", fix=_known(Path(model).stem))
        return Path(model)
    return example_specs().get(model)


def _plausible(model: str) -> None:
    if ":" not in model and not model.endswith(".pt2"):
        raise SpecError(f"there is no model {model!r}", fix=f"{_known(model)}\n{FORMS}")


def _known(name: str) -> str:
    known = example_specs()
    return f"{did_you_mean(name, known)}specs here: {', '.join(known) or 'none'}"


def _default_name(source: str) -> str:
    text = source.removesuffix(".pt2").replace("\\", "/").rstrip("/")
    text = text.rpartition(":")[2] if ":" in text else text
    text = text.rpartition("/")[2]
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in text).strip("_-") or "model"


def _read(path: Path) -> _File:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"the spec file cannot be read: {error.strerror}", where=str(path)) from error
    except ValueError as error:
        raise SpecError(f"the spec file is not valid TOML: {error}", where=str(path)) from error
    return validated(_File, data, str(path))


def validated(model: type[_Model], data: Mapping[str, Any], where: str) -> _Model:
    """A pydantic model of the data; its errors as one SpecError that names each key's place and value.

    Raises:
        SpecError: when a key is unknown or a value is wrong.
    """
    try:
        return model.model_validate(dict(data))
    except SpecError as error:
        raise SpecError(error.what, where=f"{where}: {error.where}", fix=error.fix) from None
    except ValidationError as error:
        problems = error.errors(include_url=False)
    lines, fixes = [], []
    for problem in problems:
        place = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            known = _fields_at(model, problem["loc"][:-1])
            lines.append(f"unknown key {place}")
            fixes.append(f"{did_you_mean(str(problem['loc'][-1]), known)}the keys here are {', '.join(known)}")
        elif problem["type"] == "missing":
            lines.append(f"{place} is missing")
        else:
            lines.append(f"{place} = {problem['input']!r}: {problem['msg'].lower()}")
    raise SpecError("; ".join(lines), where=where, fix="\n".join(dict.fromkeys(fixes)) or None)


def _fields_at(model: type[Any], place: tuple[Any, ...]) -> list[str]:
    for part in place:
        field = getattr(model, "model_fields", {}).get(part)
        if field is None or not hasattr(field.annotation, "model_fields"):
            return []
        model = field.annotation
    return list(getattr(model, "model_fields", {}))
