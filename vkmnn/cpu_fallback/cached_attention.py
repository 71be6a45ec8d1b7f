"""CachedAttention: what it consists of, one after the other."""

from __future__ import annotations

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, optional, required, run_op
from vkmnn.ir import Op
from vkmnn.ir.ops import AppendAttrs, AttentionAttrs, CachedAttentionAttrs, RotaryAttrs


@cpu_execution("CachedAttention")
def _cached_attention(op: Op[CachedAttentionAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    q, k, v = (required(inputs, index) for index in range(3))
    held = int(required(inputs, 7).reshape(()))
    if attrs.width:
        turn = Op("Rotary", op.name, ["x", "c", "s"], ["y"],
                  RotaryAttrs(attrs.width, attrs.interleaved))  # fmt: skip
        tables = [required(inputs, 3), required(inputs, 4)]
        q, k = (run_op(turn, [x, *tables])[0] for x in (q, k))
    append = Op("Append", op.name, ["x", "y", "n"], ["z"], AppendAttrs(2))
    length = np.array([held], np.int64)
    caches = [
        run_op(append, [required(inputs, place), x, length])[0] for place, x in ((5, k), (6, v))
    ]
    shared = q.shape[1] // max(k.shape[1], 1)
    keys, values = (np.repeat(cache, shared, axis=1) for cache in caches)
    attend = Op("Attention", op.name, ["q", "k", "v", "m", "n"], ["y"],
                AttentionAttrs(attrs.scale, False, attrs.zero_fully_masked))  # fmt: skip
    (y,) = run_op(attend, [q, keys, values, optional(inputs, 8), length + 1])
    return [y, *caches]
