"""UnaryOp, and the activations that other operators apply to their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vkmnn.cpu_fallback.erf import erf
from vkmnn.cpu_fallback.registry import AnyArray, Inputs, cpu_execution, required, widen
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Activation, Op
from vkmnn.ir.ops import UnaryAttrs

_Function = Callable[[AnyArray, float, float], AnyArray]

_SQRT_HALF = 0.5**0.5
_SQRT_2_OVER_PI = (2.0 / np.pi) ** 0.5


def _sigmoid(x: AnyArray) -> AnyArray:
    return 1.0 / (1.0 + np.exp(-x))


def _softplus(x: AnyArray) -> AnyArray:
    return np.logaddexp(x, np.zeros_like(x))


def _hard_sigmoid(x: AnyArray, alpha: float, beta: float) -> AnyArray:
    return np.clip(alpha * x + beta, 0.0, 1.0)


def _gelu(x: AnyArray) -> AnyArray:
    wide = x.astype(np.float64)
    return 0.5 * wide * (1.0 + erf(wide * _SQRT_HALF))


def _gelu_tanh(x: AnyArray) -> AnyArray:
    inner = _SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)
    return np.asarray(0.5 * x * (1.0 + np.tanh(inner)))


def _in_range(limit: float, dtype: np.dtype[Any]) -> float:
    """Return a CLIP limit as a value of `dtype`; limits of integers may be infinite."""
    if dtype.kind not in "iu":
        return limit
    limits = np.iinfo(dtype)
    return min(max(limit, limits.min), limits.max)


def _clip(x: AnyArray, low: float, high: float) -> AnyArray:
    lower, upper = (x.dtype.type(_in_range(limit, x.dtype)) for limit in (low, high))
    return np.asarray(np.minimum(np.maximum(x, lower), upper))


def _celu(x: AnyArray, alpha: float) -> AnyArray:
    return np.where(x < 0, alpha * np.expm1(x / alpha), x)


def _selu(x: AnyArray, alpha: float, gamma: float) -> AnyArray:
    return gamma * np.where(x <= 0, alpha * np.expm1(x), x)


def _is_inf(x: AnyArray, negative: float, positive: float) -> AnyArray:
    return (np.isneginf(x) & bool(negative)) | (np.isposinf(x) & bool(positive))


def _rounded(function: Callable[[AnyArray], AnyArray]) -> _Function:
    return lambda x, a, b: function(x) if x.dtype.kind == "f" else x


_FUNCTIONS: dict[str, _Function] = {
    "NONE": lambda x, a, b: x,
    "ABS": lambda x, a, b: np.abs(x),
    "NEG": lambda x, a, b: np.negative(x),
    "RECIPROCAL": lambda x, a, b: 1.0 / x,
    "FLOOR": _rounded(np.floor),
    "CEIL": _rounded(np.ceil),
    "ROUND": _rounded(np.rint),
    "SQRT": lambda x, a, b: np.sqrt(x),
    "RSQRT": lambda x, a, b: 1.0 / np.sqrt(x),
    "SQUARE": lambda x, a, b: x * x,
    "EXP": lambda x, a, b: np.exp(x),
    "LOG": lambda x, a, b: np.log(x),
    "ERF": lambda x, a, b: erf(x),
    "SIN": lambda x, a, b: np.sin(x),
    "COS": lambda x, a, b: np.cos(x),
    "TAN": lambda x, a, b: np.tan(x),
    "ASIN": lambda x, a, b: np.arcsin(x),
    "ACOS": lambda x, a, b: np.arccos(x),
    "ATAN": lambda x, a, b: np.arctan(x),
    "SINH": lambda x, a, b: np.sinh(x),
    "COSH": lambda x, a, b: np.cosh(x),
    "ASINH": lambda x, a, b: np.arcsinh(x),
    "ACOSH": lambda x, a, b: np.arccosh(x),
    "ATANH": lambda x, a, b: np.arctanh(x),
    "SIGN": lambda x, a, b: np.sign(x),
    "NOT": lambda x, a, b: np.logical_not(x),
    "ISNAN": lambda x, a, b: np.isnan(x),
    "ISINF": _is_inf,
    "RELU": lambda x, a, b: np.maximum(x, x.dtype.type(0)),
    "CLIP": _clip,
    "LEAKY_RELU": lambda x, a, b: np.where(x < 0, a * x, x),
    "SIGMOID": lambda x, a, b: _sigmoid(x),
    "HARD_SIGMOID": _hard_sigmoid,
    "HARD_SWISH": lambda x, a, b: x * _hard_sigmoid(x, 1.0 / 6.0, 0.5),
    "TANH": lambda x, a, b: np.tanh(x),
    "ELU": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "SELU": _selu,
    "CELU": lambda x, a, b: _celu(x, a),
    "SOFTPLUS": lambda x, a, b: _softplus(x),
    "SOFTSIGN": lambda x, a, b: x / (1.0 + np.abs(x)),
    "GELU": lambda x, a, b: _gelu(x),
    "GELU_TANH": lambda x, a, b: _gelu_tanh(x),
    "SILU": lambda x, a, b: x * _sigmoid(x),
    "MISH": lambda x, a, b: x * np.tanh(_softplus(x)),
    "QUICK_GELU": lambda x, a, b: x * _sigmoid(a * x),
    "THRESHOLDED_RELU": lambda x, a, b: np.where(x > a, x, x.dtype.type(0)),
}

_BOOL_KINDS = ("NOT", "ISNAN", "ISINF")


def unary(kind: str, x: AnyArray, alpha: float = 0.0, beta: float = 0.0) -> AnyArray:
    """Apply a kind of a `UnaryOp` or an activation.

    The result has the type of `x`, or bool for NOT, ISNAN and ISINF. float16 is computed
    in float32, ERF and GELU in float64.

    Raises:
        InvalidInputError: the kind is unknown.
    """
    function = _FUNCTIONS.get(kind)
    if function is None:
        raise InvalidInputError(f"unary kind '{kind}' is unknown")
    result = np.asarray(function(widen(x), alpha, beta))
    return result if kind in _BOOL_KINDS else result.astype(x.dtype, copy=False)


def activate(x: AnyArray, activation: Activation) -> AnyArray:
    """Apply an op's activation to its result."""
    return unary(activation.kind, x, activation.alpha, activation.beta)


def finish(x: AnyArray, residual: AnyArray | None, kind: str, activation: Activation) -> AnyArray:
    """Apply an op's residual, in one of RESIDUAL_KINDS, and its activation to its result."""
    if residual is None:
        return activate(x, activation)
    if kind == "ADD_BEFORE":
        return activate(x + widen(residual), activation)
    result = activate(x, activation)
    return result + widen(residual) if kind == "ADD_AFTER" else result * widen(residual)


def gated(x: AnyArray, activation: Activation) -> AnyArray:
    """Return half as many columns: of every four, two are gates of the others."""
    fours = x.reshape(*x.shape[:-1], x.shape[-1] // 4, 4)
    twos = activate(fours[..., :2], activation) * fours[..., 2:]
    return np.asarray(twos.reshape(*x.shape[:-1], x.shape[-1] // 2))


@cpu_execution("UnaryOp")
def _unary_op(op: Op[UnaryAttrs], inputs: Inputs) -> list[AnyArray]:
    attrs = op.attrs
    return [unary(attrs.kind, required(inputs, 0), attrs.alpha, attrs.beta)]
