"""Shapes of normalisations."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import GroupNormAttrs, LayerNormAttrs, LRNAttrs, ScaleAttrs
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Values,
    check_broadcastable_to,
    check_shape,
    has_input,
    normalize_axis,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.facts import Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import like_first, shape_rule


@size_computer("LayerNorm")
def _layer_norm(op: Op[LayerNormAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    shape = shape_of(inputs, 0)
    axis = normalize_axis(attrs.axis, len(shape))
    for index, what in ((1, "scale"), (2, "bias")):
        if has_input(inputs, index):
            check_broadcastable_to(shape_of(inputs, index), shape, what)
    statistics = shape[:axis] + (1,) * (len(shape) - axis)
    # ONNX LayerNormalization keeps statistics in float32 (stash_type 1) for any input.
    return [
        (same_dtype(inputs, 0, 1, 2), shape),
        (DType.FLOAT32, statistics),
        (DType.FLOAT32, statistics),
    ]


@shape_rule("LayerNorm")
def _named_layer_norm(op: Op[LayerNormAttrs], facts: Facts) -> list[Found]:
    shape = facts.shape(op)
    statistics: NamedShape | None = None
    if shape is not None:
        axis = normalize_axis(op.attrs.axis, len(shape))
        statistics = shape[:axis] + (1,) * (len(shape) - axis)
    return [(facts.dtype(op), shape), (DType.FLOAT32, statistics), (DType.FLOAT32, statistics)]


shape_rule("GroupNorm", "Scale")(like_first)


@size_computer("GroupNorm")
def _group_norm(op: Op[GroupNormAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    shape = shape_of(inputs, 0)
    if len(shape) < 2:
        raise ShapeError(f"group normalisation needs a batch and a channel axis, got {shape}")
    groups = attrs.groups or max(shape[1], 1)
    if groups < 0 or shape[1] % groups:
        raise ShapeError(f"{shape[1]} channels do not divide into {groups} groups")
    check_shape(inputs, 1, shape[1:2], "scale")
    check_shape(inputs, 2, shape[1:2], "bias")
    return [(same_dtype(inputs, 0, 1, 2), shape)]


@size_computer("Scale")
def _scale(op: Op[ScaleAttrs], inputs: Infos, values: Values) -> Outputs:
    shape = shape_of(inputs, 0)
    if len(shape) < 2:
        raise ShapeError(f"Scale needs a channel axis 1, got shape {shape}")
    check_shape(inputs, 1, shape[1:2], "scale")
    check_shape(inputs, 2, shape[1:2], "bias")
    return [(same_dtype(inputs, 0, 1, 2), shape)]


@shape_rule("LRN", exact=True)
def _lrn(op: Op[LRNAttrs], facts: Facts) -> list[Found]:
    shape = facts.shape(op)
    if shape is not None and len(shape) < 2:
        raise ShapeError(f"LRN needs a channel axis 1, got shape {shape}")
    if op.attrs.size < 1:
        raise ShapeError(f"size is {op.attrs.size}, must be at least 1")
    return [(facts.dtype(op), shape)]
