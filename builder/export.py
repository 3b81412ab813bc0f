"""A module and its Inputs in, an exported program with symbolic sizes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from builder.errors import BuilderError, ExportError, SpecError
from builder.explain import check_runs, explained
from builder.hashing import Digest, tensor_bytes
from builder.inputs import Constant, Input
from builder.profiles import Profile, profiled_inputs
from builder.signature import Signature, listed, match_inputs
from builder.symbols import Bound, matched_bounds, symbol_ranges, user_placeholders
from builder.tracing import own_name, trace, trace_sizes
from builder.types import Range

__all__ = ["EagerModel", "ExportedModel", "export_model", "tensor_leaves"]


@dataclass(frozen=True, slots=True)
class EagerModel:
    """A module and how it is called: the reference that a compiled model is compared with.

    Args:
        module: in eval mode.
        signature: what `forward` takes.
        output_names: one per output tensor, in the order in which `forward` returns them.
        profiles: the inputs in each optimization profile; one, with the declared ranges, where the user has
            given none.
    """

    module: torch.nn.Module
    signature: Signature
    output_names: tuple[str, ...]
    profiles: tuple[tuple[Input, ...], ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        """In the order of `forward`, each with a name and known ranges."""
        return self.signature.inputs

    def weights_digest(self) -> str:
        """blake3 of all parameters and persistent buffers, with their names, as hexadecimal digits."""
        digest = Digest()
        for name, tensor in sorted(self.module.state_dict().items()):
            if isinstance(tensor, torch.Tensor):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                digest.update(tensor_bytes(tensor.contiguous()))
        return digest.hexdigest()

    def __call__(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Outputs by name, for tensors in the order of the inputs."""
        with torch.inference_mode():
            result = self.signature.call(self.module, tensors)
        return dict(zip(self.output_names, tensor_leaves(result), strict=True))


def tensor_leaves(result: Any) -> list[torch.Tensor]:
    """The tensors in what `forward` returns, in order."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """An exported program, and the eager model that it was made of.

    Args:
        eager: the reference; its inputs are in the order of the program's user inputs.
        program: functional, with parameters lifted to inputs.
        bounds: of the outputs' sizes that depend on the data.
        notes: what the user should know but need not act on.
    """

    eager: EagerModel
    program: ExportedProgram
    bounds: tuple[Bound, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs of the eager model."""
        return self.eager.inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of its outputs."""
        return self.eager.output_names

    @property
    def profiles(self) -> tuple[tuple[Input, ...], ...]:
        """The inputs in each optimization profile."""
        return self.eager.profiles


def export_model(
    module: torch.nn.Module,
    inputs: Sequence[Input | Constant],
    *,
    output_names: Sequence[str] | None = None,
    profiles: Sequence[Profile] = (),
    bounds: Mapping[str, Range] | None = None,
) -> ExportedModel:
    """Export a module for the whole range of its inputs.

    Args:
        module: put into eval mode if it is not.
        inputs: matched to the parameters of `forward` by name, or by position without names; a name
            with dots is a part of an argument (see `builder.signature`).
        output_names: names for the outputs, in order; else the keys of a dict output,
            "output" for a single tensor, "output_0", "output_1", ... for a tuple.
        profiles: parts of the ranges that engines are tuned for.
        bounds: ranges of sizes that depend on the data, by output and axis ("boxes[0]").
    Raises:
        SpecError: when the inputs do not match `forward`, the profiles not the inputs, or the bounds not the outputs.
        ExportError: when torch.export refuses the module, or the module forces sizes that the
            ranges do not allow.
    """
    notes = []
    if module.training:
        module.eval()
        notes.append("the model was in training mode; it was put into eval mode")
    signature = match_inputs(module, inputs)
    ordered = signature.inputs
    profiled = profiled_inputs(ordered, profiles)
    program = _export(module, signature)
    _refuse_mutation(program)
    _copy_returned_weights(program)
    check_runs(module, signature)
    placeholders = user_placeholders(program)
    if len(placeholders) != len(ordered):
        raise ExportError(
            f"the exported program has {len(placeholders)} inputs, {len(ordered)} were given",
            fix="give one input per tensor argument of `forward`",
        )
    for node, item in zip(placeholders, ordered, strict=True):
        if not any(True for _ in node.users):
            notes.append(f"the model does not use its input {item.name!r}")
    # For what it refuses: a dimension with a range that torch has fixed.
    symbol_ranges(program, ordered)
    names = _name_outputs(program, output_names)
    return ExportedModel(
        eager=EagerModel(module, signature, names, profiled),
        program=program,
        bounds=matched_bounds(program, names, bounds or {}),
        notes=tuple(notes),
    )


def _export(module: torch.nn.Module, signature: Signature) -> ExportedProgram:
    sizes = trace_sizes(signature.inputs)
    try:
        return trace(module, signature, sizes)
    except BuilderError:
        raise
    except Exception as error:
        # Torch names its symbols and guards, not our inputs; a second, observed run tells which
        # line of the model asked for what.
        raise explained(error, module, signature, sizes) from error


def _refuse_mutation(program: ExportedProgram) -> None:
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            raise ExportError(
                f"the model changes its buffer {own_name(str(spec.target))!r} while it runs; a served model must be stateless",
                fix="return the new value as an output, or make the module not update it in eval mode",
            )
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise ExportError(
                f"the model changes its input {spec.target!r} in place",
                fix="work on a copy: x = x.clone()",
            )


def _copy_returned_weights(program: ExportedProgram) -> None:
    """A weight that is returned as it is could belong to no segment; a copy of it does."""
    lifted = {s.arg.name for s in program.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT}
    output = program.graph.output_node()
    for node in list(output.all_input_nodes):
        if node.name not in lifted:
            continue
        with program.graph.inserting_before(output):
            copy = program.graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = dict(node.meta)
        output.replace_input_with(node, copy)
        for spec in program.graph_signature.output_specs:
            if isinstance(spec.arg, TensorArgument) and spec.arg.name == node.name:
                spec.arg = TensorArgument(name=copy.name)
    program.graph_module.recompile()


def _name_outputs(program: ExportedProgram, wanted: Sequence[str] | None) -> tuple[str, ...]:
    specs = [s for s in program.graph_signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    names = _output_paths(program, len(specs))
    kept = []
    for name, spec in zip(names, specs, strict=True):
        node = next((n for n in program.graph.nodes if n.name == getattr(spec.arg, "name", None)), None)
        value = node.meta.get("val") if node is not None else None
        if isinstance(value, torch.Tensor):
            kept.append(name)
        elif getattr(spec.arg, "value", 0) is not None:
            raise ExportError(
                f"the output {name!r} is not a tensor", fix="return tensors only: torch.tensor(value), or leave it out"
            )
    if not kept:
        raise ExportError("the model returns no tensor", fix="return at least one tensor from `forward`")
    if wanted is not None:
        if len(wanted) != len(kept):
            raise SpecError(
                f"{len(wanted)} output names are given, but the model returns {len(kept)} tensors: {listed(kept)}",
                fix="give one name per output, in order",
            )
        kept = list(wanted)
    double = {n for n in kept if kept.count(n) > 1}
    if double:
        raise SpecError(f"two outputs are named {listed(sorted(double))}", fix="give each output its own name")
    return tuple(kept)


def _output_paths(program: ExportedProgram, count: int) -> list[str]:
    spec = program.call_spec.out_spec
    if spec is None or spec.num_leaves != count:
        return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    tree = pytree.tree_unflatten(list(range(count)), spec)
    paths, _ = pytree.tree_flatten_with_path(tree)
    names = [".".join(_key_text(k) for k in path) for path, _ in paths]
    if names == [""]:
        return ["output"]
    return [f"output_{n}" if n[:1].isdigit() else n for n in names]


def _key_text(key: Any) -> str:
    for field in ("key", "name", "idx"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)
