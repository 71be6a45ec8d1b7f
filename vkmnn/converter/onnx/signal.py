"""Fourier transforms, as products with a matrix of sines and cosines."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import Array, Dim
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    MatMulAttrs,
    OpAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    TransposeAttrs,
)

_MAX_ELEMENTS = 1 << 22
"""Matrices beyond this size cost more than a fast transform on the host."""


def fourier_matrix(
    rows: int, parts: int, length: int, *, inverse: bool, onesided: bool
) -> tuple[Array, int, int]:
    """Return the matrix of a transform, in float64, and its results: how many, of how many parts.

    Args:
        rows: how many elements are given; beyond `length` they are ignored.
        parts: 1 for real ones, 2 for complex ones, whose parts lie side by side.
        length: of the transform.
        inverse: whether it is the inverse one, which divides by the length.
        onesided: forward, half of the results; inverse, half of the elements are given.
    """
    is_real = inverse and onesided
    bins = length // 2 + 1 if onesided else length
    taken = min(rows, bins if is_real else length)
    made = length if is_real or not onesided else bins
    turns = np.outer(np.arange(taken), np.arange(made)) % length
    angles = (2 if inverse else -2) * np.pi * turns / length
    wave = np.exp(1j * angles)
    if inverse:
        wave = wave / length
    if is_real:  # all but the first and the middle one stand for two
        weight = np.full(taken, 2.0)
        weight[0] = 1
        if length % 2 == 0 and taken == bins:
            weight[-1] = 1
        wave = wave * weight[:, None]
    outputs = 1 if is_real else 2
    matrix = np.zeros((rows, parts, made, outputs))
    for part, factor in enumerate((1, 1j)[:parts]):
        product = wave * factor
        matrix[:taken, part, :, 0] = product.real
        if outputs == 2:
            matrix[:taken, part, :, 1] = product.imag
    if is_real and parts == 2:  # what the middle one's imaginary part would give is rounding
        matrix[0, 1] = 0
        if length % 2 == 0 and taken == bins:
            matrix[taken - 1, 1] = 0
    return matrix.reshape(rows * parts, made * outputs), made, outputs


def _transformed(
    node: NodeContext, x: str, lead: int, sizes: tuple[int, int], length: int, inverse: bool
) -> str:
    """Transform the second last axis of a tensor; `lead` axes come before its last two."""
    rows, parts = sizes
    onesided = node.bool("onesided", node.op == "STFT")
    if length < 1:
        raise node.unsupported(f"a transform of length {length}")
    if onesided and not inverse and parts == 2:
        raise node.unsupported("half of the results of complex elements")
    if rows * parts * length * 2 > _MAX_ELEMENTS:
        raise node.unsupported(f"a transform of length {length} is faster on the host")
    matrix, made, outputs = fourier_matrix(rows, parts, length, inverse=inverse, onesided=onesided)
    zeros = [0] * lead
    flat = node.ints_constant([*zeros, rows * parts])
    x = node.emit("Reshape", [x, flat], ReshapeAttrs())
    product = node.emit("MatMul", [x, node.constant(matrix, node.dtype(x))], MatMulAttrs())
    return node.emit(
        "Reshape", [product, node.ints_constant([*zeros, made, outputs])], ReshapeAttrs()
    )


def _integer(node: NodeContext, name: str, what: str) -> int:
    value = node.const_value(name)
    if value is None or value.size != 1:
        raise node.unsupported(f"{what} is not constant")
    return int(value.reshape(-1)[0])


def _known(node: NodeContext, dim: Dim, what: str) -> int:
    if not isinstance(dim, int):
        raise node.unsupported(f"{what} is not known")
    return dim


def _dft(node: NodeContext, axis: int) -> None:
    x = node.input(0)
    shape = node.shape(x)
    rank = len(shape)
    if not -rank <= axis < rank or axis % rank == rank - 1:
        raise node.unsupported(f"axis {axis} of {rank}")
    axis %= rank
    rows = _known(node, shape[axis], "the size of the axis")
    parts = _known(node, shape[-1], "whether elements are complex")
    if parts not in (1, 2):
        raise node.unsupported(f"elements of {parts} parts")
    inverse = node.bool("inverse")
    length = 2 * (rows - 1) if inverse and node.bool("onesided") else rows
    if node.input(1):
        length = _integer(node, node.input(1), "dft_length")
    others = [place for place in range(rank - 1) if place != axis]
    perm = (*others, axis, rank - 1)
    moved = node.emit("Transpose", [x], TransposeAttrs(perm)) if axis != rank - 2 else x
    result = _transformed(node, moved, rank - 2, (rows, parts), length, inverse)
    back = tuple(perm.index(place) for place in range(rank))
    node.finish("Transpose", [result], TransposeAttrs(back))


@converter("DFT", since=17)
def _dft_attribute(node: NodeContext) -> None:
    _dft(node, node.int("axis", 1))


@converter("DFT", since=20)
def _dft_input(node: NodeContext) -> None:
    _dft(node, _integer(node, node.input(2), "the axis") if node.input(2) else -2)


@converter("STFT", since=17)
def _stft(node: NodeContext) -> None:
    """Gather frames, weigh them with the window, transform each."""
    signal, window = node.input(0), node.input(2)
    step = _integer(node, node.input(1), "frame_step")
    shape = node.shape(signal)
    if step < 1 or len(shape) not in (2, 3):
        raise node.unsupported(f"a signal of {len(shape)} axes in steps of {step}")
    if node.input(3):
        length = _integer(node, node.input(3), "frame_length")
    elif window:
        length = _known(node, node.shape(window)[0], "the size of the window")
    else:
        raise node.unsupported("neither a window nor a length of frames")
    parts = _known(node, shape[2], "whether elements are complex") if len(shape) == 3 else 1
    if parts not in (1, 2):
        raise node.unsupported(f"elements of {parts} parts")
    if window and node.shape(window) != (length,):
        raise node.unsupported("the window is not as long as a frame")
    frames = _frames(node, signal, length, step)
    if window:
        wide = node.dtype(signal)
        if node.dtype(window) is not wide:
            window = node.emit("Cast", [window], CastAttrs(wide))
        if len(shape) == 3:
            window = node.emit("Unsqueeze", [window, node.ints_constant([1])], OpAttrs())
        frames = node.emit("BinaryOp", [frames, window], BinaryAttrs("MUL"))
    result = _transformed(node, frames, 2, (length, parts), length, inverse=False)
    node.finish("Identity", [result])


def _frames(node: NodeContext, signal: str, length: int, step: int) -> str:
    """Return the signal's frames along a new axis 1; what is left at the end makes none."""
    zero = node.ints_constant([0])
    total = node.emit("Shape", [signal], ShapeAttrs(1, 2))
    last = node.emit("BinaryOp", [total, node.ints_constant([length - 1])], BinaryAttrs("SUB"))
    last = node.emit("Squeeze", [last, zero], OpAttrs())
    starts = node.emit("Range", [node.constant(np.int64(0)), last, node.constant(np.int64(step))])
    starts = node.emit("Unsqueeze", [starts, node.ints_constant([1])], OpAttrs())
    places = node.emit("BinaryOp", [starts, node.ints_constant(range(length))], BinaryAttrs("ADD"))
    return node.emit("Gather", [signal, places], AxisAttrs(1))
