"""MatMul, Einsum, Det and Attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from vkmnn.cpu_fallback.narrow_floats import computes_fp16, fp16_product
from vkmnn.cpu_fallback.raster import strided
from vkmnn.cpu_fallback.reduction import softmax
from vkmnn.cpu_fallback.registry import (
    AnyArray,
    Inputs,
    cpu_execution,
    optional,
    placed_execution,
    required,
    sum_dtype,
    widen,
)
from vkmnn.cpu_fallback.requantize import attend_codes, dynamic_codes, requantized
from vkmnn.cpu_fallback.unary import finish, gated
from vkmnn.ir import Op, TensorInfo, View
from vkmnn.ir.ops import (
    AttentionAttrs,
    DynamicQuantizeMatMulAttrs,
    EinsumAttrs,
    MatMulAttrs,
    NormedMatMulAttrs,
    QuantizedMatMulAttrs,
    StridedAttentionAttrs,
)
from vkmnn.shape.einsum import EinsumPlan, Label, parse_einsum

MAX_FACTORS = 30
"""Maximum operands of einsum: 64 in numpy 2, 32 before."""

CHUNK = 1 << 20  # elements of a matrix that are converted at a time: 8 MB of float64

_Factor = tuple[AnyArray, tuple[Label, ...]]


def _transposed(x: AnyArray, transpose: bool) -> AnyArray:
    return np.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


def _product(a: AnyArray, b: AnyArray) -> AnyArray:
    """Return a @ b, summed in float64, or as `fp16_product`.

    A large matrix is converted a few columns at a time.
    """
    if computes_fp16() and a.dtype == b.dtype == np.float16:
        return fp16_product(a, b)
    dtype = sum_dtype(a, b)
    if b.ndim != 2 or b.size <= CHUNK or b.dtype == dtype:
        return np.asarray(np.matmul(a.astype(dtype, copy=False), b.astype(dtype, copy=False)))
    wide, step = a.astype(dtype), max(1, CHUNK // b.shape[0])
    result = np.empty((*a.shape[:-1], b.shape[1]), dtype=dtype)
    for first in range(0, b.shape[1], step):
        columns = slice(first, first + step)
        result[..., columns] = np.matmul(wide, b[:, columns].astype(dtype))
    return result


@cpu_execution("MatMul")
def _matmul(op: Op[MatMulAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    a = _transposed(required(inputs, 0), attrs.transpose_a)
    b = _transposed(required(inputs, 1), attrs.transpose_b)
    result = _product(a, b)
    if attrs.alpha != 1.0:
        result = (attrs.alpha * result).astype(result.dtype, copy=False)
    bias, residual = optional(inputs, 2), optional(inputs, 3)
    if bias is not None:
        result = result + widen(bias)
    result = finish(result, residual, attrs.residual, attrs.activation)
    return [result.astype(required(inputs, 0).dtype, copy=False)]


@cpu_execution("NormedMatMul")
def _normed_matmul(op: Op[NormedMatMulAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs, x = op.attrs, required(inputs, 0)
    rows = widen(x).astype(np.float64)
    if attrs.norm == "STD":
        rows = rows - rows.mean(-1, keepdims=True)
    if attrs.norm != "NONE":
        rows = rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + attrs.epsilon)
    result = _product(rows, _transposed(required(inputs, 1), attrs.transpose_b))
    bias = optional(inputs, 2)
    if bias is not None:
        result = result + widen(bias)
    if attrs.gated:
        result = gated(result, attrs.activation)
    else:
        result = finish(result, optional(inputs, 3), attrs.residual, attrs.activation)
    return [result.astype(x.dtype, copy=False)]


@cpu_execution("QuantizedMatMul")
def _quantized(op: Op[QuantizedMatMulAttrs], inputs: Inputs) -> list[AnyArray]:
    """Whole numbers up to 2^53 are exact in float64."""
    attrs, a, b = op.attrs, required(inputs, 0), required(inputs, 1)
    a, b = _transposed(a, attrs.transpose_a), _transposed(b, attrs.transpose_b)
    sums = np.matmul(a.astype(np.float64), b.astype(np.float64))
    bias = optional(inputs, 2)
    sums = sums if bias is None else sums + bias
    ends = optional(inputs, 5), optional(inputs, 6)
    return [requantized(sums, required(inputs, 4), optional(inputs, 3), attrs, *ends)]


@cpu_execution("DynamicQuantizeMatMul")
def _dynamic(op: Op[DynamicQuantizeMatMulAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs, x, b = op.attrs, required(inputs, 0), required(inputs, 1)
    factor, scale, point = (required(inputs, index).reshape(-1) for index in (4, 5, 6))
    codes = dynamic_codes(x, scale, point).astype(np.float64)
    sums = np.matmul(codes, _transposed(b, attrs.transpose_b).astype(np.float64))
    result = sums.astype(np.float32) * (factor * scale)
    bias = optional(inputs, 2)
    result = result if bias is None else result + bias
    result = finish(result, optional(inputs, 3), attrs.residual, attrs.activation)
    return [result.astype(np.float32, copy=False)]


@cpu_execution("Einsum")
def _einsum(op: Op[EinsumAttrs], inputs: Inputs) -> list[AnyArray]:
    operands = [required(inputs, index) for index in range(len(inputs))]
    dtype = sum_dtype(*operands)
    plan = parse_einsum(op.attrs.equation, [item.shape for item in operands])
    factors: list[_Factor] = []
    for operand, labels in zip(operands, plan.operands, strict=True):
        # numpy's optimised paths do not broadcast axes of size 1 themselves.
        shape = tuple(plan.sizes[label] for label in labels)
        factors.append((np.broadcast_to(operand.astype(dtype), shape), labels))
    while len(factors) > MAX_FACTORS:
        factors = _fewer(factors, plan)
    result = _contracted(factors, plan.result)
    return [result.astype(required(inputs, 0).dtype, copy=False)]


def _contracted(factors: Sequence[_Factor], result: Sequence[Label]) -> AnyArray:
    labels = dict.fromkeys(chain.from_iterable(own for _, own in factors))
    numbers = {label: number for number, label in enumerate(labels)}
    arguments: list[Any] = []
    for array, own in factors:
        arguments += [array, [numbers[label] for label in own]]
    arguments.append([numbers[label] for label in result])
    return np.asarray(np.einsum(*arguments, optimize=True))


def _fewer(factors: Sequence[_Factor], plan: EinsumPlan) -> list[_Factor]:
    """Return the factors after multiplying the two neighbours with the smallest product."""
    uses = Counter(chain(set(plan.result), *(set(own) for _, own in factors)))

    def kept(place: int) -> tuple[Label, ...]:
        both = Counter(chain(*(set(own) for _, own in factors[place : place + 2])))
        return tuple(label for label, count in both.items() if uses[label] > count)

    def size(place: int) -> int:
        return prod(plan.sizes[label] for label in kept(place))

    place = min(range(len(factors) - 1), key=size)
    product = _contracted(factors[place : place + 2], kept(place))
    return [*factors[:place], (product, kept(place)), *factors[place + 2 :]]


@cpu_execution("Attention")
def _attention(op: Op[AttentionAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    q, k, v = (required(inputs, index) for index in range(3))
    return [_attend(q, k, v, optional(inputs, 3), attrs, optional(inputs, 4), optional(inputs, 5))]


def _attend(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    mask: AnyArray | None,
    attrs: AttentionAttrs | StridedAttentionAttrs,
    length: AnyArray | None,
    sink: AnyArray | None,
) -> AnyArray:
    if attrs.codes is not None:
        return attend_codes(q, k, v, attrs.scale, attrs.codes)
    if length is not None:
        k, v, mask = _among(0, max(1, min(int(length.reshape(())), k.shape[-2])), k, v, mask)
    if attrs.window and not attrs.causal:  # keys that no query sees are not read
        first = max(0, k.shape[-2] - q.shape[-2] + 1 - attrs.window)
        k, v, mask = _among(first, k.shape[-2], k, v, mask)
    kept, dtype = q.dtype, sum_dtype(q, k, v)
    q, k, v = (item.astype(dtype) for item in (q, k, v))
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(attrs.scale)
    if attrs.softcap:
        cap = scores.dtype.type(attrs.softcap)
        scores = np.tanh(scores / cap) * cap
    if mask is not None:
        if mask.dtype == np.bool_:
            scores = np.where(mask, scores, scores.dtype.type(-np.inf))
        else:
            scores = scores + widen(mask)
    scores = np.where(_visible(attrs, *scores.shape[-2:]), scores, scores.dtype.type(-np.inf))
    weights = _weights(scores, sink)
    if attrs.zero_fully_masked:
        blind = (scores == -np.inf).all(axis=-1, keepdims=True)
        weights = np.where(blind, weights.dtype.type(0), weights)
    result: AnyArray = np.matmul(weights, v).astype(kept, copy=False)
    return result


def _among(
    first: int, end: int, k: AnyArray, v: AnyArray, mask: AnyArray | None
) -> tuple[AnyArray, AnyArray, AnyArray | None]:
    """Return a subset of keys and values, and the mask for it."""
    if mask is not None and mask.ndim and mask.shape[-1] > 1:
        mask = mask[..., first:end]
    return k[..., first:end, :], v[..., first:end, :], mask


def _visible(attrs: AttentionAttrs | StridedAttentionAttrs, queries: int, keys: int) -> AnyArray:
    """Return which keys a query sees by its number, [queries, keys]."""
    visible = np.tri(queries, keys, dtype=np.bool_) if attrs.causal else np.ones((), np.bool_)
    if attrs.window:
        last = np.arange(keys - queries, keys)[:, None]
        visible = visible & (np.arange(keys) > last - attrs.window)
    return visible


def _weights(scores: AnyArray, sink: AnyArray | None) -> AnyArray:
    """Return the softmax of scores and a sink, without the sink's share."""
    if sink is None:
        return softmax(scores, (scores.ndim - 1,))
    one = np.broadcast_to(sink.astype(scores.dtype), (*scores.shape[:-1], 1))
    return softmax(np.concatenate([scores, one], -1), (scores.ndim - 1,))[..., :-1]


@placed_execution("StridedAttention")
def _strided_attention(
    op: Op[StridedAttentionAttrs], inputs: Inputs, outputs: Sequence[TensorInfo]
) -> list[AnyArray]:
    attrs = op.attrs
    q_view, k_view, v_view = attrs.views
    places = [
        (q_view, attrs.queries, attrs.depth),
        (k_view, attrs.keys, attrs.depth),
        (v_view, attrs.keys, attrs.width),
    ]
    if attrs.mask is not None:
        places.append((attrs.mask, attrs.queries, attrs.keys))
    operands = [
        _matrices(np.ascontiguousarray(required(inputs, index)), view, attrs.batch, rows, columns)
        for index, (view, rows, columns) in enumerate(places)
    ]
    q, k, v, mask = (*operands, None)[:4]
    assert q is not None
    assert k is not None
    assert v is not None
    result = np.empty(outputs[0].dims, outputs[0].dtype.numpy)
    target = _matrices(result, attrs.result, attrs.batch, attrs.queries, attrs.width)
    sink = optional(inputs, 5)
    if sink is not None:
        sink = sink.reshape(*attrs.batch, 1, 1)
    target[...] = _attend(q, k, v, mask, attrs, optional(inputs, 4), sink)
    return [result]


def _matrices(
    array: AnyArray, view: View, batch: tuple[int, int, int], rows: int, columns: int
) -> AnyArray:
    whole = View(view.offset, (*view.strides, 1))
    return strided(array.reshape(-1), whole, (*batch, rows, columns), "operand")


@cpu_execution("Det")
def _det(op: Op, inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    return [np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)]
