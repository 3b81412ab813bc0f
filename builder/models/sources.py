"""Load a model from what the user named: Python code, an exported program, or a library's name for it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from builder.errors import BuilderError, SpecError, did_you_mean
from builder.explain import code_place
from builder.inputs import Input
from builder.models.loaded import LoadedModel
from builder.spec import FORMS
from builder.types import Range, canonical_dtype

__all__ = ["load_model"]


def load_model(source: str, *, arguments: Mapping[str, Any] | None = None, base: Path | None = None) -> LoadedModel:
    """Load the module that a source names.

    Random numbers start from a fixed seed, so that a module that is not given trained weights is the
    same one every time.

    Args:
        source: `package.module:callable`, `file.py:callable`, `FILE.pt2`, `hf:...`,
            `torchvision:NAME` or `timm:NAME`.
        arguments: keyword arguments for the callable or factory.
        base: the directory that relative paths start from; that of the spec file.
    Raises:
        SpecError: when there is no such model, or loading it raises.
    """
    base = base or Path.cwd()
    given = dict(arguments or {})
    torch.manual_seed(0)
    scheme, colon, rest = source.partition(":")
    if colon and scheme in _LIBRARIES:
        return _LIBRARIES[scheme](rest, given)
    if source.endswith(".pt2"):
        return _exported_program(base / source)
    if colon:
        return _from_callable(source, scheme, rest, given, base)
    raise SpecError(f"there is no model {source!r}", fix=FORMS)


def _from_callable(source: str, module_name: str, attribute: str, arguments: dict[str, Any], base: Path) -> LoadedModel:
    _make_importable(base)
    module = _import_file(base / module_name) if module_name.endswith(".py") else _import(module_name, source)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [n for n in dir(target) if not n.startswith("_")]
            raise SpecError(
                f"{module_name} has no {part!r}",
                where=source,
                fix=f"{did_you_mean(part, public)}name a callable that returns a torch.nn.Module",
            )
        target = getattr(target, part)
    if isinstance(target, torch.nn.Module):
        return LoadedModel(target)
    if not callable(target):
        raise SpecError(f"{attribute} is a {type(target).__name__}, not a callable", where=source, fix=FORMS)
    result = _called(target, arguments, source)
    if not isinstance(result, torch.nn.Module):
        raise SpecError(
            f"{attribute}() returned a {type(result).__name__}, not a torch.nn.Module",
            where=source,
            fix="return the module itself",
        )
    return LoadedModel(result)


def _make_importable(base: Path) -> None:
    """Let the user's modules be imported from the working directory and the spec's, as `python` would.

    For good, since a model may import more of them when it is called.
    """
    sys.path[:0] = [p for p in dict.fromkeys((str(Path.cwd()), str(base.resolve()))) if p not in sys.path]


def _import(name: str, source: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise SpecError(
                f"there is no Python module {error.name!r}",
                where=source,
                fix=f"install it, or run from the directory that holds it. {FORMS}",
            ) from error
        raise _failed(f"importing {name}", error, source) from error
    except Exception as error:
        raise _failed(f"importing {name}", error, source) from error


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise SpecError(f"there is no file {path}", fix="name the file relative to the spec file or working directory")
    name = f"triton_repo_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Classes defined in the file look their module up by name when they are traced.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(f"importing {path.name}", error, str(path)) from error
    return module


def _called(target: Callable[..., Any], arguments: dict[str, Any], source: str) -> Any:
    try:
        return target(**arguments)
    except BuilderError:
        raise
    except Exception as error:
        raise _failed(f"calling it{' with ' + str(arguments) if arguments else ''}", error, source) from error


def _failed(doing: str, error: BaseException, source: str) -> SpecError:
    place = code_place(error)
    return SpecError(
        f"{doing} raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": "),
        where=f"{source}{f' ({place})' if place else ''}",
        fix="make it work in plain Python first; --debug shows the traceback",
    )


def _exported_program(path: Path) -> LoadedModel:
    if not path.is_file():
        raise SpecError(f"there is no file {path}", fix="write one with torch.export.save(program, PATH)")
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise SpecError(
            f"{path.name} is not an exported program that this torch ({torch.__version__}) reads: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            where=str(path),
            fix="write it with torch.export.save(torch.export.export(...), PATH), with the same torch",
        ) from error
    module = program.module(check_guards=False)
    return LoadedModel(_named_forward(module, program), _inputs_of(program))


class _ProgramModule(torch.nn.Module):
    """An exported program as a module whose `forward` takes its inputs by position."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def train(self, mode: bool = True) -> _ProgramModule:
        # A graph was exported in one mode and cannot change it.
        self.training = False
        return self


def _named_forward(module: torch.nn.Module, program: torch.export.ExportedProgram) -> torch.nn.Module:
    """The module under the parameter names of the program, so that inputs are matched by name as with any other."""
    import inspect

    wrapped = _ProgramModule(module)
    names = [n.replace(".", "_") for n in program.graph_signature.user_inputs if isinstance(n, str)]
    in_args, in_kwargs = program.call_spec.in_spec.children() if program.call_spec.in_spec else (None, None)
    keywords = list(in_kwargs.context) if in_kwargs is not None and in_kwargs.num_leaves else []
    positional = in_args.num_leaves if in_args is not None else len(names)
    names = names[:positional] + [str(k) for k in keywords]

    def forward(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs).arguments
        values = [bound[n] for n in names]
        return module(*values[:positional], **dict(zip(keywords, values[positional:], strict=True)))

    signature = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])
    forward.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.forward = forward
    wrapped.training = False
    return wrapped


def _inputs_of(program: torch.export.ExportedProgram) -> tuple[Input, ...] | None:
    """The program's own ranges; None where a dimension has no upper bound, since then the user must say."""
    inputs = []
    user = set(program.graph_signature.user_inputs)
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name not in user or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        value = node.meta["val"]
        dims = []
        for size in value.shape:
            if isinstance(size, int):
                dims.append(Range(size, size, size))
                continue
            bounds = program.range_constraints.get(size.node.expr)
            if bounds is None or not bounds.upper.is_finite or bounds.upper > 2**20:
                return None
            low, high = max(1, int(bounds.lower)), int(bounds.upper)
            dims.append(Range(low, high, high, str(size.node.expr)))
        inputs.append(Input(shape=dims, dtype=canonical_dtype(value.dtype), name=node.name))
    return tuple(inputs)


def _library(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise SpecError(f"{package} is not installed", fix=f"pip install 'triton-repo-builder[{extra}]'") from error
    except Exception as error:
        raise SpecError(
            f"{package} is installed but does not import: {str(error).splitlines()[0]}",
            fix="install the version that matches your torch",
        ) from error


def _hugging_face(name: str, arguments: dict[str, Any]) -> LoadedModel:
    transformers = _library("transformers", "hf")
    transformers.utils.logging.disable_progress_bar()
    factory = getattr(transformers, str(arguments.pop("auto_class", "AutoModel")))
    try:
        module = factory.from_pretrained(name, **arguments)
    except Exception as error:
        raise _failed("from_pretrained", error, f"hf:{name}") from error
    config = module.config
    if hasattr(config, "use_cache"):
        config.use_cache = False
    main = getattr(module, "main_input_name", "input_ids")
    if main == "input_ids" and hasattr(config, "vocab_size"):
        longest = min(256, int(getattr(config, "max_position_embeddings", 256) or 256))
        shape = (Range(1, 8, 32, "B"), Range(min(8, longest), min(64, longest), longest, "T"))
        return LoadedModel(
            module,
            (
                Input(shape=shape, dtype="int64", name="input_ids", value_range=(0, config.vocab_size - 1)),
                Input(shape=shape, dtype="int64", name="attention_mask", value_range=(1, 1)),
            ),
        )
    size = getattr(config, "image_size", None)
    if main == "pixel_values" and isinstance(size, int):
        channels = int(getattr(config, "num_channels", 3))
        return LoadedModel(module, (Input(shape=(Range(1, 8, 32, "B"), channels, size, size), name=main),))
    return LoadedModel(module)


def _torchvision(name: str, arguments: dict[str, Any]) -> LoadedModel:
    library = _library("torchvision", "torchvision").models
    known = library.list_models()
    _known_name(name, known, "torchvision")
    module = _called(
        lambda **k: library.get_model(name, **{"weights": "DEFAULT", **k}), arguments, f"torchvision:{name}"
    )
    return LoadedModel(module, (Input(shape=(Range(1, 8, 32, "B"), 3, 224, 224), name="x"),))


def _timm(name: str, arguments: dict[str, Any]) -> LoadedModel:
    library = _library("timm", "timm")
    if not library.is_model(name):
        _known_name(name, library.list_models(), "timm")
    module = _called(lambda **k: library.create_model(name, **{"pretrained": True, **k}), arguments, f"timm:{name}")
    channels, height, width = getattr(module, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
    return LoadedModel(module, (Input(shape=(Range(1, 8, 32, "B"), channels, height, width), name="x"),))


def _known_name(name: str, known: list[str], library: str) -> None:
    if name not in known:
        raise SpecError(
            f"{library} has no model {name!r}", fix=f"{did_you_mean(name, known)}see the list of {library}'s models"
        )


_LIBRARIES: dict[str, Callable[[str, dict[str, Any]], LoadedModel]] = {
    "hf": _hugging_face,
    "torchvision": _torchvision,
    "timm": _timm,
}
