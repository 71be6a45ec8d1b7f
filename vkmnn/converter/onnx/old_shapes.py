"""Shapes within a model of an opset before 6, whose operators have no rules in the onnx package."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vkmnn.converter.onnx.inference import infer_shapes

if TYPE_CHECKING:
    import onnx

_Shape = tuple[int, ...]
_Rule = Callable[[list[_Shape], Mapping[str, Any], int], list[_Shape]]

_LIKE_FIRST = {
    *("Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor"),
    *("HardSigmoid", "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul"),
    *("Neg", "PRelu", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sqrt", "Sub", "Sum", "Tanh"),
}
"""Operators of opset 1 whose result has the shape of their first input: only the second of two
operands was broadcast then."""


def with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with shapes of values, inferred from its inputs.

    Shapes with sizes that are not numbers are inferred only as far as the onnx package does.
    """
    model = infer_shapes(model)
    while True:
        infos = _known(model.graph)
        added = [info for node in model.graph.node for info in _made(node, infos)]
        if not added:
            return model
        model.graph.value_info.extend(added)
        model = infer_shapes(model)


def _known(graph: onnx.GraphProto) -> dict[str, tuple[int, _Shape]]:
    """Return element types and shapes by name, if all sizes are numbers."""
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            found[value.name] = (tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim))
    return found


def _made(node: onnx.NodeProto, infos: dict[str, tuple[int, _Shape]]) -> list[onnx.ValueInfoProto]:
    """Return the infos of a node's outputs; None if they, or its inputs, are unknown."""
    from onnx import helper

    rule = _like_first if node.op_type in _LIKE_FIRST else _RULES.get(node.op_type)
    missing = [name for name in node.output if name and name not in infos]
    if rule is None or node.domain or not missing or not node.input:
        return []
    if any(name and name not in infos for name in node.input):
        return []
    attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    shapes = [infos[name][1] if name else () for name in node.input]
    try:
        results = rule(shapes, attributes, len(node.output))
    except (IndexError, KeyError, ValueError, ZeroDivisionError):
        return []  # the converter reports the error
    kind = attributes["to"] if node.op_type == "Cast" else infos[node.input[0]][0]
    made = []
    # Running values of a normalisation, and the mask of a dropout, are of no use to anyone.
    for name, shape in zip(node.output, results, strict=False):
        if name in missing:
            infos[name] = (kind, shape)
            made.append(helper.make_tensor_value_info(name, kind, list(shape)))
    return made


def _like_first(shapes: list[_Shape], attributes: Mapping[str, Any], count: int) -> list[_Shape]:
    return [shapes[0]]


def _concat(shapes: list[_Shape], attributes: Mapping[str, Any], count: int) -> list[_Shape]:
    axis = attributes.get("axis", 1)
    result = list(shapes[0])
    result[axis] = sum(shape[axis] for shape in shapes)
    return [tuple(result)]


def _gemm(shapes: list[_Shape], attributes: Mapping[str, Any], count: int) -> list[_Shape]:
    rows = shapes[0][1 if attributes.get("transA") else 0]
    return [(rows, shapes[1][0 if attributes.get("transB") else 1])]


def _pad(shapes: list[_Shape], attributes: Mapping[str, Any], count: int) -> list[_Shape]:
    pads, rank = attributes["paddings"], len(shapes[0])
    return [tuple(size + pads[i] + pads[i + rank] for i, size in enumerate(shapes[0]))]


def _reshape(shapes: list[_Shape], attributes: Mapping[str, Any], count: int) -> list[_Shape]:
    wanted = [shapes[0][i] if size == 0 else size for i, size in enumerate(attributes["shape"])]
    if -1 in wanted:
        others = math.prod(size for size in wanted if size != -1)
        wanted[wanted.index(-1)] = math.prod(shapes[0]) // others
    return [tuple(wanted)]


def _split(shapes: list[_Shape], attributes: Mapping[str, Any], count: int) -> list[_Shape]:
    axis = attributes.get("axis", 0)
    if len(shapes) > 1:
        raise ValueError("the sizes are an input")
    size = shapes[0][axis]
    sizes = attributes.get("split") or [size // count] * count
    return [(*shapes[0][:axis], part, *shapes[0][axis + 1 :]) for part in sizes]


def _upsample(shapes: list[_Shape], attributes: Mapping[str, Any], count: int) -> list[_Shape]:
    n, channels, height, width = shapes[0]
    tall, wide = attributes["height_scale"], attributes["width_scale"]
    return [(n, channels, int(height * tall), int(width * wide))]


_RULES: dict[str, _Rule] = {
    "Cast": _like_first,
    "Concat": _concat,
    "Gemm": _gemm,
    "Pad": _pad,
    "Reshape": _reshape,
    "Split": _split,
    "Upsample": _upsample,
}
