"""Products by packed weights, and lookups in packed tables."""

from __future__ import annotations

import numpy as np

from vkmnn.cpu_fallback.registry import (
    AnyArray,
    Inputs,
    cpu_execution,
    optional,
    required,
    sum_dtype,
    widen,
)
from vkmnn.cpu_fallback.unary import finish, gated
from vkmnn.ir import Op
from vkmnn.ir.codes import decode
from vkmnn.ir.ops import ExpertMatMulAttrs, GatherNBitsAttrs, MatMulNBitsAttrs


@cpu_execution("MatMulNBits")
def _matmul_n_bits(op: Op[MatMulNBitsAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs, x = op.attrs, required(inputs, 0)
    codes, scales, zeros = required(inputs, 1), required(inputs, 4), optional(inputs, 5)
    weights = decode(codes, scales, zeros, attrs.bits, attrs.depth)
    dtype = sum_dtype(x, weights)
    result = np.matmul(_rows(x, optional(inputs, 6), attrs).astype(dtype), weights.astype(dtype).T)
    bias, residual = optional(inputs, 2), optional(inputs, 3)
    if bias is not None:
        result = result + widen(bias)
    if attrs.gated:
        result = gated(result, attrs.activation)
    else:
        result = finish(result, residual, attrs.residual, attrs.activation)
    return [result.astype(x.dtype, copy=False)]


def _rows(x: AnyArray, scale: AnyArray | None, attrs: MatMulNBitsAttrs) -> AnyArray:
    """Return the rows, normalised if there is a scale for that."""
    if scale is None:
        return x
    wide = widen(x).astype(np.float64)
    root = np.sqrt(np.square(wide).mean(-1, keepdims=True) + attrs.epsilon)
    result: AnyArray = wide / root * scale
    return result


@cpu_execution("ExpertMatMul")
def _expert_matmul(op: Op[ExpertMatMulAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs, x, weights, chosen = op.attrs, *(required(inputs, place) for place in range(3))
    bias, scales, zeros, shares, residual = (optional(inputs, place) for place in range(3, 8))
    count = chosen.shape[-1]
    numbers = np.clip(chosen.reshape(-1).astype(np.int64), 0, attrs.experts - 1)
    rows = x.reshape(-1, attrs.depth)
    dtype = sum_dtype(x, rows)
    made = np.zeros((numbers.size, attrs.columns), dtype)
    for expert in np.unique(numbers):
        places = np.flatnonzero(numbers == expert)
        matrix = weights[expert]
        if attrs.bits:
            assert scales is not None
            offsets = None if zeros is None else zeros[expert]
            matrix = decode(matrix, scales[expert], offsets, attrs.bits, attrs.depth)
        taken = rows[places if attrs.each else places // count]
        made[places] = taken.astype(dtype) @ matrix.astype(dtype).T
        if bias is not None:
            made[places] += bias[expert]
    if attrs.gated:
        result = gated(_limited(made, attrs), attrs.activation)
    else:
        result = finish(made, None, "", attrs.activation)
    result = result.reshape(*chosen.shape, attrs.width)
    if shares is not None:
        result = (result * widen(shares)[..., None]).sum(-2)
    if residual is not None:
        result = result + widen(residual)
    return [result.astype(x.dtype, copy=False)]


def _limited(x: AnyArray, attrs: ExpertMatMulAttrs) -> AnyArray:
    """Return gates and what they gate within the limit, the latter moved by the offset."""
    fours = x.reshape(-1, attrs.columns // 4, 4)
    gates = np.minimum(fours[..., :2], attrs.limit)
    others = np.clip(fours[..., 2:], -attrs.limit, attrs.limit) + x.dtype.type(attrs.offset)
    return np.concatenate([gates, others], -1).reshape(x.shape)


@cpu_execution("GatherNBits")
def _gather_n_bits(op: Op[GatherNBitsAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs, codes, indices = op.attrs, required(inputs, 0), required(inputs, 1).astype(np.int64)
    scales, zeros = required(inputs, 2), optional(inputs, 3)
    flat = indices.reshape(-1)
    flat = np.where(flat < 0, flat + attrs.rows, flat)
    there = (flat >= 0) & (flat < attrs.rows)
    safe = np.where(there, flat, 0)
    picked = None if zeros is None else zeros[safe]
    rows = decode(codes[safe], scales[safe], picked, attrs.bits, attrs.depth)
    rows = np.where(there[:, None], rows, np.float32(0))
    dtype = np.float32 if attrs.wide else scales.dtype
    return [rows.reshape(*indices.shape, attrs.depth).astype(dtype, copy=False)]
