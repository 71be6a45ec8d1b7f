"""Quantised activations of one byte per element on the device.

The reasons are in docs/decisions/quantized-graphs.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.ir.ops import CodeMean, LayerNormAttrs, SoftmaxAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.device_rules import is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import loads_of

_SHIFTS = frozenset({"A_SHIFT", "X_SHIFT", "RESIDUAL_SHIFT", "Y_SHIFT"})

Shifts = tuple[int, int, int]
"""Names of shifts: of a left operand, a residual and a result."""

_BYTE = np.iinfo(np.int8)


def code_shift(low: float, high: float, wish: int | None = None) -> int | None:
    """Return the shift from signed bytes to the integers between two bounds, including zero.

    Returns `wish` if it fits, and None if bytes cannot represent them.
    """
    if not (isfinite(low) and isfinite(high)):
        return None
    low, high = min(low, 0), max(high, 0)
    if low != int(low) or high != int(high) or high - low > _BYTE.max - _BYTE.min:
        return None
    if wish is not None and holds(wish, low, high):
        return wish
    return int(max(high - _BYTE.max, 0) + min(low - _BYTE.min, 0))


def holds(shift: int, low: float, high: float) -> bool:
    """Return whether signed bytes plus a shift can represent both bounds."""
    return low - shift >= _BYTE.min and high - shift <= _BYTE.max


def shift_of_codes(values: Array | None, wish: int | None = None) -> int | None:
    """Return the same for the integers of an array; None if other values occur."""
    if values is None or not np.array_equal(values, np.rint(values)):
        return None
    return code_shift(float(values.min(initial=0)), float(values.max(initial=0)), wish)


def keeps_rows_of_codes(info: DeviceInfo) -> bool:
    """Return whether a device's kernels read and write rows of bytes in plain order.

    True for CPU devices whose subgroups exchange the loads of their invocations.
    """
    return not is_gpu(info) and bool(rotate_lanes(info)) and "texel" in loads_of(info)


def code_spec(**tensors: Tensor | None) -> dict[str, int | bool]:
    """Return the specialization constants that mark quantised tensors, by name."""
    spec: dict[str, int | bool] = {}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.codes is not None:
            spec |= {f"{name.upper()}_CODES": True, f"{name.upper()}_SHIFT": tensor.codes}
    return spec


def shifts_of(*tensors: Tensor | None) -> Shifts:
    """Return the shifts of a left operand, a residual and a result; 0 for floats."""
    left, residual, made = (t.codes or 0 if t is not None else 0 for t in tensors)
    return left, residual, made


def with_shifts(spec: Mapping[str, int | bool]) -> dict[str, int | bool]:
    """Return the constants without shifts, which are stored after the biases.

    So one pipeline serves all zero points.
    """
    left = {name: value for name, value in spec.items() if name not in _SHIFTS}
    return {**left, "SHIFTED": True}


def reads_or_makes_codes(attrs: SoftmaxAttrs | LayerNormAttrs) -> bool:
    """Return whether a normalisation reads or writes quantised values."""
    return attrs.of_input != 1.0 or attrs.ending is not None


def rounding_spec(ending: CodeMean | None) -> dict[str, float | bool]:
    """Return the specialization constants for rounding (`include/rounding.glsl.j2`)."""
    if ending is None:
        return {}
    return {
        "ROUNDS": True,
        "OF_X": ending.of_x,
        "UNIT": ending.unit,
        "LOW": ending.low,
        "HIGH": ending.high,
        "SCALE": ending.scale,
    }
