"""Attention on views: queries, keys, values and results are addressed by strides."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.geometry.regions import row_major
from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import DType, OpAttrs, TensorInfo, View
from vkmnn.ir.ops import ATTENTION_AXES, AttentionAttrs, CastAttrs, StridedAttentionAttrs


@dataclass(frozen=True, slots=True)
class _Axis:
    """A batch axis: its size, and how far each tensor steps along it."""

    size: int
    strides: tuple[int, ...]


@geometry("Attention")
def _attention(ctx: GeometryContext[AttentionAttrs]) -> None:
    """Number the matrices over at most three axes; masks become numbers to add."""
    attrs = ctx.attrs
    query, key, value = (ctx.input(index) for index in range(3))
    output = ctx.outputs[0]
    queries, keys = query.dims[-2], key.dims[-2]
    if keys == 0:
        ctx.raster(output, [], [])
        return
    mask, sink = ctx.optional_input(3), ctx.optional_input(5)
    tensors = [query, key, value]
    if mask is not None:
        tensors.append(_along_keys(ctx, _as_bias(ctx, mask, query.dtype), keys))
    batch = output.dims[:-2]
    axes = _axes(batch, [*tensors, output])
    if len(axes) > ATTENTION_AXES:
        tensors = [_expand(ctx, tensor, (*batch, *_matrix(tensor))) for tensor in tensors]
        axes = _axes(batch, [*tensors, output])
    axes = [_Axis(1, (0,) * (len(tensors) + 1))] * (ATTENTION_AXES - len(axes)) + axes
    views = [
        View(0, (*(axis.strides[place] for axis in axes), _row_stride(tensor)))
        for place, tensor in enumerate([*tensors, output])
    ]
    lowered = StridedAttentionAttrs(
        batch=(axes[0].size, axes[1].size, axes[2].size),
        queries=queries,
        keys=keys,
        depth=query.dims[-1],
        width=value.dims[-1],
        views=(views[0], views[1], views[2]),
        mask=views[3] if mask is not None else None,
        result=views[-1],
        scale=attrs.scale,
        causal=attrs.causal,
        zero_fully_masked=attrs.zero_fully_masked,
        codes=attrs.codes,
        softcap=attrs.softcap,
        window=attrs.window,
    )
    names = [tensor.name for tensor in tensors]
    length = ctx.optional_input(4)
    if length is not None or sink is not None:
        names += [*([] if mask is not None else [""]), length.name if length is not None else ""]
    if sink is not None:
        names.append(_each(ctx, _as_bias(ctx, sink, query.dtype), batch).name)
    ctx.emit("StridedAttention", names, lowered, output)


def _each(ctx: GeometryContext, sink: TensorInfo, batch: Sequence[int]) -> TensorInfo:
    """Return the sink of every matrix."""
    if prod(sink.dims) == prod(batch):
        return sink
    return _expand(ctx, sink, (*batch, 1, 1))


def _matrix(tensor: TensorInfo) -> tuple[int, int]:
    """Return the sizes of rows and columns; masks may have fewer axes than two."""
    rows, columns = (1, 1, *tensor.dims)[-2:]
    return rows, columns


def _row_stride(tensor: TensorInfo) -> int:
    rows, columns = _matrix(tensor)
    return columns if rows > 1 else 0


def _axes(batch: Sequence[int], tensors: Sequence[TensorInfo]) -> list[_Axis]:
    """Return the batch axes; if there are too many, merge those that chain in every tensor."""
    strides: list[list[int]] = []
    for tensor in tensors:
        dims = tensor.dims[:-2]
        steps = [step * prod(_matrix(tensor)) for step in row_major(dims)]
        steps = [step if size > 1 else 0 for size, step in zip(dims, steps, strict=True)]
        strides.append([0] * (len(batch) - len(dims)) + steps)
    axes = [
        _Axis(size, tuple(steps)) for size, *steps in zip(batch, *strides, strict=True) if size != 1
    ]
    at = 0
    while len(axes) > ATTENTION_AXES and at + 1 < len(axes):
        outer, inner = axes[at : at + 2]
        if all(a == b * inner.size for a, b in zip(outer.strides, inner.strides, strict=True)):
            axes[at : at + 2] = [_Axis(outer.size * inner.size, inner.strides)]
        else:
            at += 1
    return axes


def _as_bias(ctx: GeometryContext, mask: TensorInfo, dtype: DType) -> TensorInfo:
    """Return the mask as numbers of the scores' type; a bool hides where it is false."""
    if mask.dtype is dtype:
        return mask
    bias = ctx.temp(dtype, mask.dims)
    if mask.dtype is DType.BOOL:
        shown, hidden = (ctx.constant(np.array(x, dtype.numpy)) for x in (0.0, -np.inf))
        ctx.emit("Select", [mask.name, shown, hidden], OpAttrs(), bias)
    else:
        ctx.emit("Cast", [mask.name], CastAttrs(dtype), bias)
    return bias


def _along_keys(ctx: GeometryContext, mask: TensorInfo, keys: int) -> TensorInfo:
    """Return the mask with a column for every key."""
    if _matrix(mask)[1] == keys:
        return mask
    return _expand(ctx, mask, (*mask.dims[:-1], keys))


def _expand(ctx: GeometryContext, tensor: TensorInfo, shape: Sequence[int]) -> TensorInfo:
    result = ctx.temp(tensor.dtype, shape)
    target = ctx.constant(np.array(shape, np.int64))
    ctx.emit("Expand", [tensor.name, target], OpAttrs(), result)
    return result
