"""Rotary embeddings."""

from __future__ import annotations

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, required, widen
from vkmnn.ir import Op
from vkmnn.ir.ops import RotaryAttrs


@cpu_execution("Rotary")
def _rotary(op: Op[RotaryAttrs], inputs: Inputs) -> list[AnyArray]:
    x, width = required(inputs, 0), op.attrs.width
    cos, sin = (widen(required(inputs, index)) for index in (1, 2))
    columns = np.arange(width)
    if op.attrs.interleaved:
        pair, other, first = columns // 2, columns ^ 1, columns % 2 == 0
    else:
        half = width // 2
        pair, other, first = columns % half, (columns + half) % width, columns < half
    if cos.shape[-1] != width:
        cos, sin = cos[..., pair], sin[..., pair]
    turned = widen(x[..., :width])
    sin = np.where(first, -sin, sin)
    result = turned * cos + turned[..., other] * sin
    return [np.concatenate([result.astype(x.dtype), x[..., width:]], axis=-1)]
