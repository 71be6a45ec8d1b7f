"""Attention as two matrix products around a softmax."""

from __future__ import annotations

import numpy as np

from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import Array, DType, OpAttrs, TensorInfo
from vkmnn.ir.ops import (
    AttentionAttrs,
    BinaryAttrs,
    CastAttrs,
    MatMulAttrs,
    ReductionAttrs,
    SoftmaxAttrs,
)
from vkmnn.shape.common import attrs_of, broadcast_shapes
from vkmnn.shape.matmul import matmul_shape


@geometry("Attention")
def _attention(ctx: GeometryContext) -> None:
    """Add the masks as a bias of 0 and -inf; where asked for, make rows that see no key zero."""
    attrs = attrs_of(ctx.op, AttentionAttrs)
    query, key, value = (ctx.input(index) for index in range(3))
    output = ctx.outputs[0]
    scores = ctx.temp(query.dtype, matmul_shape(query.dims, key.dims, transpose_b=True))
    product = MatMulAttrs(transpose_b=True, alpha=attrs.scale)
    ctx.emit("MatMul", [query.name, key.name], product, scores)
    bias, seen = _masks(ctx, scores, attrs)
    if bias is not None:
        biased = ctx.temp(scores.dtype, broadcast_shapes(scores.dims, bias.dims))
        ctx.emit("BinaryOp", [scores.name, bias.name], BinaryAttrs("ADD"), biased)
        scores = biased
    weights = ctx.temp(scores.dtype, scores.dims)
    ctx.emit("Softmax", [scores.name], SoftmaxAttrs(-1), weights)
    result = output if seen is None else ctx.temp(output.dtype, output.dims)
    ctx.emit("MatMul", [weights.name, value.name], MatMulAttrs(), result)
    if seen is not None:
        zero = ctx.constant(np.zeros((), output.dtype.numpy))
        ctx.emit("Select", [seen, result.name, zero], OpAttrs(), output)


def _masks(
    ctx: GeometryContext, scores: TensorInfo, attrs: AttentionAttrs
) -> tuple[TensorInfo | None, str | None]:
    """Return the bias, and which rows see a key; None where there is none, or where all may count.

    Rows that see none are asked for with `blind_zero` only.
    """
    mask, content = ctx.optional_input(3), ctx.value(3)
    triangle = None
    if attrs.causal:
        triangle = _bias(np.tri(*scores.dims[-2:], dtype=np.bool_), scores.dtype)
    if mask is None or content is not None:
        known = triangle
        if content is not None:
            added = _bias(content, scores.dtype)
            known = added if triangle is None else np.add(triangle, added)
        if known is None:
            return None, None
        bias, seen = _known(ctx, known)
        return bias, seen if attrs.blind_zero else None
    bias = _as_bias(ctx, mask, scores.dtype)
    if triangle is not None:
        both = ctx.temp(scores.dtype, broadcast_shapes(bias.dims, triangle.shape))
        ctx.emit("BinaryOp", [bias.name, ctx.constant(triangle)], BinaryAttrs("ADD"), both)
        bias = both
    return bias, _rows_with_keys(ctx, bias) if attrs.blind_zero else None


def _bias(mask: Array, dtype: DType) -> Array:
    if mask.dtype == np.bool_:
        return np.where(mask, 0.0, -np.inf).astype(dtype.numpy)
    return mask.astype(dtype.numpy)


def _known(ctx: GeometryContext, bias: Array) -> tuple[TensorInfo, str | None]:
    seen = np.asarray(bias != -np.inf).any(axis=-1, keepdims=True) if bias.ndim else bias != -np.inf
    info = ctx.lowering.infos[ctx.constant(bias)]
    return info, None if np.all(seen) else ctx.constant(np.asarray(seen))


def _as_bias(ctx: GeometryContext, mask: TensorInfo, dtype: DType) -> TensorInfo:
    """Return a run-time mask as a tensor to add to the scores."""
    if mask.dtype is dtype:
        return mask
    bias = ctx.temp(dtype, mask.dims)
    if mask.dtype is DType.BOOL:
        shown, hidden = (ctx.constant(np.array(x, dtype.numpy)) for x in (0.0, -np.inf))
        ctx.emit("Select", [mask.name, shown, hidden], OpAttrs(), bias)
    else:
        ctx.emit("Cast", [mask.name], CastAttrs(dtype), bias)
    return bias


def _rows_with_keys(ctx: GeometryContext, bias: TensorInfo) -> str:
    """Emit which rows of a run-time bias hold anything but -inf."""
    best = bias
    if bias.dims:
        best = ctx.temp(bias.dtype, (*bias.dims[:-1], 1))
        last = ctx.constant(np.array([len(bias.dims) - 1], np.int64))
        ctx.emit("Reduction", [bias.name, last], ReductionAttrs("MAX"), best)
    lowest = ctx.constant(np.array(np.finfo(bias.dtype.value).min))
    seen = ctx.temp(DType.BOOL, best.dims)
    ctx.emit("BinaryOp", [best.name, lowest], BinaryAttrs("GREATER_EQUAL"), seen)
    return seen.name
