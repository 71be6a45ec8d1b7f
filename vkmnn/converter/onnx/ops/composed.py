"""Operators composed of a few others: shifts, affine grids, reversed sequences."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import DType
from vkmnn.ir.ops import AxisAttrs, BinaryAttrs, CastAttrs, ReshapeAttrs, ShapeAttrs


def _binary(node: NodeContext, kind: str, a: str, b: str) -> str:
    return node.emit("BinaryOp", [a, b], BinaryAttrs(kind))


@converter("BitwiseNot", since=18)
def _bitwise_not(node: NodeContext) -> None:
    """−1 − x in two's complement, the maximum − x if unsigned."""
    dtype = node.dtype(node.input(0))
    ones = np.invert(np.zeros((), dtype.numpy.type))
    node.finish("BinaryOp", [node.constant(ones), node.input(0)], BinaryAttrs("SUB"))


@converter("BitShift", since=11)
def _bit_shift(node: NodeContext) -> None:
    """Multiply by a power of two, or divide by it and round down; large shifts give 0 or −1."""
    x, amount = node.inputs
    dtype = node.dtype(x)
    direction = node.choice("direction", "", ("LEFT", "RIGHT"))
    bits = np.iinfo(dtype.value).bits
    signed = dtype.value.startswith("int")
    # The sign bit alone is not a power of two; shifting all the way leaves the sign as well.
    largest = node.constant(bits - 2 if signed and direction == "RIGHT" else bits - 1, dtype)
    beyond = _binary(node, "GREATER", amount, largest)
    if signed:
        negative = _binary(node, "LESS", amount, node.constant(0, dtype))
        beyond = _binary(node, "OR", beyond, negative)
    powers = node.constant(
        np.left_shift(np.ones(bits, dtype.numpy.type), np.arange(bits, dtype=dtype.numpy))
    )
    safe = node.emit("Select", [beyond, node.constant(0, dtype), amount])
    index = node.emit("Cast", [safe], CastAttrs(DType.INT32))
    power = node.emit("Gather", [powers, index], AxisAttrs(0))
    zero = node.constant(0, dtype)
    if direction == "LEFT":
        node.finish("Select", [beyond, zero, _binary(node, "MUL", x, power)])
        return
    rest = _binary(node, "MOD", x, power)
    shifted = _binary(node, "DIV", _binary(node, "SUB", x, rest), power)
    fill = zero
    if signed:
        is_negative = _binary(node, "LESS", x, zero)
        minus_one = node.constant(-1, dtype)
        fill = node.emit("Select", [is_negative, minus_one, zero])
    node.finish("Select", [beyond, fill, shifted])


@converter("AffineGrid", since=20)
def _affine_grid(node: NodeContext) -> None:
    """Sum over the axes: position times a column of theta, plus theta's last column.

    Positions run from -1 to 1: over pixel centres with align_corners, over pixel edges without.
    """
    theta, size = node.inputs
    columns = node.shape(theta)[-1]
    if columns not in (3, 4):
        raise node.unsupported(f"theta has {columns} columns, not 3 or 4")
    dtype = node.dtype(theta)
    axes = columns - 1
    rows = node.ints_constant([-1, *(1,) * axes, axes])

    def column(index: int) -> str:
        values = node.emit("Gather", [theta, node.constant(np.int64(index))], AxisAttrs(2))
        return node.emit("Reshape", [values, rows], ReshapeAttrs())

    total = ""
    for index in range(axes):  # column 0 belongs to x, the innermost axis
        extent = node.emit(
            "Gather", [size, node.constant(np.int64(axes + 1 - index))], AxisAttrs(0)
        )
        positions = _positions(node, extent, dtype)
        along = node.ints_constant([-1, *(1,) * (index + 1)])
        positions = node.emit("Reshape", [positions, along], ReshapeAttrs())
        term = _binary(node, "MUL", positions, column(index))
        total = _binary(node, "ADD", total, term) if total else term
    node.finish("BinaryOp", [total, column(axes)], BinaryAttrs("ADD"))


def _positions(node: NodeContext, extent: str, dtype: DType) -> str:
    zero, one = node.constant(np.int64(0)), node.constant(np.int64(1))
    steps = node.emit("Range", [zero, extent, one])
    steps = node.emit("Cast", [steps], CastAttrs(dtype))
    count = node.emit("Cast", [extent], CastAttrs(dtype))
    two, minus_one = node.constant(2, dtype), node.constant(-1, dtype)
    if node.bool("align_corners"):
        gaps = _binary(node, "ADD", count, minus_one)
        at_least_one = _binary(node, "MAX", gaps, node.constant(1, dtype))
        scaled = _binary(node, "DIV", _binary(node, "MUL", steps, two), at_least_one)
        return _binary(node, "ADD", scaled, minus_one)
    centres = _binary(node, "ADD", _binary(node, "MUL", steps, two), node.constant(1, dtype))
    return _binary(node, "ADD", _binary(node, "DIV", centres, count), minus_one)


@converter("ReverseSequence", since=10)
def _reverse_sequence(node: NodeContext) -> None:
    """Gather element length − 1 − t at every time t below the length, element t after it."""
    x, lengths = node.inputs
    rank = node.rank(x)
    time_axis = node.axis("time_axis", 0, rank)
    shape = node.emit("Shape", [x], ShapeAttrs())
    extent = node.emit("Gather", [shape, node.constant(np.int64(time_axis))], AxisAttrs(0))
    zero, one = node.constant(np.int64(0)), node.constant(np.int64(1))
    times = node.emit("Range", [zero, extent, one])

    def along(name: str, axis: int) -> str:
        dims = node.ints_constant([-1, *(1,) * (rank - axis - 1)])
        return node.emit("Reshape", [name, dims], ReshapeAttrs())

    time = along(times, time_axis)
    length = along(lengths, node.axis("batch_axis", 1, rank))
    mirrored = _binary(node, "SUB", _binary(node, "SUB", length, one), time)
    index = node.emit("Select", [_binary(node, "LESS", time, length), mirrored, time])
    index = node.emit("Expand", [index, shape])
    node.finish("GatherElements", [x, index], AxisAttrs(time_axis))
