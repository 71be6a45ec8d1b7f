"""Gathering, scattering and sampling by index."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    ConstantOfShapeAttrs,
    GatherNDAttrs,
    GridSampleAttrs,
    OpAttrs,
    PadAttrs,
    ReductionAttrs,
    ReshapeAttrs,
    ScatterElementsAttrs,
    ScatterNDAttrs,
    ShapeAttrs,
)

_REDUCTIONS = ("none", "add", "mul", "max", "min")
_OF_BOOLEANS = {"add": "max", "mul": "min"}


def _gather(op_type: str) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        node.finish(op_type, node.inputs, AxisAttrs(node.int("axis", 0)))

    return convert


converter("Gather")(_gather("Gather"))
converter("GatherElements", since=11)(_gather("GatherElements"))


@converter("GatherND", since=11)
def _gather_nd(node: NodeContext) -> None:
    node.finish("GatherND", node.inputs, GatherNDAttrs(node.int("batch_dims", 0)))


def _reduction(node: NodeContext) -> str:
    """Return the reduction of updates; for booleans, "add" is logical or."""
    name = node.choice("reduction", "none", _REDUCTIONS)
    return _OF_BOOLEANS.get(name, name) if node.dtype(node.input(0)) is DType.BOOL else name


@converter("ScatterND", since=11)
def _scatter_nd(node: NodeContext) -> None:
    node.finish("ScatterND", node.inputs, ScatterNDAttrs(_reduction(node)))


@converter("ScatterElements", since=11)
@converter("Scatter", since=9)
def _scatter_elements(node: NodeContext) -> None:
    attrs = ScatterElementsAttrs(node.int("axis", 0), _reduction(node))
    node.finish("ScatterElements", node.inputs, attrs)


@converter("OneHot", since=9)
def _one_hot(node: NodeContext) -> None:
    indices, depth, values = node.inputs

    def as_int64(name: str) -> str:
        if node.dtype(name).is_integer:
            return name
        return node.emit("Cast", [name], CastAttrs(DType.INT64))

    attrs = AxisAttrs(node.int("axis", -1))
    node.finish("OneHot", [as_int64(indices), as_int64(depth), values], attrs)


_OLD_SAMPLE_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_PADDING_MODES = ("zeros", "border", "reflection")


@converter("GridSample", since=16)
def _grid_sample(node: NodeContext) -> None:
    mode = node.choice("mode", "linear", ("linear", "nearest", "cubic", *_OLD_SAMPLE_MODES))
    attrs = GridSampleAttrs(
        _OLD_SAMPLE_MODES.get(mode, mode),
        node.choice("padding_mode", "zeros", _PADDING_MODES),
        node.bool("align_corners"),
    )
    node.finish("GridSample", node.inputs, attrs)


@converter("TensorScatter", since=24)
def _tensor_scatter(node: NodeContext) -> None:
    """Scatter along the axis from each sample's position, circularly if requested."""
    past, update, starts = node.input(0), node.input(1), node.input(2)
    rank = node.rank(past)
    axis = node.axis("axis", -2, rank)
    mode = node.choice("mode", "linear", ("linear", "circular"))
    if axis == 0:
        raise node.unsupported("the batch axis")
    extent = node.emit("Shape", [update], ShapeAttrs(axis, axis + 1))
    end = node.emit("Squeeze", [extent, node.ints_constant([0])], OpAttrs())
    places = node.emit("Range", [node.constant(np.int64(0)), end, node.constant(np.int64(1))])
    along = node.ints_constant([-1, *(1,) * (rank - axis - 1)])
    places = node.emit("Reshape", [places, along], ReshapeAttrs())
    if starts:
        first = node.ints_constant([-1, *(1,) * (rank - 1)])
        starts = node.emit("Reshape", [starts, first], ReshapeAttrs())
        places = node.emit("BinaryOp", [starts, places], BinaryAttrs("ADD"))
    if mode == "circular":
        room = node.emit("Shape", [past], ShapeAttrs(axis, axis + 1))
        places = node.emit("BinaryOp", [places, room], BinaryAttrs("MOD"))
    shape = node.emit("Shape", [update], ShapeAttrs())
    places = node.emit("Expand", [places, shape])
    node.finish("ScatterElements", [past, places, update], ScatterElementsAttrs(axis))


@converter("MaxUnpool", since=9)
def _max_unpool(node: NodeContext) -> None:
    """Write each maximum to its original position; indices count in the flat result."""
    x, index = node.inputs[:2]
    kernel = node.ints("kernel_shape")
    count = len(kernel)
    strides = node.ints("strides", (1,) * count)
    pads = node.ints("pads", (0,) * 2 * count)
    extra = [kernel[i] - strides[i] - pads[i] - pads[count + i] for i in range(count)]
    sizes = node.emit("Shape", [x], ShapeAttrs(2))
    sizes = node.emit("BinaryOp", [sizes, node.ints_constant(strides)], BinaryAttrs("MUL"))
    sizes = node.emit("BinaryOp", [sizes, node.ints_constant(extra)], BinaryAttrs("ADD"))
    lead = node.emit("Shape", [x], ShapeAttrs(0, 2))
    shape = node.emit("Concat", [lead, sizes], AxisAttrs(0))
    given = node.input(2)
    if given:
        shape = given if _is_of_pool(node, index) else _counted_in(node, shape, given)
    zeros = node.emit("ConstantOfShape", [shape], ConstantOfShapeAttrs(0.0, node.dtype(x)))
    flat = node.ints_constant([-1])
    rows = node.ints_constant([-1, 1])
    zeros = node.emit("Reshape", [zeros, flat], ReshapeAttrs())
    values = node.emit("Reshape", [x, flat], ReshapeAttrs())
    index = node.emit("Reshape", [index, rows], ReshapeAttrs())
    filled = node.emit("ScatterND", [zeros, index, values], ScatterNDAttrs())
    result = node.emit("Reshape", [filled, shape], ReshapeAttrs())
    if given and given != shape:
        room = node.emit("BinaryOp", [given, shape], BinaryAttrs("SUB"))
        before = node.ints_constant([0] * (2 + count))
        pads_after = node.emit("Concat", [before, room], AxisAttrs(0))
        result = node.emit("Pad", [result, pads_after], PadAttrs())
    node.finish("Identity", [result])


def _is_of_pool(node: NodeContext, index: str) -> bool:
    """Return whether indices come from a MaxPool, and thus count in its whole input."""
    maker = node.maker(index)
    return maker is not None and maker.type == "Pooling"


def _counted_in(node: NodeContext, inferred: str, given: str) -> str:
    """Return the shape that indices of unknown origin count in where output_shape is given.

    As in onnx's own tests, that is the inferred shape, and the result has zeros after it; but
    output_shape if that is smaller along some axis.
    """
    fits = node.emit("BinaryOp", [given, inferred], BinaryAttrs("GREATER_EQUAL"))
    fits = node.emit("Cast", [fits], CastAttrs(DType.INT64))
    fits = node.emit("Reduction", [fits], ReductionAttrs("MIN", keepdims=True))
    less = node.emit("BinaryOp", [inferred, given], BinaryAttrs("SUB"))
    less = node.emit("BinaryOp", [less, fits], BinaryAttrs("MUL"))
    return node.emit("BinaryOp", [given, less], BinaryAttrs("ADD"))
