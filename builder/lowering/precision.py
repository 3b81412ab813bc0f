"""A segment in reduced precision: products in float16 or bfloat16, what needs float32 in float32, the edges as they were.

What is converted is decided operator by operator. *Products* (matrix products, convolutions, recurrent layers, lookups) compute in the
low precision. *Sensitive* operators (statistics, softmax, reductions, exponentials) stay in float32. Everything else follows its
operands, by PyTorch's own promotion: in low precision only if all of them are. The lists are those of torch.autocast ("CUDA Ops that
can autocast"), extended by the operators that its layers decompose into.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from builder.partition.assign import operator_name
from builder.partition.extract import assemble
from builder.partition.plan import Segment

__all__ = ["ORIGIN", "has_double", "in_precision", "without_double"]

# Metadata of a node that was put in: the node of the segment that it serves.
ORIGIN = "builder.origin"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOW = {"fp16": torch.float16, "bf16": torch.bfloat16}

_PRODUCTS = _words(
    """
    mm bmm addmm baddbmm addbmm matmul linear einsum dot mv addmv bilinear convolution conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention embedding lstm gru rnn_tanh rnn_relu
    """
)

_SENSITIVE = _words(
    """
    softmax _softmax log_softmax _log_softmax logsumexp logcumsumexp exp exp2 expm1 log log2 log10 log1p pow float_power rsqrt
    reciprocal sum mean nansum prod cumsum cumprod var var_mean std std_mean norm linalg_vector_norm linalg_matrix_norm dist cdist
    layer_norm native_layer_norm group_norm native_group_norm batch_norm _native_batch_norm_legit_no_training
    _native_batch_norm_legit native_batch_norm instance_norm rms_norm _fused_rms_norm local_response_norm renorm
    cosine_similarity sinh cosh tan acos asin atan2 erfinv softplus avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d grid_sampler grid_sampler_2d grid_sampler_3d
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_trilinear3d upsample_nearest2d
    """
)

_WEIGHTS = frozenset({InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})


def in_precision(segment: Segment, precision: str, also: Set[str] = frozenset()) -> Segment:
    """The segment with its program converted; the segment itself for "fp32" and "tf32".

    Args:
        also: operators ("lstm") that this compiler has in float32 alone.

    Boundary tensors keep their dtypes. Nodes keep their names; casts carry the name of the node that they serve in `ORIGIN`.
    """
    low = _LOW.get(precision)
    if low is None:
        return segment
    return dataclasses.replace(segment, program=_Conversion(segment, low, _SENSITIVE | also).program())


class _Conversion:
    """Copies a program node by node. Every float32 value exists as it was computed, and cast where an operator needs that."""

    def __init__(self, segment: Segment, low: torch.dtype, sensitive: Set[str]) -> None:
        self._source = segment.program
        self._kept = segment.float32_nodes
        self._sensitive = sensitive
        self._low = low
        self._limit = torch.finfo(low).max
        self._smallest = torch.finfo(low).smallest_normal
        self._graph = torch.fx.Graph()
        # By source node and dtype; what has one dtype only stands under that.
        self._copies: dict[torch.fx.Node, dict[torch.dtype | None, torch.fx.Node]] = {}
        self._native: dict[torch.fx.Node, torch.dtype | None] = {}
        # Positions, frequencies and the like: made of whole numbers and of buffers alone, and large.
        self._exact: set[torch.fx.Node] = set()
        # Values that may lie outside the low precision, such as a mask of -3.4e38.
        self._wide: set[torch.fx.Node] = set()
        self._lifted = {
            s.arg.name: s for s in self._source.graph_signature.input_specs if s.kind is not InputKind.USER_INPUT
        }
        self._specs: list[tuple[torch.fx.Node, InputSpec]] = []
        self._state: dict[str, Any] = {}
        self._constants: dict[str, Any] = {}

    def program(self) -> ExportedProgram:
        body = self._source.graph
        placeholders = body.find_nodes(op="placeholder")
        self._anchor = self._graph.placeholder("_")
        for node in placeholders:
            if node.name in self._lifted:
                if self._lifted[node.name].kind is not InputKind.PARAMETER:
                    self._exact.add(node)
                self._native[node] = torch.float32 if self._is_float(node) else None
                if self._is_float(node) and self._is_wide_tensor(node):
                    self._wide.add(node)
            else:
                self._place(node, self._dtype(node), self._input(node))
        modules: dict[str, Any] = {}
        for node in body.nodes:
            if node.op == "get_attr":
                modules[str(node.target)] = getattr(self._source.graph_module, str(node.target))
                copy = self._graph.get_attr(str(node.target))
                copy.meta = dict(node.meta)
                self._place(node, None, copy)
            elif node.op == "call_function":
                self._convert(node)
        outputs = body.output_node().all_input_nodes
        returned = [self._get(n, torch.float32 if self._is_float(n) else None, n) for n in outputs]
        return self._assembled(returned, modules)

    def _assembled(self, returned: list[torch.fx.Node], modules: Mapping[str, Any]) -> ExportedProgram:
        """Weights first, then inputs, as torch.export has them."""
        graph = torch.fx.Graph()
        known: dict[torch.fx.Node, torch.fx.Node] = {}
        weights = [p for p in self._specs if p[1].kind is not InputKind.USER_INPUT]
        inputs = [p for p in self._specs if p[1].kind is InputKind.USER_INPUT]
        for node, _ in (*weights, *inputs):
            known[node] = graph.placeholder(node.name)
            known[node].meta = dict(node.meta)
        for node in self._graph.nodes:
            if node.op != "placeholder":
                known[node] = graph.node_copy(node, known.__getitem__)
        graph.output(tuple(known[n] for n in returned))
        graph.lint()
        specs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=known[n].name), None) for n in returned]
        return assemble(
            self._source, graph, modules, [s for _, s in (*weights, *inputs)], specs, self._state, self._constants
        )

    def _input(self, node: torch.fx.Node) -> torch.fx.Node:
        copy = self._placeholder(node.name, dict(node.meta))
        self._specs.append((copy, InputSpec(InputKind.USER_INPUT, TensorArgument(name=copy.name), None)))
        return copy

    def _placeholder(self, name: str, meta: dict[str, Any]) -> torch.fx.Node:
        with self._graph.inserting_before(self._anchor):
            copy = self._graph.placeholder(name)
        copy.meta = meta
        return copy

    def _place(self, node: torch.fx.Node, dtype: torch.dtype | None, copy: torch.fx.Node) -> None:
        self._copies.setdefault(node, {})[dtype] = copy
        self._native[node] = dtype

    @staticmethod
    def _is_float(node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        first = value[0] if isinstance(value, tuple | list) and value else value
        return isinstance(first, torch.Tensor) and first.dtype is torch.float32

    def _dtype(self, node: torch.fx.Node) -> torch.dtype | None:
        return torch.float32 if self._is_float(node) else None

    def _value(self, spec: InputSpec) -> Any:
        target = str(spec.target)
        return self._source.state_dict.get(target, self._source.constants.get(target))

    def _is_wide_tensor(self, node: torch.fx.Node) -> bool:
        """Whether a weight holds numbers that are lost: too large ones, or the only one that it has."""
        tensor = self._value(self._lifted[node.name])
        if not isinstance(tensor, torch.Tensor) or not tensor.numel():
            return False
        if tensor.numel() == 1:
            return self._is_lost(float(tensor))
        finite = tensor.detach().abs()
        return bool((finite.isfinite() & (finite > self._limit)).any())

    def _convert(self, node: torch.fx.Node) -> None:
        floats = [i for i in node.all_input_nodes if self._is_float(i)]
        dtype = self._chosen(node, floats)
        wanted = dtype if dtype is not None else self._common(node, floats)
        copy = self._graph.node_copy(node, lambda n: self._get(n, wanted if self._is_float(n) else None, node))
        copy.meta = dict(node.meta)
        if dtype is self._low:
            copy.meta["val"] = _mapped(node.meta["val"], self._low)
        self._place(node, dtype, copy)

    def _chosen(self, node: torch.fx.Node, floats: list[torch.fx.Node]) -> torch.dtype | None:
        """What a node computes in; None where its result is no float32."""
        if not self._is_float(node):
            return None
        if node.target is operator.getitem:
            return self._native[node.all_input_nodes[0]]
        name = operator_name(node).rpartition(".")[2]
        if all(i in self._exact for i in floats) and name != "embedding":
            self._exact.add(node)
        if (
            name in _PRODUCTS
            and node not in self._exact
            and not self._needs_float32(node, name)
            and not any(map(_is_dequantised, floats))
        ):
            return self._low
        lost = self._numbers_lost(node)
        wide = any(i in self._wide for i in floats)
        if (wide or any(abs(number) > self._limit for number in lost)) and name not in self._sensitive | _PRODUCTS:
            self._wide.add(node)
        if lost or wide or self._needs_float32(node, name) or not self._are_low(floats):
            return torch.float32
        return self._low

    def _needs_float32(self, node: torch.fx.Node, name: str) -> bool:
        return (
            node.name in self._kept
            or name in self._sensitive
            # Another library's operator, or one that runs a graph, is made for what it is called with.
            or not _is_torch(node)
            or any(i.op == "get_attr" for i in node.all_input_nodes)
            or node.kwargs.get("dtype") is torch.float32
            or torch.float32 in node.args
        )

    def _are_low(self, floats: list[torch.fx.Node]) -> bool:
        """Whether all activations among them are; a weight goes along with these."""
        values = [i for i in floats if i.name not in self._lifted]
        return bool(values) and all(self._native[i] is self._low for i in values)

    def _common(self, node: torch.fx.Node, floats: list[torch.fx.Node]) -> torch.dtype:
        """The dtype in which values are compared, rounded or otherwise turned into what is no float."""
        narrow = _is_torch(node) and self._are_low(floats) and not any(i in self._wide for i in floats)
        return self._low if narrow else torch.float32

    def _numbers_lost(self, node: torch.fx.Node) -> list[float]:
        """Numbers in the code of the model that the low precision takes for zero or for infinity."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return []
        given = {a.name: v for a, v in zip(schema.arguments, node.args, strict=False)} | dict(node.kwargs)
        scalars = {a.name for a in schema.arguments if _is_scalar(str(a.type))}
        numbers = [
            v for n, v in given.items() if n in scalars and isinstance(v, int | float) and not isinstance(v, bool)
        ]
        return [n for n in map(float, numbers) if self._is_lost(n)]

    def _is_lost(self, number: float) -> bool:
        return math.isfinite(number) and number != 0.0 and not self._smallest <= abs(number) <= self._limit

    def _get(self, node: torch.fx.Node, dtype: torch.dtype | None, user: torch.fx.Node) -> torch.fx.Node:
        """The copy of a node in a dtype; made where there is none."""
        copies = self._copies.setdefault(node, {})
        if dtype in copies:
            return copies[dtype]
        if node.name in self._lifted:
            copies[dtype] = self._weight(node, dtype)
            return copies[dtype]
        assert dtype is not None
        source = copies[self._native[node]]
        if node in self._wide and dtype is self._low:
            source = self._inserted(
                torch.ops.aten.clamp.default, (source, -self._limit, self._limit), {}, source.meta["val"], user
            )
        value = _mapped(node.meta["val"], dtype)
        copies[dtype] = self._inserted(torch.ops.aten._to_copy.default, (source,), {"dtype": dtype}, value, user)
        return copies[dtype]

    def _inserted(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], value: Any, user: torch.fx.Node
    ) -> torch.fx.Node:
        node = self._graph.call_function(target, args, kwargs)
        stack = {k: v for k, v in user.meta.items() if k in ("nn_module_stack", "stack_trace")}
        node.meta = {**stack, "val": value, ORIGIN: user.name}
        return node

    def _weight(self, node: torch.fx.Node, dtype: torch.dtype | None) -> torch.fx.Node:
        spec = self._lifted[node.name]
        tensor, target, meta, name = self._value(spec), str(spec.target), dict(node.meta), node.name
        if dtype is self._low and spec.kind in _WEIGHTS:
            tensor = tensor.detach().clamp(-self._limit, self._limit).to(dtype)
            if isinstance(self._value(spec), torch.nn.Parameter):
                tensor = torch.nn.Parameter(tensor, requires_grad=False)
            meta["val"] = _mapped(meta["val"], dtype)
            # A weight that is needed in both has two names.
            target, name = f"{target}__low", f"{name}__low"
        copy = self._placeholder(name, meta)
        new = InputSpec(spec.kind, TensorArgument(name=copy.name), target, spec.persistent)
        self._specs.append((copy, new))
        (self._state if str(spec.target) in self._source.state_dict else self._constants)[target] = tensor
        return copy


def _is_torch(node: torch.fx.Node) -> bool:
    return getattr(node.target, "namespace", "") in ("aten", "prims")


def _is_scalar(kind: str) -> bool:
    """Whether a number of a schema's type enters the values, and is no size or axis; export writes `add.Tensor(x, 1)`."""
    return kind in ("Tensor", "number", "float", "Optional[Tensor]", "Optional[number]", "Optional[float]")


def _is_dequantised(node: torch.fx.Node) -> bool:
    """Whether a compiler can take it for the quantised tensor that it was: a cast between would hide that."""
    return "dequantize" in str(node.target)


def _mapped(value: Any, dtype: torch.dtype) -> Any:
    """Fake values with float32 replaced."""
    if isinstance(value, tuple | list):
        return type(value)(_mapped(v, dtype) for v in value)
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else value


def without_double(segment: Segment) -> Segment:
    """The segment with float64 replaced by float32 throughout, boundaries included."""
    if not any(map(has_double, segment.program.graph.nodes)):
        return segment
    source = segment.program

    def single(value: Any) -> Any:
        if isinstance(value, torch.nn.Parameter) and value.dtype is torch.float64:
            return torch.nn.Parameter(value.detach().float(), requires_grad=False)
        return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float64 else value

    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in source.graph.nodes:
        known[node] = copy = graph.node_copy(node, known.__getitem__)
        copy.meta = dict(node.meta)
        copy.meta["val"] = torch.utils._pytree.tree_map(single, node.meta.get("val"))
        copy.args = tuple(torch.float32 if a is torch.float64 else a for a in copy.args)
        copy.kwargs = {k: torch.float32 if a is torch.float64 else a for k, a in copy.kwargs.items()}
    modules = {
        str(n.target): getattr(source.graph_module, str(n.target)) for n in source.graph.find_nodes(op="get_attr")
    }
    program = assemble(
        source,
        graph,
        modules,
        list(source.graph_signature.input_specs),
        list(source.graph_signature.output_specs),
        {k: single(v) for k, v in source.state_dict.items()},
        {k: single(v) for k, v in source.constants.items()},
    )
    return dataclasses.replace(segment, program=program)


def has_double(node: torch.fx.Node) -> bool:
    """Whether a node's value is float64, or part of it is."""
    leaves = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(v, torch.Tensor) and v.dtype is torch.float64 for v in leaves)
