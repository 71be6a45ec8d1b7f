"""MNN.expr's functions of one and two arguments, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.expr.special import erfinv
from vkmnn.mnn.expr.types import dtype
from vkmnn.mnn.expr.values import matched, normal_axis, result, to_var
from vkmnn.mnn.expr.var import Var

_F = np.float32
_HALF, _SQRT2 = _F(0.5), _F(np.sqrt(2))


def _away(x: Array) -> Array:
    """Round halves away from zero, as C does."""
    return np.asarray(np.trunc(x + np.copysign(_HALF, x)))


def erf(x: Array) -> Array:
    """Return the error function in the type of its argument."""
    from vkmnn.cpu_fallback.erf import erf as erf_of

    return np.asarray(erf_of(x), x.dtype)


# Function -> what it computes in the type of its argument, or in float32.
SAME_TYPE: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "negative": np.negative,
    "sign": np.sign,
}
IN_FLOATS: dict[str, Callable[[Array], Array]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": erf,
    "erfc": lambda x: 1 - erf(x),
    "erfinv": erfinv,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "gelu": lambda x: _HALF * x * (1 + erf(x / _SQRT2)),
    "log": np.log,
    "log1p": np.log1p,
    "reciprocal": lambda x: 1 / x,
    "round": _away,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "sinh": np.sinh,
    "softplus": lambda x: np.logaddexp(x, _F(0)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
}


def _quotient(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    return np.asarray((np.abs(x) // np.abs(_divisor(y))) * (np.sign(x) * np.sign(y)))


def _divisor(y: Array) -> Array:
    if y.dtype.kind != "f" and not y.all():
        raise ArgumentError("an integer is divided by zero", hint="divide floats")
    return y


def _c_remainder(x: Array, y: Array) -> Array:
    return np.asarray(np.fmod(x, _divisor(y)))


def _python_remainder(x: Array, y: Array) -> Array:
    return np.asarray(np.mod(x, _divisor(y)))


def _mod(x: Array, y: Array) -> Array:
    return (_c_remainder if x.dtype.kind == "f" else _python_remainder)(x, y)


def _floormod(x: Array, y: Array) -> Array:
    return (_python_remainder if x.dtype.kind == "f" else _c_remainder)(x, y)


def _pow(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(np.power(x, y))
    return np.power(x.astype(np.float64), y).astype(x.dtype)


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "atan2": np.arctan2,
    "divide": _quotient,
    "equal": np.equal,
    "floordiv": lambda x, y: np.floor_divide(x, _divisor(y)),
    "floormod": _floormod,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": _mod,
    "multiply": np.multiply,
    "not_equal": np.not_equal,
    "pow": _pow,
    "squared_difference": lambda x, y: np.square(x - y),
    "subtract": np.subtract,
}
INTEGERS_ONLY: dict[str, Callable[[Array, Array], Array]] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "logical_or": np.logical_or,
}

# Function -> the type of MNN's op, where it is not the function's name in capitals.
_OPS = {
    "multiply": "MUL",
    "subtract": "SUB",
    "divide": "REALDIV",
    "negative": "NEG",
    "maximum": "MAXIMUM",
    "logical_or": "LOGICALOR",
    "sigmoid": "Sigmoid",
    "tanh": "TanH",
    "softplus": "Softplus",
    "softsign": "Softsign",
}


def op_name(name: str) -> str:
    """Return the type of MNN's op for a function."""
    return _OPS.get(name, name.upper())


def _unary(name: str, function: Callable[[Array], Array], kind: dtype | None) -> Any:
    def call(x: Any) -> Var:
        return result(op_name(name), function, to_var(x, kind))

    return _named(call, name, f"Return {name}(x) of each element of a Var.")


def _binary(name: str, function: Callable[[Array, Array], Array], integers: bool) -> Any:
    def call(x: Any, y: Any) -> Var:
        first, second = matched(x, y)
        if integers and first.dtype not in (dtype.int, dtype.int64):
            raise ArgumentError(f"expr.{name} takes integers, not {first.dtype.name}")
        return result(op_name(name), function, first, second)

    return _named(call, name, f"Return {name}(x, y) of the elements of two Vars, broadcast.")


def _named(function: Any, name: str, text: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _unary(name, function, None) for name, function in SAME_TYPE.items()},
    **{name: _unary(name, function, dtype.float) for name, function in IN_FLOATS.items()},
    **{name: _binary(name, function, False) for name, function in BINARY.items()},
    **{name: _binary(name, function, True) for name, function in INTEGERS_ONLY.items()},
}
"""Every function of this module that MNN.expr has, by name."""


def bias_add(value: Any, bias: Any) -> Var:
    """Return a Var plus a bias along its last axis."""
    value, bias = matched(value, bias)
    if bias.ndim != 1 or value.shape[-1:] != bias.shape:
        raise ArgumentError(f"a bias of shape {bias.shape} does not suit {value.shape}")
    return result("ADD", np.add, value, bias)


def _weighted(name: str, function: Callable[[Array, Array], Array]) -> Any:
    def call(x: Any, y: Any, coeff: Sequence[float] = ()) -> Var:
        first, second = to_var(x, dtype.float), to_var(y, dtype.float)
        scales = [_F(one) for one in coeff] if len(coeff) == 2 and name == "eltwise_sum" else None

        def compute(a: Array, b: Array) -> Any:
            return function(a * scales[0], b * scales[1]) if scales else function(a, b)

        return result("Eltwise", compute, first, second)

    return _named(call, name, "Combine two Vars of floats; two coefficients weight the sum.")


FUNCTIONS["bias_add"] = bias_add
FUNCTIONS.update(
    eltwise_sum=_weighted("eltwise_sum", np.add),
    eltwise_sub=_weighted("eltwise_sub", np.subtract),
    eltwise_prod=_weighted("eltwise_prod", np.multiply),
    eltwise_max=_weighted("eltwise_max", np.maximum),
)


def relu(x: Any, slope: float = 0.0) -> Var:
    """Return the positive part, plus the negative part times a slope."""
    return result("ReLU", lambda a: np.where(a > 0, a, a * a.dtype.type(slope)), to_var(x))


def relu6(x: Any, min: float = 0.0, max: float = 6.0) -> Var:
    """Return the elements, limited to a range."""
    return result("ReLU6", lambda a: np.clip(a, a.dtype.type(min), a.dtype.type(max)), to_var(x))


def prelu(x: Any, slopes: Sequence[float]) -> Var:
    """Return the positive part, plus the negative part times the slope of its channel."""
    rates = np.asarray(slopes, _F)

    def compute(a: Array) -> Any:
        own = rates.reshape([-1] + [1] * (a.ndim - 2)) if rates.size > 1 else rates
        return np.where(a > 0, a, a * own)

    return result("PReLU", compute, to_var(x, dtype.float))


def elu(x: Any, alpha: float = 1.0) -> Var:
    """Return the exponential linear unit of the elements."""
    return result("ELU", lambda a: _elu(a, alpha), to_var(x, dtype.float))


def selu(x: Any, scale: float, alpha: float) -> Var:
    """Return the scaled exponential linear unit of the elements."""
    return result("Selu", lambda a: _F(scale) * _elu(a, alpha), to_var(x, dtype.float))


def _elu(a: Array, alpha: float) -> Array:
    return np.where(a > 0, a, _F(alpha) * np.expm1(np.minimum(a, 0)))


def softmax(x: Any, axis: int = -1) -> Var:
    """Return the softmax along an axis."""

    def compute(a: Array) -> Any:
        along = normal_axis(axis, a.ndim)
        powers = np.exp(a - a.max(along, keepdims=True))
        return np.asarray(powers / powers.sum(along, keepdims=True))

    return result("Softmax", compute, to_var(x, dtype.float))


FUNCTIONS.update(relu=relu, relu6=relu6, prelu=prelu, elu=elu, selu=selu, softmax=softmax)
