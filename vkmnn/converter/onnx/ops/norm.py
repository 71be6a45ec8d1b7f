"""Normalisation and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.ops.training import batch_statistics
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    ArgReduceAttrs,
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    GroupNormAttrs,
    LayerNormAttrs,
    LRNAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    ScaleAttrs,
    ShapeAttrs,
    SoftmaxAttrs,
    UnaryAttrs,
)


@converter("BatchNormalization", since=7)
def _batch_norm(node: NodeContext) -> None:
    """Inference form: scale' = scale / sqrt(var + epsilon), bias' = bias − mean · scale'.

    BatchNorm-15 lets x, scale and the statistics have different float types; it computes in the
    statistics' type, the most precise one.
    """
    if node.opset >= 14 and node.bool("training_mode"):
        batch_statistics(node)
        return
    if any(node.is_read(index) for index in range(1, len(node.outputs))):
        raise node.unsupported("it returns running statistics; export the model for inference")
    x, scale, bias, mean, var = node.inputs
    epsilon = node.float("epsilon", 1e-5)
    values = [node.const_value(name) for name in (scale, bias, mean, var)]
    dtype = node.dtype(x)
    if all(value is not None for value in values):
        wide = [np.asarray(value, np.float64) for value in values]
        new_scale = wide[0] / np.sqrt(wide[3] + epsilon)
        new_bias = wide[1] - wide[2] * new_scale
        factors = [node.constant(new_scale, dtype), node.constant(new_bias, dtype)]
    else:
        factors = _run_time_factors(node, [scale, bias, mean, var], epsilon, dtype)
    if node.opset < 9 and not node.bool("spatial", True):  # statistics for each element of a sample
        product = node.emit("BinaryOp", [x, factors[0]], BinaryAttrs("MUL"))
        node.finish("BinaryOp", [product, factors[1]], BinaryAttrs("ADD"))
        return
    node.finish("Scale", [x, *factors], ScaleAttrs())


def _run_time_factors(
    node: NodeContext, names: Sequence[str], epsilon: float, dtype: DType
) -> list[str]:
    wide = node.dtype(names[3])

    def cast(name: str, to: DType) -> str:
        return name if node.dtype(name) == to else node.emit("Cast", [name], CastAttrs(to))

    scale, bias, mean, var = (cast(name, wide) for name in names)
    shifted = node.emit("BinaryOp", [var, node.constant(epsilon, wide)], BinaryAttrs("ADD"))
    inverse = node.emit("UnaryOp", [shifted], UnaryAttrs("RSQRT"))
    new_scale = node.emit("BinaryOp", [scale, inverse], BinaryAttrs("MUL"))
    offset = node.emit("BinaryOp", [mean, new_scale], BinaryAttrs("MUL"))
    new_bias = node.emit("BinaryOp", [bias, offset], BinaryAttrs("SUB"))
    if wide == dtype:
        return [new_scale, new_bias]
    return [node.emit("Cast", [name], CastAttrs(dtype)) for name in (new_scale, new_bias)]


@converter("InstanceNormalization", since=6)
def _instance_norm(node: NodeContext) -> None:
    node.finish("GroupNorm", node.inputs, GroupNormAttrs(0, node.float("epsilon", 1e-5)))


@converter("GroupNormalization", since=18)
def _group_norm_by_group(node: NodeContext) -> None:
    """Before opset 21, scale and bias hold one value per group: repeat it for its channels."""
    x, scale, bias = node.inputs
    groups = node.int("num_groups")
    channels = node.emit("Shape", [x], ShapeAttrs(1, 2))
    size = node.emit("BinaryOp", [channels, node.ints_constant([groups])], BinaryAttrs("DIV"))
    repeats = node.emit("Concat", [node.ints_constant([1]), size], AxisAttrs(0))

    def per_channel(name: str) -> str:
        column = node.emit("Unsqueeze", [name, node.ints_constant([1])])
        tiled = node.emit("Tile", [column, repeats])
        return node.emit("Reshape", [tiled, node.ints_constant([-1])], ReshapeAttrs())

    attrs = GroupNormAttrs(groups, node.float("epsilon", 1e-5))
    node.finish("GroupNorm", [x, per_channel(scale), per_channel(bias)], attrs)


@converter("GroupNormalization", since=21)
def _group_norm(node: NodeContext) -> None:
    attrs = GroupNormAttrs(node.int("num_groups"), node.float("epsilon", 1e-5))
    node.finish("GroupNorm", node.inputs, attrs)


@converter("LayerNormalization", since=17)
def _layer_norm(node: NodeContext) -> None:
    attrs = LayerNormAttrs(node.int("axis", -1), node.float("epsilon", 1e-5))
    node.emit("LayerNorm", node.inputs, attrs, node.outputs)


@converter("RMSNormalization", since=23)
def _rms_norm(node: NodeContext) -> None:
    attrs = LayerNormAttrs(node.int("axis", -1), node.float("epsilon", 1e-5), rms=True)
    node.finish("LayerNorm", node.inputs, attrs)


@converter("MeanVarianceNormalization", since=9)
def _mean_variance(node: NodeContext) -> None:
    """Divide x − mean by the standard deviation plus 1e-9, which ONNX's function body adds.

    The variance is the mean of squares, not that body's difference of two, which rounding may make
    negative. float16, in which 1e-9 is 0, is computed in float32.
    """
    x, axes = node.input(0), node.ints_constant(node.ints("axes", (0, 2, 3)))
    dtype = node.dtype(x)
    wide = DType.FLOAT32 if dtype is DType.FLOAT16 else dtype
    if wide is not dtype:
        x = node.emit("Cast", [x], CastAttrs(wide))
    mean = ReductionAttrs("MEAN")
    average = node.emit("Reduction", [x, axes], mean)
    centred = node.emit("BinaryOp", [x, average], BinaryAttrs("SUB"))
    square = node.emit("UnaryOp", [centred], UnaryAttrs("SQUARE"))
    variance = node.emit("Reduction", [square, axes], mean)
    deviation = node.emit("UnaryOp", [variance], UnaryAttrs("SQRT"))
    divisor = node.emit("BinaryOp", [deviation, node.constant(1e-9, wide)], BinaryAttrs("ADD"))
    if wide is dtype:
        node.finish("BinaryOp", [centred, divisor], BinaryAttrs("DIV"))
        return
    quotient = node.emit("BinaryOp", [centred, divisor], BinaryAttrs("DIV"))
    node.finish("Cast", [quotient], CastAttrs(dtype))


@converter("LRN")
def _lrn(node: NodeContext) -> None:
    attrs = LRNAttrs(
        node.int("size"),
        node.float("alpha", 1e-4),
        node.float("beta", 0.75),
        node.float("bias", 1.0),
    )
    node.finish("LRN", node.inputs, attrs)


@converter("LpNormalization")
def _lp_norm(node: NodeContext) -> None:
    """Divide x by its norm along an axis; if the norm is 0, x and the result are 0."""
    x = node.input(0)
    kind = {1: "L1", 2: "L2"}.get(node.int("p", 2))
    if kind is None:
        raise node.unsupported("p has to be 1 or 2")
    axes = node.ints_constant([node.int("axis", -1)])
    size = node.emit("Reduction", [x, axes], ReductionAttrs(kind))
    zero, one = (node.constant(value, node.dtype(x)) for value in (0, 1))
    is_zero = node.emit("BinaryOp", [size, zero], BinaryAttrs("EQUAL"))
    size = node.emit("Select", [is_zero, one, size])
    node.finish("BinaryOp", [x, size], BinaryAttrs("DIV"))


def _softmax(log: bool) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        node.finish("Softmax", node.inputs, SoftmaxAttrs(node.int("axis", -1), log))

    return convert


def _flat_softmax(log: bool) -> Callable[[NodeContext], None]:
    """Before opset 13 the input counts as a matrix whose columns are the axes from `axis` on."""

    def convert(node: NodeContext) -> None:
        axis = node.int("axis", 1)
        rank = node.known_rank(node.input(0))
        is_last = axis == -1 or (rank is not None and axis == rank - 1)
        attrs = SoftmaxAttrs(-1, log) if is_last else SoftmaxAttrs(axis, log, flatten=True)
        node.finish("Softmax", node.inputs, attrs)

    return convert


converter("Softmax")(_flat_softmax(False))
converter("Softmax", since=13)(_softmax(False))
converter("LogSoftmax")(_flat_softmax(True))
converter("LogSoftmax", since=13)(_softmax(True))


def _one_at_maximum(node: NodeContext, x: str, axis: int) -> str:
    # An empty axis gives any index: OneHot ignores it.
    attrs = ArgReduceAttrs(axis, keepdims=False, empty_gives_zero=True)
    best = node.emit("ArgMax", [x], attrs)
    shape = node.emit("Shape", [x], ShapeAttrs())
    depth = node.emit("Gather", [shape, node.constant(np.int64(axis))], AxisAttrs(0))
    values = node.constant([0, 1], node.dtype(node.input(0)))
    return node.emit("OneHot", [best, depth, values], AxisAttrs(axis))


@converter("Hardmax")
def _flat_hardmax(node: NodeContext) -> None:
    x = node.input(0)
    matrix = node.emit("Flatten", [x], AxisAttrs(node.int("axis", 1)))
    shape = node.emit("Shape", [x], ShapeAttrs())
    attrs = ReshapeAttrs(allowzero=True)
    node.finish("Reshape", [_one_at_maximum(node, matrix, -1), shape], attrs)


@converter("Hardmax", since=13)
def _hardmax(node: NodeContext) -> None:
    hot = _one_at_maximum(node, node.input(0), node.int("axis", -1))
    node.finish("Identity", [hot])
