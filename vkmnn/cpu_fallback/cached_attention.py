"""CachedAttention as its component ops, one after the other."""

from __future__ import annotations

import numpy as np

from vkmnn.base.packed_rows import row_elements, unpack_rows
from vkmnn.cpu_fallback.registry import (
    AnyArray,
    Inputs,
    cpu_execution,
    optional,
    required,
    run_op,
    widen,
)
from vkmnn.ir import Op
from vkmnn.ir.ops import AppendAttrs, AttentionAttrs, CachedAttentionAttrs, RotaryAttrs

MASK, SINK = 8, 9


@cpu_execution("CachedAttention")
def _cached_attention(op: Op[CachedAttentionAttrs], inputs: Inputs) -> list[AnyArray]:
    lengths = required(inputs, 7).reshape(-1)
    if lengths.size == 1:
        return _attended(op, inputs, int(lengths[0]))
    images = [
        _attended(op, _image(inputs, n, lengths.size), int(held)) for n, held in enumerate(lengths)
    ]
    return [np.concatenate(parts) for parts in zip(*images, strict=True)]


def _image(inputs: Inputs, number: int, count: int) -> list[AnyArray | None]:
    """Return the operands of one image."""
    made: list[AnyArray | None] = []
    for place, array in enumerate(inputs):
        own = (
            array is not None
            and array.shape[0] == count
            and place < SINK
            and (place < MASK or array.ndim == 4)
        )
        made.append(array[number : number + 1] if array is not None and own else array)
    return made


def _attended(op: Op[CachedAttentionAttrs], inputs: Inputs, known: int) -> list[AnyArray]:
    attrs, held = op.attrs, max(known, 0)
    q, k, v = _apart(attrs, inputs)
    q, k = (_normalised(x, optional(inputs, place), attrs) for x, place in ((q, 10), (k, 11)))
    if attrs.width:
        turn = Op("Rotary", op.name, ["x", "c", "s"], ["y"],
                  RotaryAttrs(attrs.width, attrs.interleaved))  # fmt: skip
        tables = [required(inputs, 3), required(inputs, 4)]
        if attrs.positions:
            rows = np.minimum(held + np.arange(q.shape[2]), tables[0].shape[2] - 1)
            tables = [table[:, :, rows] for table in tables]
        q, k = (run_op(turn, [x, *tables])[0] for x in (q, k))
    append = Op("Append", op.name, ["x", "y", "n"], ["z"], AppendAttrs(2, attrs.packing))
    length = np.array([held], np.int64)
    caches = [
        run_op(append, [required(inputs, place), x, length])[0] for place, x in ((5, k), (6, v))
    ]
    shared = q.shape[1] // max(k.shape[1], 1)
    seen = caches
    if attrs.packing:
        seen = [unpack_rows(c, attrs.packing, x.shape[3]).astype(x.dtype)
                for c, x in zip(caches, (k, v), strict=True)]  # fmt: skip
    keys, values = (np.repeat(cache, shared, axis=1) for cache in seen)
    attend = Op("Attention", op.name, ["q", "k", "v", "m", "n", "s"], ["y"],
                AttentionAttrs(attrs.scale, False, attrs.zero_fully_masked, None, attrs.softcap,
                               attrs.window))  # fmt: skip
    mask, sinks = optional(inputs, MASK), optional(inputs, SINK)
    (y,) = run_op(attend, [q, keys, values, mask, length + q.shape[2], sinks])
    if known < 0:
        caches = [required(inputs, place) for place in (5, 6)]
    return [np.ascontiguousarray(y.swapaxes(1, 2)) if attrs.layout else y, *caches]


def _normalised(x: AnyArray, gain: AnyArray | None, attrs: CachedAttentionAttrs) -> AnyArray:
    if gain is None:
        return x
    wide = widen(x).astype(np.float64)
    root = np.sqrt(np.square(wide).mean(-1, keepdims=True) + attrs.epsilon)
    return np.asarray(wide / root * gain).astype(x.dtype)


def _apart(attrs: CachedAttentionAttrs, inputs: Inputs) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return queries, keys and values with heads before rows."""
    q = required(inputs, 0)
    if attrs.layout == "packed":
        heads_of_keys = required(inputs, 5).shape[1]
        depth, columns = (
            row_elements(attrs.packing, required(inputs, place).shape[3]) for place in (5, 6)
        )
        keys, values = heads_of_keys * depth, heads_of_keys * columns
        parts = np.split(q, [q.shape[2] - keys - values, q.shape[2] - values], axis=2)
        shape = (*q.shape[:2], heads_of_keys, -1)
        q, k, v = parts[0].reshape(*q.shape[:2], -1, depth), *(x.reshape(shape) for x in parts[1:])
    else:
        k, v = required(inputs, 1), required(inputs, 2)
    if attrs.layout:
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v))
    return q, k, v
