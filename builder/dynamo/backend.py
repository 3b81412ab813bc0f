"""`torch.compile(model, backend="triton_repo")`."""

from __future__ import annotations

import copy
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import CompileContext

from builder.dynamo.foresight import foresee
from builder.dynamo.graph_module import GraphModule, call_values, size_outputs
from builder.dynamo.handed import COUNT, Argument, Frame, current_frame, hand_over, leaves
from builder.dynamo.ranges import KNOWN, RangedInputs, declared_inputs, dynamic_axes, ranged_inputs
from builder.dynamo.restart import mark, trace_again, traced, tracing_with
from builder.errors import BuilderError, ExportError, SpecError
from builder.gradients import wants_gradients, with_gradients
from builder.inprocess import CompiledGraph, Subject
from builder.inputs import Constant, Input
from builder.library_options import LibraryOptions, given_inputs, library_options
from builder.progress import Logged

__all__ = ["triton_repo"]

# Frames that have been traced again, by Dynamo's number of the compilation.
_again: set[str] = set()


def triton_repo(
    graph: torch.fx.GraphModule,
    examples: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend, as Dynamo calls it.

    Args:
        graph: of one frame, or of a part between graph breaks.
        examples: its arguments.
        options: of `torch.compile`: "inputs", and what `builder.compile` takes.
        mode: of `torch.compile`; there are none here.
    Returns:
        what runs instead of the graph. It compiles when it is first called, outside of Dynamo; an error of the user
        is raised then.
    """
    marked = traced()
    foresee(triton_repo, _marked_before)
    try:
        if mode is not None:
            raise SpecError(
                f"mode = {mode!r} is of torch's own backend",
                where="torch.compile",
                fix="use options={...}; cuda_graphs and max_autotune are among them",
            )
        return _prepared(graph, examples, options or {}, marked)
    except BuilderError as error:
        return _Raises(error)


def _marked_before(frame: Frame, options: Mapping[str, Any]) -> None:
    """Mark what has ranges in a frame that is to be traced."""
    given = _inputs(options)
    declared = _declared(given, frame)
    found = []
    for name, tensor in leaves(frame):
        axes = dynamic_axes(name, tensor, declared, frame, ranged=bool(given))
        if axes and not isinstance(tensor, torch.nn.Parameter):
            found.append((tensor, axes))
    tracing_with(found)


def _declared(given: Sequence[Input | Constant], frame: Frame) -> dict[str, Input]:
    return declared_inputs(given, frame) if given and not frame.resumed else {}


def _prepared(
    graph: torch.fx.GraphModule, examples: list[Any], options: Mapping[str, Any], marked: Mapping[int, Sequence[int]]
) -> Callable[..., Any]:
    given = _inputs(options)
    frame = current_frame()
    arguments = hand_over(graph, examples, frame)
    declared = _declared(given, frame)
    _trace_again_where_needed(arguments, declared, frame, marked, ranged=bool(given))
    on_gpu = any(isinstance(a.value, torch.Tensor) and a.value.device.type == "cuda" for a in arguments)
    settings = {name: value for name, value in options.items() if name != "inputs"}
    chosen = library_options(settings, device="cuda" if on_gpu else "cpu")
    tensors = [isinstance(_value(n), torch.Tensor) for n in graph.graph.output_node().args[0]]  # type: ignore[union-attr]
    sizes = None if all(tensors) else size_outputs(graph, tensors)
    if not any(tensors) or not any(a.kind == "input" for a in arguments):
        # It computes nothing from tensors of the call.
        return graph.forward
    reason = _refusal(arguments, all(tensors) or sizes is not None)
    if reason:
        _leave_to_pytorch(frame.label, chosen, ExportError(reason))
        return graph.forward
    ranged = ranged_inputs(arguments, declared, frame)
    for argument, item in zip((arguments[p] for p in ranged.positions), ranged.inputs, strict=True):
        if argument.kind == "input":
            KNOWN.add(argument.value, item.dims)
    return _Call(graph, arguments, ranged, tensors, sizes, frame, chosen)


def _refusal(arguments: Sequence[Argument], numbers: bool) -> str:
    """Why a graph cannot be compiled; empty where it may be.

    Args:
        numbers: whether every number that it returns follows from sizes.
    """
    strange = [f"{a.name!r} ({type(a.value).__name__})" for a in arguments if a.kind == "other"]
    if strange:
        return f"it takes {', '.join(strange)}, which no engine does"
    return "" if numbers else "it returns a number that it computes from tensors"


def _leave_to_pytorch(label: str, options: LibraryOptions, error: ExportError) -> None:
    """Say why, where the user lets it be so."""
    if options.settings.require_full_compilation:
        raise error
    warnings.warn(f"PyTorch runs {label}: {error}", stacklevel=3)


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else node


def _inputs(options: Any) -> tuple[Input | Constant, ...]:
    if not isinstance(options, Mapping):
        raise SpecError(
            f"options is of type {type(options).__name__}", where="torch.compile", fix='give a dict: {"inputs": [...]}'
        )
    given = options.get("inputs")
    return () if given is None else given_inputs(given, "options['inputs']")


def _trace_again_where_needed(
    arguments: Sequence[Argument],
    declared: Mapping[str, Input],
    frame: Frame,
    marked: Mapping[int, Sequence[int]],
    *,
    ranged: bool,
) -> None:
    compilation = str(CompileContext.current_compile_id())
    needed = False
    unmarked = []
    for argument in arguments:
        if argument.kind != "input":
            continue
        axes = dynamic_axes(argument.name, argument.value, declared, frame, ranged=ranged)
        known = marked.get(id(argument.value), ())
        fixed = [axis for axis in axes if isinstance(argument.fake.shape[axis], int) and axis not in known]
        if fixed:
            mark(argument.value, fixed)
            needed = True
            if argument.source.startswith("___from_numpy"):
                unmarked.append(argument.source)
    if needed and compilation not in _again:
        _again.add(compilation)
        trace_again("sizes have ranges", unmarked)
    _again.discard(compilation)


class _Raises:
    """Stands for a graph that cannot be compiled as the user asks."""

    def __init__(self, error: BuilderError) -> None:
        self._error = error

    def __call__(self, *args: Any) -> Any:
        raise copy.copy(self._error)


class _Call:
    """Runs a graph of Dynamo in engines, once it has been compiled at the first call.

    Args:
        graph, arguments: of Dynamo.
        ranged: what to compile for.
        tensors: which values that the graph returns are tensors.
        sizes: gives the others; None where there are none.
        frame: that the graph is of.
        options: settings, cache and what to do out of range.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        arguments: Sequence[Argument],
        ranged: RangedInputs,
        tensors: Sequence[bool],
        sizes: torch.fx.GraphModule | None,
        frame: Frame,
        options: LibraryOptions,
    ) -> None:
        self._graph = graph
        self._sizes = sizes
        self._tensors = tuple(tensors)
        self._options = options
        self._label = frame.label
        self._modules = [weakref.ref(m) for m in frame.modules]
        self._weights = [i for i, a in enumerate(arguments) if a.kind == "weight"]
        self._inputs = ranged.positions
        self._numbers = frozenset(i for i, a in enumerate(arguments) if a.kind == "number")
        self._arguments = [(a.kind, a.of, a.axis) for a in arguments]
        first = next(a.value for a in arguments if a.kind == "input")
        self._device: torch.device = first.device
        host = graph if first.device.type == "cpu" else _on_cpu(graph)
        kept = {id(a.buffers): a.buffers for a in arguments if a.buffers is not None}
        self._counted = tuple(kept.values())
        self._module = GraphModule(host, arguments, ranged.positions, tensors)
        self._ranged = ranged
        self._lock = threading.Lock()
        self._compiled: CompiledGraph | None = None
        self._eager = False
        self._returned: tuple[Any, ...] | None = None

    def __call__(self, *args: Any) -> Any:
        """As the graph's `forward`."""
        weights = [args[i] for i in self._weights]
        tensors = [args[i] for i in self._inputs]
        gradients = torch.is_grad_enabled() and wants_gradients(tensors, weights)
        if self._eager or (gradients and self._in_training()):
            return self._graph(*args)
        if self._numbers:
            tensors = [torch.tensor(t) if i in self._numbers else t for i, t in zip(self._inputs, tensors, strict=True)]
        compiled = self._compiled
        if compiled is None:
            compiled = self._compile(weights)
            if compiled is None:
                return self._graph(*args)
        outputs = (
            with_gradients(compiled, self._reference, tensors, weights) if gradients else compiled(tensors, weights)
        )
        self._remember(compiled, outputs)
        if self._sizes is None:
            return tuple(outputs)
        given, numbers = iter(outputs), iter(self._sizes(*args))
        return tuple(next(given) if is_tensor else next(numbers) for is_tensor in self._tensors)

    def _in_training(self) -> bool:
        return any(m is not None and m.training for m in (reference() for reference in self._modules))

    def _remember(self, compiled: CompiledGraph, outputs: Sequence[torch.Tensor]) -> None:
        if self._returned is None:
            self._returned = tuple(o.tensor.dims for o in compiled.running.manifest.outputs)
            for tensor, dims in zip(outputs, self._returned, strict=True):
                # The frame behind a graph break, where only the sizes of this may be used, is traced in this call.
                mark(tensor, [axis for axis, dim in enumerate(dims) if not dim.is_static])
        for tensor, dims in zip(outputs, self._returned, strict=True):
            KNOWN.add(tensor, dims)

    def _compile(self, weights: Sequence[torch.Tensor]) -> CompiledGraph | None:
        with self._lock:
            if self._compiled is not None or self._eager:
                return self._compiled
            subject = Subject(
                module=self._module,
                inputs=self._ranged.inputs,
                weights=self._module.weight_names,
                name=self._label.partition("(")[0],
                source=self._label,
                device=self._device,
                eager=self._reference,
                bind=self._module.bind,
                assumed=self._ranged.assumed,
                counts=self._counts if self._counted else None,
            )
            progress = Logged(aloud=self._options.debug)
            try:
                self._compiled = CompiledGraph(subject, weights, self._options, progress, verify=False)
            except ExportError as error:
                _leave_to_pytorch(self._label, self._options, error)
                self._eager = True
            return self._compiled

    def _counts(self) -> list[torch.Tensor]:
        return [buffers[COUNT] for buffers in self._counted]

    def _reference(self, tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = dict(zip(self._weights, weights, strict=True))
        plain = [int(t) if i in self._numbers else t for i, t in zip(self._inputs, tensors, strict=True)]
        results = self._graph(*call_values(self._arguments, self._inputs, plain, given))
        return [r for r, is_tensor in zip(results, self._tensors, strict=True) if is_tensor]


def _on_cpu(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with everything that it makes on the CPU, where it is exported."""
    moved = copy.deepcopy(graph)
    for module in moved.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            node.args = torch.fx.node.map_aggregate(node.args, _cpu)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, _cpu)
        module.recompile()
    return moved


def _cpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


foresee(triton_repo, _marked_before)
