"""The module that `builder.compile` returns."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import OutputKind, TensorArgument

from builder.errors import SpecError
from builder.export import tensor_leaves
from builder.gradients import wants_gradients, with_gradients
from builder.inprocess import CompiledGraph, Subject
from builder.inputs import Constant, Input
from builder.library_options import LibraryOptions
from builder.profiles import Profile
from builder.progress import Progress
from builder.runtime.calling import CallForm, OutputForm
from builder.signature import match_inputs

__all__ = ["CompiledModule", "forms_of", "on_host", "source_of"]


class CompiledModule(torch.nn.Module):
    """Runs engines where it can, and the module that it was made of where engines would be wrong.

    Weights that change in place are taken before the next call. In training mode and under autocast PyTorch runs the
    module itself, with a warning at the first time; where gradients are wanted in eval mode, engines compute
    the outputs and PyTorch the gradients.

    Args:
        module: to compile; it stays as it is, and its weights are shared.
        inputs: of its `forward`.
        options: settings, cache and what to do out of range.
        progress: told about every stage.
        verify: compare with eager PyTorch over the whole range.
        more: fields of `Subject`.
    Raises:
        BuilderError: of the stage that fails.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Sequence[Input | Constant],
        options: LibraryOptions,
        progress: Progress,
        *,
        verify: bool,
        **more: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self.training = module.training
        self._inputs = tuple(inputs)
        self._options = options
        self._progress = progress
        self._verify = verify
        self._more = more
        self._told: set[str] = set()
        self._compile()

    def _compile(self) -> None:
        subject = _subject(self.module, self._inputs, **self._more)
        self._look()
        self._built_for = _kinds(self._weights())
        self._graph = CompiledGraph(subject, self._weights(), self._options, self._progress, verify=self._verify)
        self._form, self._output = forms_of(self._graph)
        self._plain = self._form.is_plain

    def _look(self) -> None:
        """Find out where the module keeps its weights."""
        self._places, self._tree = list(_places(self.module)), list(_tree(self.module))

    def _weights(self) -> list[torch.Tensor]:
        if any(children.get(name) is not child for children, name, child in self._tree):
            # A layer was exchanged for another.
            self._look()
        return [owner[name] for owner, name in self._places]

    @property
    def options(self) -> LibraryOptions:
        """Settings, cache and what to do out of range."""
        return self._options

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """As they were given."""
        return tuple(self._more.get("profiles", ()))

    @property
    def graph(self) -> CompiledGraph:
        """What runs, with the module's weights as they are now."""
        self._graph.follow(self._weights())
        return self._graph

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's own.

        Raises:
            RequestError: when the arguments do not fit what was compiled, and `out_of_range` is "error".
        """
        if self.module.training:
            return self._eagerly("training", "it is in training mode: call eval() to use the engines", args, kwargs)
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            return self._eagerly(
                "autocast", "autocast is on, and engines keep the precision they were built with", args, kwargs
            )
        if self._plain and not kwargs and len(args) == len(self._form.inputs):
            tensors: Sequence[torch.Tensor] = args
        else:
            tensors = self._form.tensors(args, kwargs)
        weights = self._weights()
        if torch.is_grad_enabled() and wants_gradients(tensors, weights):
            outputs = with_gradients(self._graph, self._reference, tensors, weights)
        else:
            outputs = self._graph(tensors, weights)
        return self._output.restore(outputs)

    def _reference(self, tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = {name: weight for (name, _), weight in zip(_named(self.module), weights, strict=True)}
        signature = self._graph.running.compilation.exported.eager.signature

        def forward(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(self.module, given, args, kwargs)

        return tensor_leaves(signature.call(forward, tensors))

    def _eagerly(self, key: str, reason: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if key not in self._told:
            self._told.add(key)
            warnings.warn(f"PyTorch runs the compiled module, since {reason}", stacklevel=3)
        return self.module(*args, **kwargs)

    def refit(self) -> None:
        """Take the module's weights as they are now.

        Needed after a change that no version counter sees: through `.data`, `.detach()` or `set_()`.

        Raises:
            BuilderError: when they cannot be taken.
        """
        self._graph.refit(self._weights())

    def train(self, mode: bool = True) -> CompiledModule:
        """As `torch.nn.Module.train`, of the module too."""
        super().train(mode)
        return self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> CompiledModule:
        """`to`, `half`, `cuda` and the like: for another dtype or device it is compiled again."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        now = _kinds(self._weights())
        if now != self._built_for:
            self._inputs = _converted(self._inputs, self._built_for, now)
            device = next((kind for _, kind in now), "cpu")
            settings = self._options.settings
            if settings.device != "auto":
                settings = settings.model_copy(update={"device": device})
            self._options = dataclasses.replace(self._options, settings=settings)
            self._compile()
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        """A copy of the module with its own weights; the engines are shared until its weights change."""
        other = CompiledModule.__new__(CompiledModule)
        torch.nn.Module.__init__(other)
        memo[id(self)] = other
        shared = ("_inputs", "_options", "_progress", "_verify", "_more", "_form", "_output", "_plain", "_built_for")
        for name in shared:
            setattr(other, name, getattr(self, name))
        other.module = copy.deepcopy(self.module, memo)
        other.training = self.training
        other._told = set()
        other._look()
        subject = _subject(other.module, self._graph.inputs, **self._more)
        other._graph = self._graph.copied(subject, other._weights())
        return other

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise SpecError("a compiled module cannot be pickled", fix="use builder.save and builder.load")

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Of the module, under its own names."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Into the module."""
        return self.module.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """As part of another module: `state_dict` gave the names without the wrapper."""
        for name in [n for n in state_dict if n.startswith(prefix)]:
            state_dict[f"{prefix}module.{name.removeprefix(prefix)}"] = state_dict.pop(name)


def forms_of(graph: CompiledGraph) -> tuple[CallForm, OutputForm]:
    """How a graph is called as its module."""
    exported = graph.running.compilation.exported
    signature = exported.eager.signature
    parameters = list(inspect.signature(exported.eager.module.forward).parameters.values())
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    form = CallForm(
        parameters=() if starred else tuple(p.name for p in parameters if p.kind is not p.VAR_KEYWORD),
        inputs=tuple(i.name or "" for i in exported.inputs),
        constants=dict(signature.constants()),
        integers=tuple(i.name or "" for i in exported.inputs if i.integer is not None),
    )
    spec = exported.program.call_spec.out_spec
    assert spec is not None
    specs = [s for s in exported.program.graph_signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    return form, OutputForm(spec, tuple(isinstance(s.arg, TensorArgument) for s in specs))


def _named(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _places(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str]]:
    """Where each weight is kept, so that a look at all of them is quick."""
    for name, _ in _named(module):
        owner, _, own = name.rpartition(".")
        held = module.get_submodule(owner)
        yield (held._parameters if own in held._parameters else held._buffers), own


def _tree(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.nn.Module]]:
    """Every module inside, and where it is kept."""
    for parent in module.modules():
        for name, child in parent._modules.items():
            if child is not None:
                yield parent._modules, name, child


def _kinds(weights: Sequence[torch.Tensor]) -> tuple[tuple[torch.dtype, str], ...]:
    return tuple(dict.fromkeys((w.dtype, w.device.type) for w in weights))


def _converted(
    inputs: Sequence[Input | Constant],
    before: Sequence[tuple[torch.dtype, str]],
    now: Sequence[tuple[torch.dtype, str]],
) -> tuple[Input | Constant, ...]:
    """Inputs of the dtype that all floating weights had follow them to their new one."""
    old = {dtype for dtype, _ in before if dtype.is_floating_point}
    new = {dtype for dtype, _ in now if dtype.is_floating_point}
    if len(old) != 1 or len(new) != 1:
        return tuple(inputs)
    (was,), (is_,) = old, new
    return tuple(i.with_dtype(is_) if isinstance(i, Input) and f"torch.{i.dtype}" == str(was) else i for i in inputs)


def source_of(module: torch.nn.Module) -> str:
    """Where a module comes from, for records."""
    return f"{type(module).__module__}:{type(module).__qualname__}"


def on_host(module: torch.nn.Module) -> torch.nn.Module:
    """The module, or where it is on a GPU a copy of it on the CPU: that is where it is exported."""
    if all(t.device.type == "cpu" for _, t in _named(module)):
        return module
    return copy.deepcopy(module).to("cpu").eval()


def _subject(module: torch.nn.Module, inputs: Sequence[Input | Constant], **more: Any) -> Subject:
    names = tuple(name for name, _ in _named(module))
    device = next((t.device for _, t in _named(module)), torch.device("cpu"))
    host = on_host(module)

    def bind(weights: Sequence[torch.Tensor]) -> None:
        if host is not module:
            with torch.no_grad():
                for (_, own), weight in zip(_named(host), weights, strict=True):
                    own.copy_(weight)

    signature = match_inputs(module, inputs)

    def eager(tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return tensor_leaves(signature.call(module, tensors))

    return Subject(
        module=host,
        inputs=tuple(inputs),
        weights=names,
        device=device,
        eager=eager,
        bind=bind,
        name=type(module).__name__,
        source=source_of(module),
        **more,
    )
