"""Whether results agree: exactly, closely, or as closely as the model's conditioning allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn_suite.fuzz.case import Feeds
from vkmnn_suite.fuzz.oracle import RUNTIME, Oracle, OracleError

EXACT_OPS = frozenset({
    *("Reshape", "Flatten", "Transpose", "Concat", "Squeeze", "Unsqueeze", "Expand", "Tile"),
    *("Slice", "Split", "Pad", "DepthToSpace", "SpaceToDepth", "Trilu", "CenterCropPad"),
    *("ReverseSequence", "Identity", "Dropout", "Gather", "GatherElements", "GatherND", "Where"),
    *("Shape", "Size", "Constant", "ConstantOfShape", "EyeLike", "OneHot", "Max", "Min", "Relu"),
    *("Abs", "Neg", "Floor", "Ceil", "Round", "Sign", "Clip", "Not", "And", "Or", "Xor"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf", "TopK"),
    *("ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "MaxPool", "GlobalMaxPool", "Hardmax"),
    *("BitShift", "BitwiseNot", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
})  # fmt: skip
"""Operators that round nothing: they move, choose or compare."""

_BOUNDED = frozenset({
    *("HannWindow", "HammingWindow", "BlackmanWindow", "Gelu", "BiasGelu", "FastGelu"),
    *("QuickGelu", "Swish", "Mish", "LSTM", "GRU", "RNN"),
})  # fmt: skip
"""Differences of numbers near one, which may all be near zero, and their tails.

In recurrent operators, onnxruntime's approximations of functions near one add up.
"""

_SINGLE = frozenset({"HannWindow", "HammingWindow", "BlackmanWindow", "Resize", "Upsample"})
"""Operators whose coefficients onnxruntime stores in float32 even if it computes in float64."""

_TRANSFORMS = frozenset({"DFT", "STFT"})
"""Operators for which the errors of zeros are as large as those of the largest elements."""

_SUMS = frozenset({"ReduceSum", "ReduceMean", "ReduceSumSquare", "Sum", "CumSum", "Einsum"})
"""Operators whose zeros have the sign that the order of adding gives them."""

_SIZED = frozenset({"Resize", "Upsample", "Range"})
"""Operators whose float inputs decide shapes."""

TRIALS = (12, 72)
"""How often errors are inserted: few times first, more often if those explain nothing."""

_SPREADS = 8.0
"""The factor by which differences may exceed the largest observed effect of rounding errors."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerances for one rounding of an element type.

    Attributes:
        relative: difference by the element itself.
        ranged: difference by the largest element of the tensor.
        noise: the rounding error that is inserted to see its effect, relative to the element.
        smallest: the smallest number, which is the largest error of rounding near zero.
    """

    relative: float
    ranged: float
    noise: float
    smallest: float = 1e-37


_FLOAT32 = Tolerance(2e-5, 2e-6, 2e-6)
_FLOAT16 = Tolerance(4e-3, 2e-3, 1e-3, 2.0**-24)
_LOW = Tolerance(1.6e-2, 8e-3, 4e-3, 2.0**-24)
_FLOAT64 = Tolerance(1e-6, 1e-7, 1e-7)


def tolerance(dtype: np.dtype[Any], precision: str) -> Tolerance:
    """Return the tolerance for a float type."""
    if precision == "low":
        return _LOW
    if dtype == np.float16 or precision == "normal":
        return _FLOAT16
    return _FLOAT64 if dtype == np.float64 else _FLOAT32


def agree(actual: AnyArray, expected: AnyArray, precision: str) -> str | None:
    """Describe the difference, or return None; types and shapes count as well."""
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype}, expected {expected.dtype}"
    if actual.shape != expected.shape:
        return f"shape {list(actual.shape)}, expected {list(expected.shape)}"
    if expected.dtype.kind != "f":
        return _first_difference(actual, expected, actual != expected)
    allowed = tolerance(expected.dtype, precision)
    limit = allowed.relative * _magnitude(expected) + allowed.ranged * _range(expected)
    return _beyond(actual, expected, limit + allowed.smallest)


def agree_conditioned(
    actual: AnyArray, expected: AnyArray, trials: Iterable[AnyArray], precision: str
) -> str | None:
    """Describe a difference that rounding errors within the model cannot explain; see `noisy`."""
    difference = agree(actual, expected, precision)
    if difference is None or actual.dtype != expected.dtype or actual.shape != expected.shape:
        return difference
    others = [trial for trial in trials if trial.shape == expected.shape]
    if expected.dtype.kind != "f":
        stable = np.ones(expected.shape, bool)
        for other in others:
            stable &= other == expected
        return _first_difference(actual, expected, (actual != expected) & stable)
    allowed = tolerance(expected.dtype, precision)
    spread = np.zeros(expected.shape)
    stable = np.ones(expected.shape, bool)
    with np.errstate(all="ignore"):
        for other in others:
            stable &= np.isnan(other) == np.isnan(expected)
            stable &= np.where(np.isinf(other) | np.isinf(expected), other == expected, True)
            gap = np.abs(other.astype(np.float64) - expected.astype(np.float64))
            spread = np.maximum(spread, np.where(np.isfinite(gap), gap, 0.0))
    limit = allowed.relative * _magnitude(expected) + allowed.ranged * _range(expected)
    limit = limit + _SPREADS * spread + 0.25 * _range(spread) + allowed.smallest
    return _beyond(np.where(stable, actual, expected), expected, limit)


def noisy(
    model: onnx.ModelProto,
    feeds: Feeds,
    oracle: Oracle,
    precision: str,
    prefer: str = RUNTIME,
    trials: int = TRIALS[0],
) -> list[dict[str, AnyArray]]:
    """Return all tensors of a model, several times, with small errors at every node that rounds.

    One time in four, numbers are rounded to a coarse grid: those that are equal, or zero, except
    for rounding become so. Another time, no number leaves the range of its tensor: errors of the
    largest would hide the effect of the others on a scale that depends on it.
    """
    draws = np.random.default_rng(0)
    gridded = ranged = False

    def change(node: onnx.NodeProto, side: str, array: AnyArray) -> AnyArray:
        if array.dtype.kind != "f" or node.op_type in EXACT_OPS or not array.size:
            return array
        if side == "input" and node.op_type in _SIZED:
            return array
        allowed = tolerance(array.dtype, precision)
        noise = allowed.noise
        if side == "output" and node.op_type in _SINGLE:
            noise = max(noise, _FLOAT32.noise)
        wide = array.astype(np.float64)
        size = 1.0 if node.op_type in _BOUNDED else _range(array)
        share = 1.0 if node.op_type in _TRANSFORMS else 0.1
        if gridded:
            if side == "output":
                wide = np.where(np.abs(wide) > share * noise * size, wide, 0.0)
            return np.asarray(_on_grid(wide, noise).astype(array.dtype))
        # A zero in float16 may be a number too small for it, which vkmnn keeps in float32.
        exact = wide == 0 if side == "input" or array.dtype != np.float16 else False
        with np.errstate(all="ignore"):
            errors = draws.uniform(-1, 1, array.shape)
            wide = wide * (1 + noise * errors) + np.where(exact, 0.0, allowed.smallest) * errors
            if side == "output":
                wide = wide + share * noise * size * draws.uniform(-1, 1, array.shape)
                if node.op_type in _SUMS:
                    wide = np.where(wide == 0, np.copysign(wide, errors), wide)
            if ranged and not np.isnan(array).any():
                wide = np.clip(wide, array.min(), array.max())
            return np.asarray(wide.astype(array.dtype))

    found = []
    for number in range(trials):
        gridded, ranged = number % 4 == 3, number % 4 == 1
        try:
            found.append(oracle.evaluate(model, feeds, prefer, change))
        except OracleError:  # an index that depends on a float left its range
            continue
    return found


def _on_grid(array: AnyArray, noise: float) -> AnyArray:
    """Round to as many binary digits as leave an error of `noise`."""
    fraction, exponent = np.frexp(array)
    step = 2.0 ** np.floor(np.log2(2 * noise))
    return np.asarray(np.ldexp(np.round(fraction / step) * step, exponent))


def _magnitude(array: AnyArray) -> AnyArray:
    wide = np.abs(array.astype(np.float64))
    return np.asarray(np.where(np.isfinite(wide), wide, 0.0))


def _range(array: AnyArray) -> float:
    return float(_magnitude(array).max(initial=0.0))


def _beyond(actual: AnyArray, expected: AnyArray, limit: AnyArray) -> str | None:
    wide, right = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (wide == right) | (np.isnan(wide) & np.isnan(right))
        close = np.abs(wide - right) <= limit
    return _first_difference(actual, expected, ~(same | (close & np.isfinite(right))))


def _first_difference(actual: AnyArray, expected: AnyArray, wrong: AnyArray) -> str | None:
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{count} of {expected.size} values of {expected.dtype} {list(expected.shape)} differ, "
        f"first at {list(place)}: {actual[place]!s}, expected {expected[place]!s}"
    )
