"""Packs constant weights into few bits, node by node; activations stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vkmnn.ir import Array
from vkmnn.quantization.model import FLOAT_TYPES, graphs_of
from vkmnn.quantization.report import FloatNode, Progress
from vkmnn.quantization.scheme import Scheme

if TYPE_CHECKING:
    import onnx

Packed = tuple[Array, Array, Array]


class Pack(Protocol):
    """Packer of a matrix."""

    def __call__(
        self, matrix: Array, bits: int, block: int, symmetric: bool, weight: str
    ) -> Packed:
        """Return values [N, blocks, bytes], scales and zero points of a matrix [K, N].

        Args:
            matrix: the numbers.
            bits: bits of a value.
            block: numbers along K that share a scale.
            symmetric: no zero points.
            weight: the constant that products multiply by the matrix; "" for a table.
        """


Read = Callable[["onnx.TensorProto"], Array]
"""Returns the values of a constant."""

_FLOATS = {np.dtype(np.float32), np.dtype(np.float16)}
_MIN_ELEMENTS = 256
_CONTRIB = "com.microsoft"


class CachedPack:
    """A packer that packs every matrix once.

    Args:
        pack: the packer.
    """

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._made: dict[bytes, Packed] = {}

    def __call__(
        self, matrix: Array, bits: int, block: int, symmetric: bool, weight: str
    ) -> Packed:
        """Return the packed form of a matrix."""
        digest = blake2b(np.ascontiguousarray(matrix).data, digest_size=16)
        digest.update(repr((matrix.shape, bits, block, symmetric)).encode())
        key = digest.digest()
        if key not in self._made:
            self._made[key] = self._pack(matrix, bits, block, symmetric, weight)
        return self._made[key]


def pack_weights(
    model: onnx.ModelProto,
    scheme: Scheme,
    pack: Pack,
    progress: Progress,
    left: Mapping[str, str],
    read: Read | None = None,
) -> tuple[list[str], list[FloatNode]]:
    """Replace constant weights of a model by packed ones, in place.

    Args:
        model: the model with its data, every node named.
        scheme: how.
        pack: quantises a matrix in blocks along K.
        progress: called after each node.
        left: the nodes that stay in float, and why.
        read: returns the values of a constant; None if its data is in the model.

    Returns:
        The names of the quantised nodes, and those that stayed in float.
    """
    packer = _Packer(model, scheme, pack, left, read or _to_array)
    graphs = list(graphs_of(model.graph))
    candidates = {node.name for graph in graphs for node in graph.node if packer.has_weights(node)}
    done = 0
    for graph in reversed(graphs):  # inner ones first: nodes are copied with their content
        nodes: list[onnx.NodeProto] = []
        for node in list(graph.node):
            if node.name in candidates:
                nodes += packer.replace(node)
                done += 1
                progress("packing weights", done, len(candidates))
            else:
                nodes.append(node)
        _set_nodes(graph, nodes)
    packer.finish()
    return packer.packed, packer.in_float


class _Packer:
    """State of packing a model: its constants and their packed forms."""

    def __init__(
        self,
        model: onnx.ModelProto,
        scheme: Scheme,
        pack: Pack,
        left: Mapping[str, str],
        read: Read,
    ) -> None:
        self.model, self.scheme, self._pack, self._left = model, scheme, pack, left
        self._read = read
        self.packed: list[str] = []
        self.in_float: list[FloatNode] = []
        graphs = list(graphs_of(model.graph))
        self._tensors = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
        self._makers = {
            name: node for graph in graphs for node in graph.node for name in node.output
        }
        self._taken = {*self._tensors, *self._makers} | {
            value.name for graph in graphs for value in graph.input
        }
        self._made: dict[tuple[str, str], list[str]] = {}

    def has_weights(self, node: onnx.NodeProto) -> bool:
        """True for a node that is listed among the packed or among those in float."""
        if node.op_type in ("MatMul", "Gemm", "FusedMatMul"):
            return True
        if node.domain not in ("", "ai.onnx") or node.op_type in _NO_WEIGHTS:
            return False
        return any(self._large(name) for name in node.input)

    def replace(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the replacement of a node."""
        import onnx

        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        if node.name in self._left:
            reason = self._left[node.name]
        elif (rule := _RULES.get(node.op_type)) is None:
            reason = f"there is no form of {node.op_type} with packed weights"
        else:
            result = rule(self, kept)
            if not isinstance(result, str):
                self.packed.append(node.name)
                return result
            reason = result
        self.in_float.append(FloatNode(node.name, node.op_type, reason))
        return [kept]

    def matrix(self, name: str) -> Array | str:
        """Return a constant weight, or the reason why it is not packed."""
        if (found := self._find(name)) is None:
            return "the operand that would be its weights is computed"
        array = self._read(found[0])
        if array.dtype not in _FLOATS:
            return f"its weights are of {array.dtype}"
        if not np.isfinite(array).all():
            return "its weights hold NaN or infinity"
        return array if found[1] is None else array.transpose(found[1])

    def codes(self, weight: str, what: str, matrix: Array) -> list[str] | str:
        """Return the names of a matrix's packed values, scales and zero points, or a reason.

        Args:
            weight: the constant from which it is packed.
            what: "table", or how the matrix is derived from the constant.
            matrix: the numbers.
        """
        found = self._find(weight)
        key = weight if found is None else found[0].name or weight
        what += str(found and found[1])
        if (made := self._made.get((key, what))) is not None:
            return made
        bits, block = self.scheme.bits, self.scheme.block
        depth, columns = matrix.shape
        blocks = -(-depth // block)
        if min(depth, columns) == 0 or columns * blocks * (block * bits // 8 + 4) >= matrix.nbytes:
            return f"in blocks of {block} its weights would take more than they do"
        floats = np.ascontiguousarray(matrix, np.float32)
        name = "" if what.startswith("table") else key
        codes, scales, zeros = self._pack(floats, bits, block, self.scheme.symmetric, name)
        scales = scales.astype(matrix.dtype)
        if not np.isfinite(scales).all():
            return f"its scales are too large for {matrix.dtype}"
        if what.startswith("table"):
            codes = codes.reshape(columns, -1)
        arrays = [codes, scales] if self.scheme.symmetric else [codes, scales, zeros]
        suffixes = ("codes", "scales", "zeros")
        names = [
            self.add(f"{key}_{suffix}", array)
            for suffix, array in zip(suffixes, arrays, strict=False)
        ]
        self._made[key, what] = names
        return names

    def add(self, name: str, array: Array) -> str:
        """Add a constant, and return its name."""
        from onnx import numpy_helper

        free = self.name(name)
        self.model.graph.initializer.append(numpy_helper.from_array(array, free))
        return free

    def name(self, wanted: str) -> str:
        """Return an unused name."""
        free, number = wanted, 1
        while free in self._taken:
            free, number = f"{wanted}_{number}", number + 1
        self._taken.add(free)
        return free

    def node(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], name: str, **more: Any
    ) -> onnx.NodeProto:
        """Return a node of com.microsoft, and import that domain's operators."""
        from onnx import helper

        if not any(entry.domain == _CONTRIB for entry in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(_CONTRIB, 1))
        return helper.make_node(op, inputs, outputs, name=name, domain=_CONTRIB, **more)

    def finish(self) -> None:
        """Remove constants that are no longer read."""
        while _sweep(list(graphs_of(self.model.graph))):
            pass

    def _large(self, name: str) -> bool:
        """True for constants that are weights rather than shapes, axes or biases."""
        found = self._find(name)
        return (
            found is not None
            and found[0].data_type in FLOAT_TYPES
            and prod(found[0].dims) >= _MIN_ELEMENTS
        )

    def _find(self, name: str) -> tuple[onnx.TensorProto, tuple[int, ...] | None] | None:
        """Return the constant of a name, and the permutation of its axes."""
        from onnx import helper

        if (tensor := self._tensors.get(name)) is not None:
            return tensor, None
        if (node := self._makers.get(name)) is None:
            return None
        values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if node.op_type == "Constant" and "value" in values:
            return values["value"], None
        if node.op_type not in ("Identity", "Transpose") or not node.input:
            return None
        found = self._find(node.input[0])
        if found is None or node.op_type == "Identity":
            return found
        tensor, before = found
        rank = len(tensor.dims)
        perm = tuple(values.get("perm", range(rank)[::-1]))
        if len(perm) != rank:
            return None
        return tensor, perm if before is None else tuple(before[axis] for axis in perm)


def _matmul(packer: _Packer, node: onnx.NodeProto) -> list[onnx.NodeProto] | str:
    weight = packer.matrix(node.input[1])
    if isinstance(weight, str):
        return weight
    if weight.ndim != 2:
        return f"its weights have {weight.ndim} dimensions"
    return _product(packer, node, weight, "", node.output[0])


def _gemm(packer: _Packer, node: onnx.NodeProto) -> list[onnx.NodeProto] | str:
    from onnx import helper

    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    biased = len(node.input) > 2 and bool(node.input[2])
    if values.get("alpha", 1.0) != 1 or (biased and values.get("beta", 1.0) != 1):
        return "alpha or beta is not 1"
    if values.get("transA", 0):
        return "its left operand is transposed"
    weight = packer.matrix(node.input[1])
    if isinstance(weight, str):
        return weight
    turned = "transposed" if values.get("transB", 0) else ""
    matrix = weight.T if turned else weight
    if not biased:
        return _product(packer, node, matrix, turned, node.output[0])
    between = packer.name(f"{node.output[0]}_product")
    nodes = _product(packer, node, matrix, turned, between)
    if isinstance(nodes, str):
        return nodes
    add = helper.make_node("Add", [between, node.input[2]], [node.output[0]], f"{node.name}_bias")
    return [*nodes, add]


def _product(
    packer: _Packer, node: onnx.NodeProto, matrix: Array, turned: str, output: str
) -> list[onnx.NodeProto] | str:
    names = packer.codes(node.input[1], turned, matrix)
    if isinstance(names, str):
        return names
    depth, columns = matrix.shape
    scheme = packer.scheme
    sizes = {"K": depth, "N": columns, "bits": scheme.bits, "block_size": scheme.block}
    return [packer.node("MatMulNBits", [node.input[0], *names], [output], node.name, **sizes)]


def _gather(packer: _Packer, node: onnx.NodeProto) -> list[onnx.NodeProto] | str:
    table = packer.matrix(node.input[0])
    if isinstance(table, str):
        return table
    axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
    block = packer.scheme.block
    if table.ndim != 2 or axis not in (0, -2):
        return "only rows of matrices can be packed"
    if table.shape[1] % block:
        return f"its rows of {table.shape[1]} are not whole blocks of {block}"
    names = packer.codes(node.input[0], "table", table.T)
    if isinstance(names, str):
        return names
    inputs = [names[0], node.input[1], *names[1:]]
    more = {"bits": packer.scheme.bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    return [packer.node("GatherBlockQuantized", inputs, list(node.output), node.name, **more)]


def _convolution(packer: _Packer, node: onnx.NodeProto) -> list[onnx.NodeProto] | str:
    """Store a convolution's weights as int8 with a scale per channel, before the node."""
    from onnx import helper

    if packer.scheme.bits != 8:
        return "convolutions are stored in 8 bits, not in 4"
    weight = packer.matrix(node.input[1])
    if isinstance(weight, str):
        return weight
    axis = 0 if node.op_type == "Conv" else 1
    rest = tuple(other for other in range(weight.ndim) if other != axis)
    largest = np.abs(weight.astype(np.float32)).max(axis=rest)
    scales = np.where(largest > 0, largest / 127, 1).astype(weight.dtype)
    scales[scales == 0] = 1  # a subnormal that float16 cannot represent
    shape = [-1 if other == axis else 1 for other in range(weight.ndim)]
    wide = weight.astype(np.float32) / scales.astype(np.float32).reshape(shape)
    if weight.size + scales.nbytes + scales.size >= weight.nbytes:
        return "in 8 bits its weights would take more than they do"
    codes = packer.add(f"{node.input[1]}_codes", np.rint(wide).clip(-127, 127).astype(np.int8))
    scale = packer.add(f"{node.input[1]}_scales", scales)
    # Zero points may be left out, but onnxruntime 1.32 with session.x64quantprecision needs them.
    zeros = packer.add(f"{node.input[1]}_zeros", np.zeros(scales.shape, np.int8))
    floats = packer.name(f"{node.input[1]}_decoded")
    decode = helper.make_node(
        "DequantizeLinear", [codes, scale, zeros], [floats], f"{node.name}_weights", axis=axis
    )
    node.input[1] = floats
    return [decode, node]


def _fused_matmul(packer: _Packer, node: onnx.NodeProto) -> list[onnx.NodeProto] | str:
    from onnx import helper

    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    others = {name: one for name, one in values.items() if name != "transB" and one}
    if others.pop("alpha", 1.0) != 1 or others:
        return "its operands are scaled or transposed"
    weight = packer.matrix(node.input[1])
    if isinstance(weight, str):
        return weight
    if weight.ndim != 2:
        return f"its weights have {weight.ndim} dimensions"
    turned = "transposed" if values.get("transB", 0) else ""
    return _product(packer, node, weight.T if turned else weight, turned, node.output[0])


def _to_array(tensor: onnx.TensorProto) -> Array:
    from onnx import numpy_helper

    found: Array = numpy_helper.to_array(tensor)
    return found


_RULES: dict[str, Callable[[_Packer, Any], list[Any] | str]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "FusedMatMul": _fused_matmul,
    "Gather": _gather,
    "Conv": _convolution,
    "ConvTranspose": _convolution,
}
_NO_WEIGHTS = {"Constant", "Identity", "Transpose", "If", "Loop", "Scan", "Cast"}


def _set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    import onnx

    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)


def _sweep(graphs: Sequence[onnx.GraphProto]) -> bool:
    """Remove unread constants, and their Identity and Transpose nodes; True if any."""
    read = {name for graph in graphs for node in graph.node for name in node.input}
    read |= {value.name for graph in graphs for value in graph.output}
    removed = False
    for graph in graphs:
        gone = {tensor.name for tensor in graph.initializer} - read
        idle = [
            node.op_type in ("Constant", "Identity", "Transpose") and not read & {*node.output}
            for node in graph.node
        ]
        _remove(graph.initializer, [tensor.name in gone for tensor in graph.initializer])
        _remove(graph.input, [value.name in gone for value in graph.input])
        _remove(graph.node, idle)
        removed |= bool(gone) or any(idle)
    return removed


def _remove(items: Any, flags: Sequence[bool]) -> None:
    for index in reversed(range(len(flags))):
        if flags[index]:
            del items[index]
