"""What the command does, for programs: compile, plan, build, save, load and publish."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from builder.cache.options import CacheOptions
from builder.compilation import work_directory
from builder.compiled_module import CompiledModule, forms_of, on_host, source_of
from builder.console import show_plan
from builder.errors import SpecError
from builder.export import ExportedModel, export_model
from builder.inputs import Constant, Input
from builder.library_options import LibraryOptions, given_inputs, library_options
from builder.partition.plan import PartitionPlan
from builder.pipeline import BuildResult, plan_exported
from builder.pipeline import build as build_spec
from builder.pipeline import plan as plan_spec
from builder.profiles import Profile, parse_profile
from builder.progress import Logged
from builder.publishing import PublishOptions
from builder.saved import LoadedModule, load_module, save_files
from builder.spec import BuildSpec, find_spec, validated
from builder.triton_options import RepositoryOptions, TritonOptions

__all__ = ["build", "compile", "load", "plan", "publish", "save"]

_Module = TypeVar("_Module", bound=torch.nn.Module)

Inputs = Sequence["Input | Constant | str"]


def compile(
    module: torch.nn.Module,
    inputs: Inputs,
    *,
    output_names: Sequence[str] | None = None,
    profiles: Sequence[Profile | str] = (),
    verify: bool | dict[str, Any] = True,
    **settings: Any,
) -> CompiledModule | torch.nn.Module:
    """A module that runs compiled segments in this process.

    Args:
        module: to compile; put into eval mode. The result shares its weights.
        inputs: of `forward`, as `Input`s or as text ("x=float32[B=1:8:32, 16]").
        output_names: for the outputs, in order.
        profiles: optimization profiles ("B=1, T=8:64:256").
        verify: compare with eager PyTorch over the whole range; a mapping gives tolerances and points.
        settings: fields of `Settings`, `out_of_range`, `cache_dir`, `cache_size`, `debug`, `dryrun`, or Torch-TensorRT's
            names (docs/library.md).
    Returns:
        the compiled module; with `dryrun=True` the module itself, after the plan has been printed.
    Raises:
        SpecError: for a wrong input or option.
        BuilderError: of the stage that fails.
    """
    options = _options(module, settings, verify)
    progress = Logged(aloud=options.debug)
    given = given_inputs(inputs, "inputs")
    if module.training:
        progress.warn("the module was in training mode; it was put into eval mode")
        module.eval()
    if options.dryrun:
        show_plan(plan(module, inputs, output_names=output_names, profiles=profiles, **settings))
        return module
    return CompiledModule(
        module,
        given,
        options,
        progress,
        verify=verify is not False,
        outputs=tuple(output_names) if output_names else None,
        profiles=_profiles(profiles),
    )


def plan(
    model: torch.nn.Module | str,
    inputs: Inputs = (),
    *,
    output_names: Sequence[str] | None = None,
    profiles: Sequence[Profile | str] = (),
    **settings: Any,
) -> PartitionPlan:
    """How a model would be split; compiles nothing.

    Args:
        model: a module, or whatever the command takes as MODEL.
        inputs, output_names, profiles, settings: as for `compile`.
    Raises:
        BuilderError: as `compile` does up to the partition.
    """
    if isinstance(model, str):
        spec = _spec(model, inputs, output_names, profiles, None, settings)
        return plan_spec(spec, Logged())
    options = _options(model, settings, None)

    def exported() -> ExportedModel:
        return export_model(
            on_host(model), given_inputs(inputs, "inputs"), output_names=output_names, profiles=_profiles(profiles)
        )

    return plan_exported(exported, options.settings, Logged(aloud=options.debug))


def build(
    model: torch.nn.Module | str,
    inputs: Inputs = (),
    *,
    root: str | os.PathLike[str] = "model_repo",
    name: str | None = None,
    output_names: Sequence[str] | None = None,
    profiles: Sequence[Profile | str] = (),
    verify: dict[str, Any] | None = None,
    repository: RepositoryOptions | dict[str, Any] | None = None,
    triton: TritonOptions | dict[str, Any] | None = None,
    publishing: PublishOptions | None = None,
    **settings: Any,
) -> BuildResult:
    """Build a model and publish it into a model repository, as the command does.

    Args:
        model: a module, or whatever the command takes as MODEL.
        inputs: of `forward`; for a MODEL they replace those of its spec, by name.
        root: the repository, or a URL of an object store.
        name: of the model in the repository.
        verify: tolerances and points, as in a spec file.
        repository, triton: as the tables of a spec file.
        publishing: how the version gets to those who use it.
        output_names, profiles, settings: as for `compile`.
    Raises:
        BuilderError: of the stage that fails; then nothing was published.
    """
    extra = {"repository": repository, "triton": triton}
    if isinstance(model, str):
        spec = _spec(
            model, inputs, output_names, profiles, name, {**settings, **({"verify": verify} if verify else {})}
        )
        return _published(_with(spec, extra), root, library_options(settings), publishing)
    options = _options(model, settings, verify)
    spec = _with(_module_spec(model, options, given_inputs(inputs, "inputs"), output_names, profiles, name), extra)
    return _published(spec, root, options, publishing, model)


def publish(
    compiled: CompiledModule,
    root: str | os.PathLike[str] = "model_repo",
    *,
    name: str | None = None,
    repository: RepositoryOptions | dict[str, Any] | None = None,
    triton: TritonOptions | dict[str, Any] | None = None,
    publishing: PublishOptions | None = None,
) -> BuildResult:
    """Publish what `compile` gave, with its weights as they are now. Engines come from the engine cache.

    Args:
        compiled: what `compile` gave.
        root, name, repository, triton, publishing: as for `build`.
    Raises:
        BuilderError: of the stage that fails; then nothing was published.
    """
    if not isinstance(compiled, CompiledModule):
        raise SpecError(
            f"a {type(compiled).__name__} was not compiled here", fix="publish what builder.compile returns"
        )
    given = compiled.options
    exported = compiled.graph.running.compilation.exported
    spec = BuildSpec(
        name=name or type(compiled.module).__name__,
        source=source_of(compiled.module),
        base=Path.cwd(),
        inputs=(*compiled.graph.inputs, *(Constant(v, n) for n, v in exported.eager.signature.constants())),
        outputs=exported.output_names,
        profiles=compiled.profiles,
        settings=given.settings,
    )
    return _published(
        _with(spec, {"repository": repository, "triton": triton}), root, given, publishing, compiled.module
    )


def _published(
    spec: BuildSpec,
    root: str | os.PathLike[str],
    options: LibraryOptions,
    publishing: PublishOptions | None,
    module: torch.nn.Module | None = None,
) -> BuildResult:
    with work_directory() as work:
        return build_spec(
            spec,
            root=root if isinstance(root, str) else Path(root),
            cache=options.cache or CacheOptions(work / "cache"),
            progress=Logged(aloud=options.debug),
            publishing=publishing,
            module=None if module is None else on_host(module),
        )


def save(compiled: CompiledModule, path: str | os.PathLike[str]) -> None:
    """Write a compiled module into one file, with its weights as they are now. It holds no pickle.

    Args:
        compiled: what `compile` gave.
        path: of the file; it is replaced as a whole.
    Raises:
        SpecError: when it is something else.
        RepositoryError: when the file cannot be written.
    """
    if not isinstance(compiled, CompiledModule):
        raise SpecError(f"a {type(compiled).__name__} was not compiled here", fix="save what builder.compile returns")
    graph = compiled.graph
    # Another thread's call may take other weights in the meantime.
    running = graph.running
    files = {f"{c.segment.name}/{name}": file for c in running.compilation.segments for name, file in c.files.items()}
    form, output = forms_of(graph)
    save_files(Path(path), running.manifest, files, form, output)


def load(path: str | os.PathLike[str], device: str | None = None) -> LoadedModule:
    """Read what `save` wrote. Nothing of the original module is needed, and no code but the engines' own is run.

    Args:
        path: of the file.
        device: "cpu" or "cuda:N"; None takes what its engines were built for.
    Raises:
        RepositoryError: when the file is damaged, or is none of ours.
        CompileError: when its engines cannot be loaded here.
    """
    return load_module(Path(path), device)


def _options(module: torch.nn.Module, given: dict[str, Any], verify: bool | dict[str, Any] | None) -> LibraryOptions:
    """Engines are for the device that the module is on, where nothing else is asked for."""
    if not isinstance(module, torch.nn.Module):
        raise SpecError(f"a {type(module).__name__} is given", fix="give a torch.nn.Module")
    on_gpu = any(t.device.type == "cuda" for t in (*module.parameters(), *module.buffers()))
    extra = {"verify": verify} if isinstance(verify, dict) else {}
    return library_options({**given, **extra}, device="cuda" if on_gpu else "cpu")


def _profiles(profiles: Sequence[Profile | str]) -> tuple[Profile, ...]:
    return tuple(parse_profile(p, f"profile {p!r}") if isinstance(p, str) else p for p in profiles)


def _module_spec(
    module: torch.nn.Module,
    options: LibraryOptions,
    inputs: tuple[Input | Constant, ...],
    output_names: Sequence[str] | None,
    profiles: Sequence[Profile | str],
    name: str | None,
) -> BuildSpec:
    data = {
        "name": name or type(module).__name__,
        "source": source_of(module),
        "base": Path.cwd(),
        "inputs": inputs,
        "outputs": tuple(output_names) if output_names else None,
        "profiles": _profiles(profiles),
        "settings": options.settings,
    }
    return validated(BuildSpec, data, "builder.build")


def _spec(
    model: str,
    inputs: Inputs,
    output_names: Sequence[str] | None,
    profiles: Sequence[Profile | str],
    name: str | None,
    settings: dict[str, Any],
) -> BuildSpec:
    """Of a MODEL, with what is given laid over it."""
    spec = find_spec(
        model, name=name, inputs=[str(i) for i in given_inputs(inputs, "inputs")], output_names=output_names
    )
    changes: dict[str, Any] = {"settings": library_options({"settings": spec.settings, **settings}).settings}
    if profiles:
        changes["profiles"] = _profiles(profiles)
    return spec.model_copy(update=changes)


def _with(spec: BuildSpec, tables: dict[str, Any]) -> BuildSpec:
    kinds: dict[str, type[Any]] = {"repository": RepositoryOptions, "triton": TritonOptions}
    changes = {
        name: validated(kinds[name], value, name) if isinstance(value, dict) else value
        for name, value in tables.items()
        if value is not None
    }
    return spec.model_copy(update=changes)
