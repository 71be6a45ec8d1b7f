"""How sums of codes end."""

from __future__ import annotations

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir.ops import CodeMean, QuantizedConvolutionAttrs, QuantizedMatMulAttrs


def requantized(
    sums: AnyArray,
    factor: AnyArray,
    residual: AnyArray | None,
    attrs: QuantizedConvolutionAttrs | QuantizedMatMulAttrs,
) -> AnyArray:
    """Return exact sums as codes, all arithmetic in float32; `factor` broadcasts to the sums."""
    if residual is not None and attrs.add is None:
        sums = sums + residual
    codes = np.clip(np.rint(sums.astype(np.float32) * factor), attrs.low, attrs.high)
    codes = codes.astype(np.float32)
    add = attrs.add
    if residual is not None and add is not None:
        one, other, unit = (np.float32(value) for value in (add.of_x, add.of_residual, add.unit))
        both = codes * one + residual.astype(np.float32) * other
        codes = np.clip(np.rint(both / unit), add.low, add.high).astype(np.float32)
    return np.asarray(codes * np.float32(attrs.scale))


def mean_of_codes(means: AnyArray, ending: CodeMean) -> AnyArray:
    """Return means of codes as codes, all arithmetic in float32."""
    scaled = means.astype(np.float32) * np.float32(ending.of_x)
    codes = np.clip(np.rint(scaled / np.float32(ending.unit)), ending.low, ending.high)
    return np.asarray(codes.astype(np.float32) * np.float32(ending.scale))
