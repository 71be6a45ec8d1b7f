"""Shapes of operators that keep the elements in order: Reshape and its like."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, TypeVar

from vkmnn.errors import ShapeError
from vkmnn.ir import Dim, Op
from vkmnn.ir.ops import AxisAttrs, ReshapeAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    dtype_of,
    has_input,
    int_list,
    normalize_axes,
    shape_of,
)
from vkmnn.shape.reduction import flatten_axis, reduced_shape
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found, known_ints
from vkmnn.shape.symbolic.rules import is_absent, same_values, shape_rule, value_rule

_D = TypeVar("_D", bound=Dim)


def reshape_dims(shape: Sequence[int], target: Sequence[int], *, allowzero: bool = False) -> Shape:
    """Return the shape that `target` means for a tensor of `shape` (ONNX Reshape).

    0 copies the input's dimension unless `allowzero`; one -1 is deduced.

    Raises:
        ShapeError: the element counts differ or -1 cannot be deduced.
    """
    result: list[int] = []
    for axis, dim in enumerate(target):
        if dim == 0 and not allowzero:
            if axis >= len(shape):
                raise ShapeError(
                    f"target {list(target)} copies axis {axis}, which {tuple(shape)} does not have"
                )
            result.append(shape[axis])
        elif dim < -1:
            raise ShapeError(f"target {list(target)} holds {dim}")
        else:
            result.append(dim)
    if result.count(-1) > 1:
        raise ShapeError(f"target {list(target)} holds more than one -1")
    total = prod(shape)
    if -1 in result:
        # Copied axes occur on both sides, so a copied axis of size 0 does not hide the answer.
        copied = {axis for axis, dim in enumerate(target) if dim == 0 and not allowzero}
        rest = prod(dim for axis, dim in enumerate(shape) if axis not in copied)
        known = prod(dim for axis, dim in enumerate(result) if dim != -1 and axis not in copied)
        if known == 0 or rest % known:
            raise ShapeError(f"-1 in target {list(target)} cannot be deduced from {tuple(shape)}")
        result[result.index(-1)] = rest // known
    if prod(result) != total:
        raise ShapeError(f"{tuple(shape)} has {total} elements, target {result} {prod(result)}")
    return tuple(result)


def squeeze_dims(shape: Sequence[int], axes: Sequence[int] | None) -> Shape:
    """Return `shape` without `axes`, which must have size 1; None removes every axis of size 1.

    Raises:
        ShapeError: an axis is out of range, given twice, or not of size 1.
    """
    if axes is None:
        return tuple(dim for dim in shape if dim != 1)
    drop = normalize_axes(axes, len(shape))
    for axis in drop:
        if shape[axis] != 1:
            raise ShapeError(f"axis {axis} of {tuple(shape)} is not 1 and cannot be squeezed")
    return tuple(dim for axis, dim in enumerate(shape) if axis not in drop)


def unsqueeze_dims(shape: Sequence[_D], axes: Sequence[int]) -> tuple[_D | Literal[1], ...]:
    """Return `shape` with 1 inserted at `axes`, which count in the result.

    Raises:
        ShapeError: an axis is out of range or given twice.
    """
    rank = len(shape) + len(axes)
    insert = normalize_axes(axes, rank)
    rest = iter(shape)
    return tuple(1 if axis in insert else next(rest) for axis in range(rank))


@size_computer("Reshape")
def _reshape(op: Op[ReshapeAttrs], inputs: Infos, values: Values) -> Outputs:
    target = int_list(values, 1, "the target shape")
    output = reshape_dims(shape_of(inputs, 0), target, allowzero=op.attrs.allowzero)
    return [(dtype_of(inputs, 0), output)]


@shape_rule("Reshape")
def _named_reshape(op: Op[ReshapeAttrs], facts: Facts) -> list[Found]:
    shape, target = facts.shape(op), facts.vector(op, 1)
    if target is None:
        return [(facts.dtype(op), None)]
    dims = list(target)
    if not op.attrs.allowzero:
        for axis, dim in enumerate(dims):
            if dim == 0:
                dims[axis] = shape[axis] if shape is not None and axis < len(shape) else None
    dims = [None if dim == -1 else dim for dim in dims]
    if dims.count(None) == 1 and shape is not None and 0 not in dims:
        algebra = facts.algebra
        given = algebra.product(tuple(dim for dim in dims if dim is not None))
        dims[dims.index(None)] = algebra.divide(algebra.product(shape), given)
    return [(facts.dtype(op), tuple(dims))]


value_rule("Reshape", "Squeeze", "Unsqueeze")(same_values)


@shape_rule("Flatten", exact=True)
def _flatten(op: Op[AxisAttrs], facts: Facts) -> list[Found]:
    shape = facts.shape(op)
    if shape is None:
        return [(facts.dtype(op), (None, None))]
    axis = flatten_axis(op.attrs.axis, len(shape))
    product = facts.algebra.product
    return [(facts.dtype(op), (product(shape[:axis]), product(shape[axis:])))]


@size_computer("Squeeze")
def _squeeze(op: Op, inputs: Infos, values: Values) -> Outputs:
    axes = int_list(values, 1, "axes") if has_input(inputs, 1) else None
    return [(dtype_of(inputs, 0), squeeze_dims(shape_of(inputs, 0), axes))]


@shape_rule("Squeeze")
def _named_squeeze(op: Op, facts: Facts) -> list[Found]:
    shape, axes = facts.shape(op), facts.ints(op, 1)
    if is_absent(op, 1) and shape is not None and known_ints(shape) is not None:
        axes = tuple(axis for axis, dim in enumerate(shape) if dim == 1)
    if shape is None or axes is None:
        return [(facts.dtype(op), None)]
    return [
        (facts.dtype(op), reduced_shape(shape, normalize_axes(axes, len(shape)), keepdims=False))
    ]


@size_computer("Unsqueeze")
def _unsqueeze(op: Op, inputs: Infos, values: Values) -> Outputs:
    axes = int_list(values, 1, "axes")
    return [(dtype_of(inputs, 0), unsqueeze_dims(shape_of(inputs, 0), axes))]


@shape_rule("Unsqueeze")
def _named_unsqueeze(op: Op, facts: Facts) -> list[Found]:
    shape, axes = facts.shape(op), facts.ints(op, 1)
    if shape is None or axes is None:
        return [(facts.dtype(op), None)]
    return [(facts.dtype(op), unsqueeze_dims(shape, axes))]
