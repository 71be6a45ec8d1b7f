"""Sizes and matrices of Fourier transforms."""

from __future__ import annotations

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import ShapeError
from vkmnn.ir import Array, Op
from vkmnn.ir.ops import DFTAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    dtype_of,
    has_input,
    int_scalar,
    normalize_axis,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found
from vkmnn.shape.symbolic.rules import shape_rule

MAX_MATRIX = 1 << 22
"""Matrices of more elements cost more than a fast transform on the host."""


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform of a tensor.

    Attributes:
        axis: the transformed axis, counted from the front.
        rows: elements along it.
        parts: 1 for real elements, 2 for complex ones, whose parts are adjacent.
        length: length of the transform.
        inverse: whether it is the inverse one, which divides by the length.
        onesided: forward, half of the results; inverse, half of the elements are given.
    """

    axis: int
    rows: int
    parts: int
    length: int
    inverse: bool
    onesided: bool

    @property
    def made(self) -> int:
        """Number of elements of the result along the axis."""
        return self.length // 2 + 1 if self.onesided and not self.inverse else self.length

    @property
    def outputs(self) -> int:
        """Numbers per element: 1 if real, 2 if complex."""
        return 1 if self.onesided and self.inverse else 2

    @property
    def matrix_size(self) -> int:
        """Elements of the matrix by which it is multiplied, or more."""
        return self.rows * self.parts * self.length * 2


def transform_of(attrs: DFTAttrs, shape: Shape, axis: int, length: int | None) -> Transform:
    """Return the transform of a tensor of this shape.

    Args:
        attrs: attributes of the op.
        shape: shape of the tensor; its last axis holds the parts of each number.
        axis: the transformed axis.
        length: length of the transform, None if it follows from the axis.

    Raises:
        ShapeError: the transform does not exist.
    """
    axis = normalize_axis(axis, len(shape))
    if axis == len(shape) - 1 or shape[-1] not in (1, 2):
        raise ShapeError(
            f"a transform along axis {axis} of a tensor of shape {shape}",
            hint="the last axis holds the 1 or 2 parts of each number; transform another one",
        )
    rows = shape[axis]
    if length is None:
        length = 2 * (rows - 1) if attrs.inverse and attrs.onesided else rows
    if length < 1:
        raise ShapeError(f"a transform of length {length}", hint="it needs at least one element")
    if attrs.onesided and not attrs.inverse and shape[-1] == 2:
        raise ShapeError("only real inputs have a redundant half of the results to leave out")
    return Transform(axis, rows, shape[-1], length, attrs.inverse, attrs.onesided)


def planned_transform(op: Op[DFTAttrs], inputs: Infos, values: Values) -> Transform:
    """Return the transform of a DFT; ShapeError if its inputs do not fit."""
    length = int_scalar(values, 2, "the length") if has_input(inputs, 2) else None
    axis = int_scalar(values, 1, "the axis")
    return transform_of(op.attrs, shape_of(inputs, 0), axis, length)


@size_computer("DFT")
def _dft(op: Op[DFTAttrs], inputs: Infos, values: Values) -> Outputs:
    found = planned_transform(op, inputs, values)
    shape = list(shape_of(inputs, 0))
    shape[found.axis], shape[-1] = found.made, found.outputs
    return [(dtype_of(inputs, 0), tuple(shape))]


@shape_rule("DFT")
def _named_dft(op: Op[DFTAttrs], facts: Facts) -> list[Found]:
    dtype, shape, axis = facts.dtype(op), facts.shape(op), facts.ints(op, 1)
    if shape is None or axis is None:
        return [(dtype, None if shape is None else (None,) * len(shape))]
    place, algebra = normalize_axis(axis[0], len(shape)), facts.algebra
    length, half = shape[place], op.attrs.onesided
    if len(op.inputs) > 2 and op.inputs[2]:
        (length,) = facts.values(op, 2) or (None,)
    elif half and op.attrs.inverse:
        length = algebra.multiply(2, algebra.subtract(length, 1))
    if half and not op.attrs.inverse:
        length = algebra.add(algebra.floor_divide(length, 2), 1)
    dims = list(shape)
    dims[place], dims[-1] = length, 1 if half and op.attrs.inverse else 2
    return [(dtype, tuple(dims))]


def fourier_matrix(transform: Transform) -> Array:
    """Return the matrix [rows · parts, made · outputs] of a transform, in float64."""
    rows, parts, length = transform.rows, transform.parts, transform.length
    is_real = transform.outputs == 1
    bins = length // 2 + 1 if transform.onesided else length
    taken = min(rows, bins if is_real else length)
    made = transform.made
    turns = np.outer(np.arange(taken), np.arange(made)) % length
    wave = np.exp(1j * ((2 if transform.inverse else -2) * np.pi * turns / length))
    if transform.inverse:
        wave = wave / length
    if is_real:  # all except the first and the middle one count twice
        weight = np.full(taken, 2.0)
        weight[:1] = 1
        if length % 2 == 0 and taken == bins:
            weight[-1] = 1
        wave = wave * weight[:, None]
    matrix = np.zeros((rows, parts, made, transform.outputs))
    for part, factor in enumerate((1, 1j)[:parts]):
        product = wave * factor
        matrix[:taken, part, :, 0] = product.real
        if not is_real:
            matrix[:taken, part, :, 1] = product.imag
    if (
        is_real and parts == 2
    ):  # the middle one's imaginary part would only contribute rounding errors
        matrix[:1, 1] = 0
        if length % 2 == 0 and taken == bins:
            matrix[taken - 1, 1] = 0
    return matrix.reshape(rows * parts, made * transform.outputs)
