"""Shapes of operators that move elements: Transpose, Concat, Expand and their like."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.errors import ShapeError
from vkmnn.ir import Dim, Op
from vkmnn.ir.ops import AxisAttrs, BlockAttrs, ImageToTensorAttrs, TransposeAttrs, TriluAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    broadcast_shapes,
    dtype_of,
    has_input,
    int_list,
    int_scalar,
    normalize_axes,
    normalize_axis,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import MAX_ELEMENTS, Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import (
    broadcast,
    like_first,
    shape_rule,
    value_rule,
    with_dim,
)


def transpose_perm(rank: int, perm: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation, counted from the front; an empty one reverses the axes.

    Raises:
        ShapeError: `perm` is not a permutation of the axes.
    """
    if not perm:
        return tuple(range(rank))[::-1]
    if len(perm) != rank:
        raise ShapeError(f"perm {tuple(perm)} has {len(perm)} entries for a rank-{rank} tensor")
    return tuple(normalize_axes(perm, rank, "perm entry"))


@shape_rule("Transpose", exact=True)
def _transpose(op: Op[TransposeAttrs], facts: Facts) -> list[Found]:
    shape = facts.shape(op)
    if shape is not None:
        perm = transpose_perm(len(shape), op.attrs.perm)
        shape = tuple(shape[axis] for axis in perm)
    return [(facts.dtype(op), shape)]


@shape_rule("ImageToTensor", exact=True)
def _image_to_tensor(op: Op[ImageToTensorAttrs], facts: Facts) -> list[Found]:
    attrs, shape = op.attrs, facts.shape(op)
    if shape is None:
        return [(attrs.dtype, None)]
    if attrs.single:
        shape = (1, *shape)
    if len(shape) < 3:
        raise ShapeError(f"images need a channel and a spatial axis, got shape {shape}")
    if attrs.channels_last:
        shape = (shape[0], shape[-1], *shape[1:-1])
    for factors in (attrs.scale, attrs.bias):
        if factors and shape[1] != len(factors):
            raise ShapeError(f"{len(factors)} factors or shifts for {shape[1]} channels")
    return [(attrs.dtype, shape)]


@size_computer("Concat")
def _concat(op: Op[AxisAttrs], inputs: Infos, values: Values) -> Outputs:
    shapes = [shape_of(inputs, index) for index in range(len(inputs))]
    axis = normalize_axis(op.attrs.axis, len(shapes[0]))
    for shape in shapes[1:]:
        if len(shape) != len(shapes[0]) or any(
            dim != first and i != axis
            for i, (dim, first) in enumerate(zip(shape, shapes[0], strict=True))
        ):
            raise ShapeError(f"{shape} and {shapes[0]} differ outside axis {axis}")
    total = sum(shape[axis] for shape in shapes)
    output = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
    return [(same_dtype(inputs, *range(len(inputs))), output)]


@shape_rule("Concat")
def _named_concat(op: Op[AxisAttrs], facts: Facts) -> list[Found]:
    places = range(len(op.inputs))
    shapes = [facts.shape(op, place) for place in places]
    known = [shape for shape in shapes if shape]
    if not known:
        return [(facts.dtype(op, *places), None)]
    axis = normalize_axis(op.attrs.axis, len(known[0]))
    total: Dim = 0
    for shape in shapes:
        total = facts.algebra.add(total, shape[axis] if shape else None)
    equal = [  # the shapes are equal outside the axis: prefer an int, then a name
        next((dim for dim in dims if isinstance(dim, int)), next(filter(None, dims), None))
        for dims in zip(*known, strict=True)
    ]
    return [(facts.dtype(op, *places), with_dim(tuple(equal), axis, total))]


@value_rule("Concat")
def _concat_values(op: Op, facts: Facts) -> NamedShape | None:
    joined: list[Dim] = []
    for place in range(len(op.inputs)):
        values = facts.values(op, place)
        if values is None:
            shape = facts.shape(op, place)
            length = shape[0] if shape and len(shape) == 1 else None
            if not isinstance(length, int) or not 0 <= length <= MAX_ELEMENTS:
                return None
            values = (None,) * length
        joined.extend(values)
        if len(joined) > MAX_ELEMENTS:
            return None
    return tuple(joined)


def _target(values: Values, what: str) -> Shape:
    target = int_list(values, 1, what)
    if any(dim < 0 for dim in target):
        raise ShapeError(f"{what} {target} holds a negative number")
    return tuple(target)


@size_computer("Expand")
def _expand(op: Op, inputs: Infos, values: Values) -> Outputs:
    output = broadcast_shapes(shape_of(inputs, 0), _target(values, "the target shape"))
    return [(dtype_of(inputs, 0), output)]


@shape_rule("Expand")
def _named_expand(op: Op, facts: Facts) -> list[Found]:
    return [(facts.dtype(op), broadcast(facts, facts.shape(op), facts.vector(op, 1)))]


@size_computer("Tile")
def _tile(op: Op, inputs: Infos, values: Values) -> Outputs:
    shape, repeats = shape_of(inputs, 0), _target(values, "repeats")
    if len(repeats) != len(shape):
        raise ShapeError(f"repeats {list(repeats)} must have one entry per axis of {shape}")
    output = tuple(dim * count for dim, count in zip(shape, repeats, strict=True))
    return [(dtype_of(inputs, 0), output)]


@shape_rule("Tile")
def _named_tile(op: Op, facts: Facts) -> list[Found]:
    shape, repeats = facts.shape(op), facts.values(op, 1)
    if shape is None or repeats is None:
        return [(facts.dtype(op), None if shape is None else (None,) * len(shape))]
    dims = zip(shape, repeats, strict=True)
    return [(facts.dtype(op), tuple(facts.algebra.multiply(dim, count) for dim, count in dims))]


def _block(op: Op[BlockAttrs], facts: Facts) -> tuple[Dim, Dim, Dim, Dim] | None:
    """Return the shape of the input [N, C, H, W], None when it is unknown."""
    attrs, shape = op.attrs, facts.shape(op)
    if attrs.block_size < 1:
        raise ShapeError(f"block_size is {attrs.block_size}, must be at least 1")
    if attrs.mode not in ("DCR", "CRD"):
        raise ShapeError(f"mode '{attrs.mode}' is neither DCR nor CRD")
    if shape is None:
        return None
    if len(shape) != 4:
        raise ShapeError(f"the input must have shape [N, C, H, W], got {shape}")
    n, c, h, w = shape
    return n, c, h, w


@shape_rule("DepthToSpace", exact=True)
def _depth_to_space(op: Op[BlockAttrs], facts: Facts) -> list[Found]:
    shape, block, algebra = _block(op, facts), op.attrs.block_size, facts.algebra
    if shape is None:
        return [(facts.dtype(op), None)]
    n, c, h, w = shape
    if isinstance(c, int) and c % (block * block):
        raise ShapeError(f"{c} channels do not divide by block_size {block} squared")
    rows, columns = algebra.multiply(h, block), algebra.multiply(w, block)
    return [(facts.dtype(op), (n, algebra.divide(c, block * block), rows, columns))]


@shape_rule("SpaceToDepth", exact=True)
def _space_to_depth(op: Op[BlockAttrs], facts: Facts) -> list[Found]:
    shape, block, algebra = _block(op, facts), op.attrs.block_size, facts.algebra
    if shape is None:
        return [(facts.dtype(op), None)]
    n, c, h, w = shape
    if any(isinstance(dim, int) and dim % block for dim in (h, w)):
        raise ShapeError(f"height {h} and width {w} do not divide by block_size {block}")
    # They divide, so the quotient is an integer for names too.
    rows, columns = algebra.floor_divide(h, block), algebra.floor_divide(w, block)
    return [(facts.dtype(op), (n, algebra.multiply(c, block * block), rows, columns))]


shape_rule("Trilu")(like_first)


@size_computer("Trilu")
def _trilu(op: Op[TriluAttrs], inputs: Infos, values: Values) -> Outputs:
    shape = shape_of(inputs, 0)
    if len(shape) < 2:
        raise ShapeError(f"a triangle needs a matrix, got shape {shape}")
    if has_input(inputs, 1):
        int_scalar(values, 1, "k")
    return [(dtype_of(inputs, 0), shape)]
