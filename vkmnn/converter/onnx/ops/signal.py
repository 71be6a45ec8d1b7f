"""Fourier transforms, as products with a matrix of sines and cosines."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.converter.onnx.types import DTYPES
from vkmnn.errors import ShapeError, plural
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    DFTAttrs,
    MatMulAttrs,
    MelWeightMatrixAttrs,
    OpAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    TransposeAttrs,
)
from vkmnn.shape.fourier import MAX_MATRIX, Transform, fourier_matrix, transform_of

_FLOAT = 1  # TensorProto.DataType


def _transformed(node: NodeContext, x: str, axis: str, length: str, attrs: DFTAttrs) -> str:
    """Transform a tensor: by a matrix if everything that determines it is known, else by DFT.

    Args:
        node: the node.
        x: the tensor, whose last axis holds the parts of each number.
        axis: a tensor of one integer.
        length: a tensor of one integer, or "" where the axis decides.
        attrs: which way.
    """
    found = _known_transform(node, x, axis, length, attrs)
    if found is None or found.matrix_size > MAX_MATRIX:
        return node.emit("DFT", [x, axis, length], attrs)
    rank = node.rank(x)
    others = [place for place in range(rank - 1) if place != found.axis]
    perm = (*others, found.axis, rank - 1)
    if found.axis != rank - 2:
        x = node.emit("Transpose", [x], TransposeAttrs(perm))
    zeros = [0] * (rank - 2)
    flat = node.ints_constant([*zeros, found.rows * found.parts])
    x = node.emit("Reshape", [x, flat], ReshapeAttrs())
    matrix = node.constant(fourier_matrix(found), node.dtype(x))
    product = node.emit("MatMul", [x, matrix], MatMulAttrs())
    sizes = node.ints_constant([*zeros, found.made, found.outputs])
    made = node.emit("Reshape", [product, sizes], ReshapeAttrs())
    if found.axis == rank - 2:
        return made
    back = tuple(perm.index(place) for place in range(rank))
    return node.emit("Transpose", [made], TransposeAttrs(back))


def _known_transform(
    node: NodeContext, x: str, axis: str, length: str, attrs: DFTAttrs
) -> Transform | None:
    """Return the transform, None if it is known only at planning."""
    info = node.info(x)
    along, count = node.known_value(axis), node.known_value(length)
    if info is None or info.shape is None or along is None or (length and count is None):
        return None
    place = int(along.reshape(-1)[0])
    if not -len(info.shape) <= place < len(info.shape):
        raise node.unsupported(f"axis {place} of {len(info.shape)}")
    sizes = info.shape[place], info.shape[-1]
    if not all(isinstance(size, int) for size in sizes):
        return None
    shape = tuple(size if isinstance(size, int) else 1 for size in info.shape)
    try:
        return transform_of(
            attrs, shape, place, None if count is None else int(count.reshape(-1)[0])
        )
    except ShapeError as error:
        raise node.unsupported(error.message) from error


def _dft(node: NodeContext, axis: str) -> None:
    attrs = DFTAttrs(node.bool("inverse"), node.bool("onesided"))
    node.finish("Identity", [_transformed(node, node.input(0), axis, node.input(1), attrs)])


@converter("DFT", since=17)
def _dft_attribute(node: NodeContext) -> None:
    _dft(node, node.constant(np.int64(node.int("axis", 1))))


@converter("DFT", since=20)
def _dft_input(node: NodeContext) -> None:
    _dft(node, node.input(2) or node.constant(np.int64(-2)))


@converter("STFT", since=17)
def _stft(node: NodeContext) -> None:
    """Gather frames, weigh them with the window, transform each."""
    signal, window = node.input(0), node.input(2)
    rank = node.rank(signal)
    if rank not in (2, 3):
        raise node.unsupported(f"a signal of {plural(rank, 'axis', 'axes')}")
    if not (node.input(3) or window):
        raise node.unsupported("neither a window nor a length of frames")
    length = node.input(3) or node.emit("Shape", [window], ShapeAttrs())
    length, step = _scalar(node, length), _scalar(node, node.input(1))
    size, count = node.shape(window)[0] if window else None, node.const_value(length)
    if count is not None and isinstance(size, int) and size != count:
        raise node.unsupported("the window is not as long as a frame")
    frames = _frames(node, signal, length, step)
    if rank == 2:
        frames = node.emit("Unsqueeze", [frames, node.ints_constant([3])], OpAttrs())
    if window:
        window = _cast(node, window, node.dtype(signal))
        window = node.emit("Unsqueeze", [window, node.ints_constant([1])], OpAttrs())
        frames = node.emit("BinaryOp", [frames, window], BinaryAttrs("MUL"))
    attrs = DFTAttrs(onesided=node.bool("onesided", True))
    axis = node.constant(np.int64(2))
    node.finish("Identity", [_transformed(node, frames, axis, "", attrs)])


def _scalar(node: NodeContext, name: str) -> str:
    """Return a tensor of one integer as an int64 without axes, a constant if known."""
    value = node.known_value(name)
    if value is not None and value.size == 1:
        return node.constant(value.reshape(()).astype(np.int64))
    flat = node.emit("Reshape", [name, node.ints_constant([])], ReshapeAttrs())
    return _cast(node, flat, DType.INT64)


def _cast(node: NodeContext, name: str, to: DType) -> str:
    return name if node.dtype(name) is to else node.emit("Cast", [name], CastAttrs(to))


def _frames(node: NodeContext, signal: str, length: str, step: str) -> str:
    """Return the signal's frames along a new axis 1; an incomplete last frame is dropped."""
    zero, one = node.constant(np.int64(0)), node.constant(np.int64(1))
    total = node.emit("Shape", [signal], ShapeAttrs(1, 2))
    total = node.emit("Squeeze", [total, node.ints_constant([0])], OpAttrs())
    last = node.emit("BinaryOp", [total, length], BinaryAttrs("SUB"))
    last = node.emit("BinaryOp", [last, one], BinaryAttrs("ADD"))
    starts = node.emit("Range", [zero, last, step])
    starts = node.emit("Unsqueeze", [starts, node.ints_constant([1])], OpAttrs())
    within = node.emit("Range", [zero, length, one])
    places = node.emit("BinaryOp", [starts, within], BinaryAttrs("ADD"))
    return node.emit("Gather", [signal, places], AxisAttrs(1))


@converter("MelWeightMatrix", since=17)
def _mel_weight_matrix(node: NodeContext) -> None:
    """Compute the matrix while the network is planned: all that it depends on are numbers."""
    attrs = MelWeightMatrixAttrs(DTYPES[node.int("output_datatype", _FLOAT)])
    node.finish("MelWeightMatrix", node.inputs, attrs)
