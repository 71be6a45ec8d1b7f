"""Rewrites integer products to a form that onnxruntime computes exactly on every processor.

Without VNNI, its kernels for x86 add pairs of products of uint8 and int8 in 16 bits, which saturate
("When and why do I need to try U8U8?" in onnxruntime's page on quantisation). Weights and zero
points that are both increased by 128 have the same differences, so all sums stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

PLACES = {
    "MatMulInteger": (0, 1, 3),
    "ConvInteger": (0, 1, 3),
    "QLinearMatMul": (0, 3, 5),
    "QLinearConv": (0, 3, 5),
    "QGemm": (0, 3, 5),
    "DynamicQuantizeMatMul": (0, 1, 3),
    "MatMulIntegerToFloat": (0, 1, 5),
    "QAttention": (0, 1, 7),
}
"""Operator -> positions of its operand, its weights and their zero points."""


def with_exact_codes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which weights of int8 that are multiplied by uint8 are uint8.

    Weights that are computed in the run are converted by nodes. Models without these products are
    returned unchanged; so are products in the bodies of loops and branches.
    """
    import onnx

    if lacks_zero_points(model):
        model = _with_zero_points(model)
    types = _types(model.graph)
    if not any(_mixes(node, types) for node in model.graph.node):
        return model
    same = onnx.ModelProto()
    same.CopyFrom(model)
    del same.graph.node[:]
    raised: dict[str, str] = {}
    for node in model.graph.node:
        if not _mixes(node, types):
            same.graph.node.append(node)
            continue
        _, weights, zero_point = PLACES[node.op_type]
        mine = onnx.NodeProto()
        mine.CopyFrom(node)
        mine.input.extend([""] * (zero_point + 1 - len(mine.input)))
        for position in (weights, zero_point):
            name = mine.input[position]
            if name not in raised:
                raised[name] = _raise(same.graph, name)
            mine.input[position] = raised[name]
        same.graph.node.append(mine)
    return same


def lacks_zero_points(model: onnx.ModelProto) -> bool:
    """Return whether onnxruntime fails while it converts constant int8 weights to uint8.

    It does (1.32) if a DequantizeLinear of a constant has a scale per channel and no zero point.
    """
    return next(_bare_weights(model.graph), None) is not None


def _bare_weights(graph: onnx.GraphProto) -> Iterator[tuple[int, onnx.TensorProto]]:
    """Yield the position and channel scale of each DequantizeLinear without a zero point."""
    import onnx

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for place, node in enumerate(graph.node):
        if node.op_type != "DequantizeLinear" or (len(node.input) > 2 and node.input[2]):
            continue
        weights, scale = (constants.get(name) for name in node.input[:2])
        if weights is None or scale is None or weights.data_type != onnx.TensorProto.INT8:
            continue
        if scale.dims:
            yield place, scale


def _with_zero_points(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose constant int8 weights with a scale per channel have zero points."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    same = onnx.ModelProto()
    same.CopyFrom(model)
    for place, scale in list(_bare_weights(same.graph)):
        zeros = numpy_helper.from_array(np.zeros(list(scale.dims), np.int8), f"{scale.name}, zeros")
        if all(tensor.name != zeros.name for tensor in same.graph.initializer):
            same.graph.initializer.append(zeros)
        node = same.graph.node[place]
        node.input[2:] = [zeros.name]
    return same


def _types(graph: onnx.GraphProto) -> dict[str, int]:
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    return types


def _mixes(node: onnx.NodeProto, types: dict[str, int]) -> bool:
    """Return whether a node multiplies int8 weights by something else."""
    import onnx

    if node.op_type not in PLACES:
        return False
    multiplied, weights, _ = PLACES[node.op_type]
    given = types.get(node.input[multiplied])
    signed = types.get(node.input[weights]) == onnx.TensorProto.INT8
    return signed and given != onnx.TensorProto.INT8


def _raise(graph: onnx.GraphProto, name: str) -> str:
    """Add nodes that increase a value by 128 as uint8, and return its name; '' stands for zero."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    made = f"{name or 'zero point'}, greater by 128"
    if not name:
        graph.initializer.append(numpy_helper.from_array(np.array(128, np.uint8), made))
        return made
    by = f"{made}: by"
    graph.initializer.append(numpy_helper.from_array(np.array(128, np.int32), by))
    wide, sum_ = f"{made}: wide", f"{made}: sum"
    graph.node.extend(
        (
            helper.make_node("Cast", [name], [wide], to=TensorProto.INT32),
            helper.make_node("Add", [wide, by], [sum_]),
            helper.make_node("Cast", [sum_], [made], to=TensorProto.UINT8),
        )
    )
    return made
