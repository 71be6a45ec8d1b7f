"""The conversion of a whole model: nodes in, graph out, all refusals collected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from vkmnn.base.budget import Meter
from vkmnn.base.lazy_array import as_lazy, lazy, root_of
from vkmnn.converter.onnx.branches import GRAPH_ATTRIBUTES, inline_branch, is_if, reads
from vkmnn.converter.onnx.host_nodes import (
    HostCheck,
    HostValues,
    constant_type,
    cut_out,
    host_attrs,
    host_info,
    object_constant,
    object_types,
    output_types,
)
from vkmnn.converter.onnx.known import Known
from vkmnn.converter.onnx.loops.recurrent_loops import as_recurrent
from vkmnn.converter.onnx.loops.unroll import GLUE_OPSETS, is_loop, unroll
from vkmnn.converter.onnx.model_file import MIN_OPSET, ModelFile, metadata_of, node_count
from vkmnn.converter.onnx.names import Names
from vkmnn.converter.onnx.narrow import is_rounding, rounded
from vkmnn.converter.onnx.node import (
    ExpandError,
    NodeContext,
    UnknownTensorError,
    UnsupportedCaseError,
)
from vkmnn.converter.onnx.registry import Converter, find_converter
from vkmnn.converter.onnx.schema import (
    Schema,
    check_node,
    check_types,
    find_schema,
    function_body,
    schema_defaults,
)
from vkmnn.converter.onnx.sequences import KnownSequences
from vkmnn.converter.onnx.source import (
    LocalFunctions,
    SourceNode,
    expand_call,
    name_nodes,
    opset_map,
    sort_nodes,
)
from vkmnn.converter.onnx.support import alternative
from vkmnn.converter.onnx.tensors import array_from_tensor, dense_from_sparse, with_data
from vkmnn.converter.onnx.types import tensor_info, tensor_type, unsupported_type
from vkmnn.converter.onnx.wire import Bytes
from vkmnn.errors import (
    ConversionError,
    ModelError,
    PluginError,
    UnsupportedNode,
    UnsupportedOpError,
    VkmnnError,
    unexpected_error,
)
from vkmnn.ir import HOST_GRAPH, OP_TYPES, Array, Dim, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.shape.symbolic import Facts, infer, infer_values, merge_shapes

if TYPE_CHECKING:
    import onnx

    from vkmnn.shape.folding import Evaluator

_LOG = logging.getLogger(__name__)

_SHARED_CONSTANT_BYTES = 256

NO_SHAPES: Mapping[str, tuple[Dim, ...]] = {}


class GraphBuilder:
    """Holds the graph while it grows; `build` runs the conversion once."""

    def __init__(
        self,
        file: ModelFile,
        meter: Meter,
        evaluate: Evaluator | None = None,
        as_inputs: Collection[str] = (),
        host: HostCheck | None = None,
        shapes: Mapping[str, tuple[Dim, ...]] = NO_SHAPES,
    ) -> None:
        self._meter = meter
        self._shapes = shapes
        self._host_check = host
        self._objects = HostValues()
        self._as_inputs = frozenset(as_inputs)
        self._evaluate = evaluate
        self._model = file.proto
        self._functions = LocalFunctions(file.proto.functions)
        self._proto = file.proto.graph
        self._weights, self._again = file.weights, file.again
        self.folder = file.folder
        self.graph = Graph(self._proto.name or "model", [], [], metadata=metadata_of(file.proto))
        self._facts = Facts(self.graph.constants)
        self._known: dict[str, TensorInfo] = {}
        self._declared: dict[str, TensorInfo] = {}
        self._results: list[onnx.ValueInfoProto] = []
        self.read_tensors: set[str] = set()
        self.notes: dict[str, object] = {}
        self.makers: dict[str, Op] = {}
        self._tensors = Names()
        self._ops = Names()
        self._shared: dict[tuple[str, tuple[int, ...], object], str] = {}
        self._refused: list[UnsupportedNode] = []
        self._tainted: set[str] = set()
        self._unread: set[tuple[str, str, str]] = set()
        self._opsets = opset_map(file.proto.opset_import)
        self._sequences = KnownSequences(self.folded, self.info, self.constant, self._tensors.new)

    def build(self) -> Graph:
        """Convert the model.

        Raises:
            ModelError: the model is not a valid graph.
            UnsupportedOpError: nodes that cannot be expressed; all of them are listed.
        """
        self._meter.weigh(0, node_count(self._model))
        nodes = [*self._flat_nodes(), *self._repeat_outputs()]
        self._read_values({name for node in nodes for name in reads(node.proto)})
        self._meter.weigh(sum(array.nbytes for array in self.graph.constants.values()))
        self._convert_all(nodes)
        self._hand_out_sequences()
        if self._refused:
            raise UnsupportedOpError(self._refused)
        self._add_outputs()
        self._add_infos()
        self.graph.validate()
        # The context refers to the builder: the cycle would keep all weights until garbage is
        # collected.
        del self._sequences
        return self.graph

    # --- for NodeContext -------------------------------------------------------------------------

    def emit(
        self,
        source: SourceNode,
        op_type: str,
        inputs: Sequence[str],
        attrs: OpAttrs,
        outputs: Sequence[str] | None,
    ) -> str:
        """Add an op; see `NodeContext.emit`."""
        if outputs is None:
            outputs = [self._tensors.new(f"{source.name}/{op_type}")]
            name = self._ops.new(f"{source.name}/{op_type}")
        else:
            name = self._ops.new(source.name)
        trimmed = list(inputs)
        while trimmed and not trimmed[-1]:
            trimmed.pop()
        expected = OP_TYPES[op_type]
        if not expected.min_inputs <= len(trimmed) <= expected.max_inputs:
            raise _ArityError(op_type, expected.min_inputs, expected.max_inputs, len(trimmed))
        op = Op(op_type, name, trimmed, list(outputs), attrs, source.source)
        self.graph.ops.append(op)
        self.makers.update(dict.fromkeys(outputs, op))
        self._learn(op)
        return outputs[0]

    def new_tensor(self, name: str) -> str:
        """Reserve a name for a new tensor."""
        return self._tensors.new(name)

    def info(self, name: str) -> TensorInfo | None:
        """Return the info of a tensor: from its op, else from the model's declaration."""
        array = self.graph.constants.get(name)
        if array is not None:
            return TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        return self._known.get(name) or self._declared.get(name)

    def _learn(self, op: Op) -> None:
        found = infer(op, self._facts)
        for name, (dtype, shape) in zip(op.outputs, found, strict=False):
            declared = self._declared.get(name)
            dtype = dtype or (None if declared is None else declared.dtype)
            if not name or dtype is None:
                continue
            if declared is not None and declared.dtype is not dtype:
                _LOG.info(
                    "the model declares '%s' as %s, which contradicts its op", name, declared.dtype
                )
            elif declared is not None:
                shape = merge_shapes(shape, declared.shape)
            self._know(TensorInfo(name, dtype, shape))
        self._facts.add_values(op.outputs[0], infer_values(op, self._facts))

    def _say(self, info: TensorInfo) -> None:
        """Record the model's declaration of a tensor; the info from its op takes precedence."""
        self._declared[info.name] = info
        self._facts.add(info.name, info.dtype, info.shape)

    def _know(self, info: TensorInfo) -> None:
        self._known[info.name] = info
        self._facts.add(info.name, info.dtype, info.shape)

    def constant(self, array: Array) -> str:
        """Add a constant tensor, sharing small equal ones, and return its name."""
        # Views of the same memory are the same: of a table that the last product reads as well.
        large = array.nbytes > _SHARED_CONSTANT_BYTES
        what = _memory_of(array) if large else array.tobytes()
        key = (array.dtype.name, array.shape, what)
        found = self._shared.get(key)
        if found is None or (large and self.graph.constants.get(found) is None):
            found = self._shared[key] = self._tensors.new("constant")
            self.graph.constants[found] = array
        return found

    def set_constant(self, name: str, array: Array) -> None:
        """Make a node's output a constant."""
        self.graph.constants[name] = array

    # --- the model's own tensors -----------------------------------------------------------------

    def _flat_nodes(self) -> list[SourceNode]:
        """Check names and order; expand the model's own functions."""
        graph = self._proto
        initializers = _unique((tensor.name for tensor in graph.initializer), "initializer")
        sparse = _unique((t.values.name for t in graph.sparse_initializer), "sparse initializer")
        inputs = _unique((value.name for value in graph.input), "graph input")
        available = initializers | inputs | sparse
        names = Names()
        nodes = name_nodes(graph.node, self._opsets, names)
        nodes = sort_nodes(nodes, available)
        names.taken |= available
        names.taken.update(name for node in graph.node for name in node.output)
        nodes = self._functions.expand(nodes, names, self._meter)
        for name in names.taken:
            self._tensors.taken.add(name)
        self.read_tensors = {name for node in nodes for name in reads(node.proto)}
        self.read_tensors |= {value.name for value in graph.output}
        return nodes

    def _repeat_outputs(self) -> Iterator[SourceNode]:
        """Give a repeated output of the model a new name, and yield its producer."""
        import onnx

        seen: set[str] = set()
        for value in self._proto.output:
            if not value.name:
                raise ModelError(
                    "a graph output has no name",
                    hint="the model is not valid ONNX; export it again",
                )
            result = onnx.ValueInfoProto()
            result.CopyFrom(value)
            if value.name in seen:
                result.name = name = self._tensors.new(value.name)
                copy = onnx.NodeProto(
                    op_type="Identity", name=name, input=[value.name], output=[name]
                )
                yield SourceNode(copy, name, self._opsets, name)
            seen.add(value.name)
            self._results.append(result)

    def _read_values(self, read: set[str]) -> None:
        """Add initializers that are read, and graph inputs."""
        read = read | {value.name for value in self._proto.output}
        initializers = set()
        for number, tensor in enumerate(self._proto.initializer):
            if tensor.name in self._as_inputs:
                continue
            initializers.add(tensor.name)
            if tensor.name in read:
                again = None if self._again is None else self._again(number)
                self._read_initializer(tensor, self._weights.get(number), tensor.name, again)
        for sparse in self._proto.sparse_initializer:
            self._read_sparse(sparse, sparse.values.name)
        for value in (*self._proto.value_info, *self._proto.output):
            declared = self._declaration(value, value.name)
            if declared is not None:
                self._say(declared)
        for value in self._proto.input:
            if value.name in initializers:
                info = tensor_info(value.name, value.type)
                if info is not None:
                    self.graph.overridable.append(info)
                continue
            reason = unsupported_type(value.type)
            info = None if reason else tensor_info(value.name, value.type)
            if info is not None and value.name in self._shapes:
                info = replace(info, shape=self._shapes[value.name])
            if reason and self._host_check is not None:
                self._keep_type(value.name, value.type)
                self.graph.inputs.append(self._known[value.name])
            elif info is None:
                self._refuse_tensor("Input", value.name, reason or "no element type is given")
            else:
                self.graph.inputs.append(info)
                self._know(info)
        if self.graph.overridable:
            names = ", ".join(info.name for info in self.graph.overridable)
            _LOG.info("inputs with default values become constants: %s", names)

    def _declaration(self, value: onnx.ValueInfoProto, name: str) -> TensorInfo | None:
        """Return the declared info of a tensor, without sizes if inputs have others."""
        info = tensor_info(name, value.type)
        if info is None or not self._shapes:
            return info
        return replace(info, shape=None)

    def _read_initializer(
        self,
        tensor: onnx.TensorProto,
        raw: Bytes | None,
        name: str,
        again: Callable[[], Bytes] | None = None,
    ) -> None:
        try:
            array = array_from_tensor(tensor, self.folder, raw)
            if again is not None:
                array = lazy(array, lambda: array_from_tensor(tensor, None, again()))
            self.graph.constants[name] = array
        except ConversionError as error:
            if self._host_check is None or tensor.HasField("segment"):
                self._refuse_tensor("Initializer", name, error.message)
            else:
                self._keep_tensor(with_data(tensor, name, self.folder, raw))

    def _read_sparse(self, sparse: onnx.SparseTensorProto, name: str) -> None:
        try:
            self.graph.constants[name] = self.dense(sparse, "Initializer", name)
        except ConversionError as error:
            self._refuse_tensor("Initializer", name, error.message)

    def dense(self, sparse: onnx.SparseTensorProto, op: str, node: str) -> Array:
        """Return a sparse tensor in its dense form, once that is charged to an op or tensor."""
        self._meter.charge(8 * prod(sparse.dims), op, node)
        return dense_from_sparse(sparse, self.folder)

    def _keep_tensor(self, tensor: onnx.TensorProto) -> None:
        """Keep a constant of an element type that only the host has."""
        self._objects.tensors[tensor.name] = tensor
        self._keep_type(tensor.name, constant_type(tensor))

    def _keep_type(self, name: str, proto: onnx.TypeProto | None) -> None:
        """Record the type of a value that a host node produces, or that only the host holds."""
        info = host_info(name, proto)
        if info.dtype is DType.OBJECT and proto is not None:
            self._objects.types[name] = proto
        self._know(info)

    def _refuse_tensor(self, kind: str, name: str, reason: str) -> None:
        """Record a tensor that has no counterpart."""
        self._refused.append(UnsupportedNode(kind, "", self._opsets.get("", 1), name, reason))
        self._tainted.add(name)

    # --- nodes -----------------------------------------------------------------------------------

    def _convert_all(self, nodes: Sequence[SourceNode]) -> None:
        stack = list(nodes)[::-1]
        done = 0
        while stack:
            node = stack.pop()
            done += 1
            self._meter.check_nodes(done, node.op, node.name)
            self._meter.check_time(node.op, node.name)
            members = self._sequences.resolve(node.proto)
            if members is not None:
                stack.extend(self._around(node, members)[::-1])
                continue
            made = len(self.graph.ops)
            try:
                if not is_loop(node.proto) and not is_if(node.proto):
                    self._make_sequences(node)
                reason = self._host_only(node)
                if reason is not None:
                    self._make_sequences(node)
                    self._keep(node, reason)
                    continue
                stack.extend(self._convert(node)[::-1])
            except UnsupportedCaseError as error:
                if self._host_check is None:
                    self._refuse(node, error)
                    continue
                for op in self.graph.ops[made:]:  # output of the converter before it gave up
                    for name in op.outputs:
                        self._known.pop(name, None)
                        self._facts.forget(name)
                del self.graph.ops[made:]
                self._make_sequences(node)
                self._keep(node, error.message)

    def _around(self, node: SourceNode, protos: Sequence[onnx.NodeProto]) -> list[SourceNode]:
        """Return the replacement of a node."""
        self.read_tensors.update(name for proto in protos for name in proto.input)
        return [
            SourceNode(proto, self._ops.new(proto.name), GLUE_OPSETS, node.source, node.calls)
            for proto in protos
        ]

    def _make_sequences(self, node: SourceNode) -> None:
        """Construct the known sequences that a node reads on the host, or refuse them."""
        for proto in self._sequences.construct(reads(node.proto)):
            (made,) = self._around(node, [proto])
            if self._host_check is None:
                reason = alternative(made.op, "", made.opset)
                self._refuse(made, UnsupportedCaseError(reason))
            else:
                self._keep(made, "its values have no counterpart on a device")

    def _host_only(self, node: SourceNode) -> str | None:
        """Return why a node must run on the host, or None."""
        if self._host_check is None:
            return None
        if not node.domain and node.opset < MIN_OPSET:
            return f"operators of opset {node.opset} are not supported"
        infos = (self._known.get(name) for name in reads(node.proto))
        if any(info is not None and info.dtype is DType.OBJECT for info in infos):
            return None if is_if(node.proto) else "its values have no counterpart on a device"
        return None

    def _keep(self, node: SourceNode, reason: str) -> None:
        """Let the host run a node unconverted, or refuse it if no evaluator does."""
        assert self._host_check is not None
        constant = object_constant(node.proto, self.folder)
        if constant is not None:
            self._keep_tensor(constant)
            return
        model, inputs = cut_out(
            node,
            self._model.functions,
            self._type_of,
            self._objects.tensors,
            self._model.ir_version,
        )
        types = output_types(model, self.graph.constants)
        untyped = [v.name for v in model.graph.output if v.name not in {*types, *self._declared}]
        told = self._host_check(model, untyped)
        if isinstance(told, str):
            self._refuse(node, UnsupportedCaseError(f"{reason}; {told}"))
            return
        types = {**told, **types}
        for value in model.graph.output:
            proto = types.get(value.name)
            if proto is None and value.name in self._declared:
                proto = tensor_type(self._declared[value.name])
            if proto is not None:
                value.type.CopyFrom(proto)
            self._keep_type(value.name, proto)
        attrs = host_attrs(node, model, inputs, reason)
        name = self._ops.new(node.name)
        self.graph.ops.append(
            Op(HOST_GRAPH, name, inputs, list(node.proto.output), attrs, node.source)
        )

    def _type_of(self, name: str) -> onnx.TypeProto | None:
        info = self.info(name)
        if info is None or info.dtype is DType.OBJECT:
            return self._objects.types.get(name)
        return tensor_type(info)

    def _convert(self, node: SourceNode) -> list[SourceNode]:
        """Convert one node, or return the nodes that it expands to.

        Raises:
            UnsupportedCaseError: it can be neither.
        """
        if not node.domain and "" not in node.opsets:
            raise ModelError(
                "the model does not say which opset it uses",
                op=node.op,
                node=node.name,
                hint="add the default domain to opset_import",
            )
        schema = find_schema(node)
        if schema is not None:
            check_node(node, schema)
            check_types(node, schema, self.info)
            narrow = {n: i.dtype for n in node.proto.input if n and (i := self.info(n))}
            if is_rounding(node, narrow.values()):
                rough = [name for name, dtype in narrow.items() if dtype is DType.BFLOAT16]
                nodes = rounded(node, schema, rough, self._tensors, self._ops)
                self.read_tensors.update(name for one in nodes for name in one.proto.input)
                return nodes
        if is_if(node.proto):
            return self._inline(node)
        if is_loop(node.proto):
            return self._unroll(node)
        convert = find_converter(node.op, node.domain, node.opset)
        if convert is None:
            if any(attribute.type in GRAPH_ATTRIBUTES for attribute in node.proto.attribute):
                raise UnsupportedCaseError(alternative(node.op, node.domain, node.opset))
            return self._expand(node, schema)
        context = NodeContext(node, self)
        foreign = not convert.__module__.startswith("vkmnn.")
        try:
            convert(context)
        except ExpandError:
            return self._expand(node, schema)
        except VkmnnError:
            raise
        except Exception as error:
            passed_on = isinstance(error, _ArityError) and error.got == len(node.proto.input)
            if foreign and not isinstance(error, MemoryError) and not passed_on:
                text = f"failed: {type(error).__name__}: {error}"
                raise _parse_error(node, convert, text) from error
            raise self._invalid(node, error) from error
        if foreign:
            self._check_results(node, convert)
        if schema is None and foreign:
            self._report_unread(node, context)
        if self._is_tainted(node):
            unknown = (name for name in node.proto.output if name and not self.info(name))
            self._tainted.update(unknown)
        return []

    def _invalid(self, node: SourceNode, error: Exception) -> VkmnnError:
        """Return the error for a node that a converter of vkmnn's own could not read."""
        if isinstance(error, ArithmeticError | LookupError | TypeError | ValueError):
            # Attributes and ranks may be nonsense in ways that no converter checks for.
            return ModelError(
                f"its inputs and attributes do not fit together: {error}",
                op=node.op,
                node=node.name,
                hint=f"the model is not valid for opset {node.opset}; export it again",
            )
        return unexpected_error(error, "conversion", op=node.op, node=node.name)

    def _check_results(self, node: SourceNode, convert: Converter) -> None:
        """Check the results of a plug-in's parse function.

        Raises:
            PluginError: names the output.
        """
        for number, name in enumerate(node.proto.output):
            made = name in self.makers or name in self.graph.constants
            if name and name in self.read_tensors and not made:
                raise _parse_error(
                    node,
                    convert,
                    f"does not produce output {number}, '{name}'",
                    "node.finish sets the first one; for several, write "
                    "node.emit(type, inputs, attrs, node.outputs)",
                )

    def _report_unread(self, node: SourceNode, context: NodeContext) -> None:
        """Report attributes that a plug-in's converter has not asked for.

        Raises:
            ModelError: one is nearly what it asked for, which the node lacks.
        """
        for name, near in context.unread().items():
            if near is not None:
                raise ModelError(
                    f"attribute '{name}' is not known",
                    op=node.op,
                    node=node.name,
                    hint=f"did you mean '{near}'?",
                )
            key = (node.domain, node.op, name)
            if key not in self._unread:
                self._unread.add(key)
                _LOG.warning(
                    "%s '%s': attribute '%s' is ignored; the operator's converter does not read it",
                    *(node.op, node.name, name),
                )

    def _expand(self, node: SourceNode, schema: Schema | None) -> list[SourceNode]:
        """Return the body of the function that defines the node's operator."""
        body = None if schema is None else function_body(node, schema, self.info)
        if schema is None or body is None:
            raise UnsupportedCaseError(alternative(node.op, node.domain, node.opset))
        nodes = expand_call(node, body, schema_defaults(schema), self._tensors)
        self.read_tensors.update(name for inner in nodes for name in reads(inner.proto))
        return nodes

    def _inline(self, node: SourceNode) -> list[SourceNode]:
        """Return the nodes of an If's branch whose condition is known.

        Raises:
            UnsupportedCaseError: the condition is not known.
        """
        value = self.folded(node.proto.input[0])
        if value is None:
            raise UnsupportedCaseError(alternative(node.op, node.domain, node.opset))
        if value.size != 1:
            raise ModelError(
                f"its condition has {value.size} elements, not one", op=node.op, node=node.name
            )
        graph, branch = inline_branch(
            node.proto, node.name, bool(value.reshape(-1)[0]), self._tensors, self._ops
        )
        self._read_inner(graph, branch.own)
        for value_info in (*graph.value_info, *graph.output):
            name = branch.own.get(value_info.name, "")
            declared = self._declaration(value_info, name) if name else None
            if declared is not None:
                self._say(declared)
        nodes = [
            SourceNode(proto, proto.name, node.opsets, node.source, node.calls)
            for proto in branch.nodes
        ]
        return self._in_place(nodes)

    def _unroll(self, node: SourceNode) -> list[SourceNode]:
        """Return the iterations of a Loop or Scan with a known number of them.

        Raises:
            UnsupportedCaseError: it is not known, too large, or 0, or the body is for the host.
        """
        known = Known(self.folded, self.info, self.constant, node.opsets, self._sequences.holds)
        made = as_recurrent(node.proto, node.name, known, self._tensors, self._ops)
        made = made or unroll(node.proto, node.name, known, self._tensors, self._ops)
        if made is None:
            raise UnsupportedCaseError(alternative(node.op, node.domain, node.opset))
        self._read_inner(made.body, made.kept)
        return self._in_place(
            [
                SourceNode(
                    proto,
                    proto.name,
                    node.opsets if inner else GLUE_OPSETS,
                    node.source,
                    node.calls,
                )
                for proto, inner in made.nodes
            ]
        )

    def _read_inner(self, graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
        """Read the constants of an inner graph under new names."""
        for tensor in graph.initializer:
            if tensor.name in names:
                self._read_initializer(tensor, None, names[tensor.name])
        for sparse in graph.sparse_initializer:
            if sparse.values.name in names:
                self._read_sparse(sparse, names[sparse.values.name])

    def _in_place(self, nodes: list[SourceNode]) -> list[SourceNode]:
        """Return nodes of inner graphs in terms of the graph around them."""
        produced = {name for inner in nodes for name in inner.proto.output}
        outer = {name for inner in nodes for name in reads(inner.proto)} - produced
        nodes = self._functions.expand(sort_nodes(nodes, outer), self._tensors, self._meter)
        self.read_tensors.update(name for inner in nodes for name in reads(inner.proto))
        return nodes

    def folded(self, name: str) -> Array | None:
        """Return the value of a tensor that follows from constants and known sizes, else None."""
        value = self.graph.constants.get(name)
        if value is not None or self._evaluate is None:
            return value
        from vkmnn.converter.passes.pipeline import fold

        needed, ops = {name}, []
        for op in reversed(self.graph.ops):
            if needed.intersection(op.outputs):
                needed.update(op.inputs)
                ops.append(op)
        produced = {one for op in ops for one in op.outputs}
        infos = {one: info for one in produced if one and (info := self.info(one))}
        if name not in infos:
            return None
        part = Graph(
            name,
            [info for info in self.graph.inputs if info.name in needed],
            [infos[name]],
            ops[::-1],
            {one: array for one, array in self.graph.constants.items() if one in needed},
            infos,
        )
        return fold(part, self._evaluate, self._meter).constants.get(name)

    def _is_tainted(self, node: SourceNode) -> bool:
        return any(name in self._tainted for name in reads(node.proto))

    def _refuse(self, node: SourceNode, error: UnsupportedCaseError) -> None:
        """Record a node that cannot be converted, unless that follows from an earlier one."""
        tainted = self._is_tainted(node)
        self._tainted.update(name for name in node.proto.output if name)
        if tainted and isinstance(error, UnknownTensorError):
            return
        name = node.source if node.calls else node.name
        self._refused.append(UnsupportedNode(node.op, node.domain, node.opset, name, error.message))

    # --- results ---------------------------------------------------------------------------------

    def _add_outputs(self) -> None:
        produced = {*self.graph.constants, *(info.name for info in self.graph.inputs)}
        for op in self.graph.ops:
            produced.update(op.outputs)
        for value in self._results:
            if value.name in self._objects.tensors and value.name not in produced:
                self._hand_out(value.name)
            elif value.name not in produced:
                raise ModelError(
                    f"output '{value.name}' is not produced by any node",
                    hint="the model is incomplete; export it again",
                )
            info = self._declaration(value, value.name)
            if info is None or self._shapes:
                info = self.info(value.name) or info
            if info is None:
                raise ModelError(
                    f"output '{value.name}' has no element type",
                    hint="the model is not valid ONNX; export it again",
                )
            self.graph.outputs.append(info)
        self.graph.types = object_types((*self.graph.inputs, *self.graph.outputs), self._objects)

    def _hand_out(self, name: str) -> None:
        """Make a constant that only the host has an output of the network."""
        import onnx

        inner = self._tensors.new(f"{name}/value")
        self._keep_tensor(with_data(self._objects.tensors.pop(name), inner, None))
        proto = onnx.NodeProto(op_type="Identity", name=name, input=[inner], output=[name])
        self._keep(SourceNode(proto, name, self._opsets, name), "a constant of the host's")

    def _hand_out_sequences(self) -> None:
        """Construct the known sequences that the network returns on the host."""
        import onnx

        names = [value.name for value in self._results if self._sequences.holds(value.name)]
        if names:
            reader = onnx.NodeProto(op_type="Identity", name=names[0], input=names)
            self._make_sequences(SourceNode(reader, names[0], self._opsets, names[0]))

    def _add_infos(self) -> None:
        for op in self.graph.ops:
            for name in op.outputs:
                info = self.info(name) if name else None
                if info is not None:
                    self.graph.infos[name] = info


class _ArityError(ValueError):
    """An op gets too few or too many inputs."""

    def __init__(self, op: str, least: int, most: float, got: int) -> None:
        super().__init__(f"{op} takes {least} to {most} inputs, got {got}")
        self.got = got


def _parse_error(node: SourceNode, convert: Converter, text: str, hint: str = "") -> PluginError:
    name = f"{convert.__module__}.{getattr(convert, '__qualname__', convert)}"
    return PluginError(
        f"the parse function {name} of {node.domain or 'ai.onnx'}::{node.op} {text}",
        op=node.op,
        node=node.name,
        hint=hint
        or "repair the plug-in; its parse function gets the node and reads its attributes",
    )


def _unique(names: Iterable[str], kind: str) -> set[str]:
    """Return the names as a set.

    Raises:
        ModelError: one is empty or occurs twice.
    """
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            raise ModelError(
                f"{kind} '{name}' occurs twice" if name else f"a {kind} has no name",
                hint="the model is not valid ONNX; export it again",
            )
        seen.add(name)
    return seen


def _memory_of(array: Array) -> object:
    """Return what identifies the memory of a large array, and the order of its elements there."""
    if as_lazy(array) is not None:
        return id(root_of(array))
    return array.ctypes.data, array.strides
