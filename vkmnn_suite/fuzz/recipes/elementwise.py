"""Functions of one and of several tensors, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.schemas import Skip
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import ANY, FINITE, NONZERO, POSITIVE, Spread

# The values that a function accepts; all others accept any.
_DOMAINS: Mapping[str, Spread] = {
    "Acos": Spread(-1, 1, special=False),
    "Asin": Spread(-1, 1, special=False),
    "Acosh": Spread(1, 8, special=False),
    "Atanh": Spread(-0.95, 0.95, special=False),
    "Log": POSITIVE,
    "Sqrt": Spread(0, 9),
    "Reciprocal": NONZERO,
    "Tan": Spread(-1.4, 1.4, special=False),
    "Sin": Spread(-20, 20, special=False),
    "Cos": Spread(-20, 20, special=False),
    "Exp": Spread(-12, 8),
    "Sinh": Spread(-8, 8),
    "Cosh": Spread(-8, 8),
    "Asinh": Spread(-100, 100, special=False),
    "Erf": Spread(-4, 4),
    "Mish": Spread(-12, 12, special=False),
    "HardSwish": FINITE,
    "Gelu": FINITE,
    "Swish": FINITE,
}

# Float attributes, with the range they are drawn from.
_FLOATS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "LeakyRelu": {"alpha": (-0.5, 1.5)},
    "HardSigmoid": {"alpha": (0.05, 0.6), "beta": (0.0, 1.0)},
    "Elu": {"alpha": (0.1, 2.0)},
    "Selu": {"alpha": (0.5, 2.0), "gamma": (0.5, 2.0)},
    "Celu": {"alpha": (0.2, 2.0)},
    "ThresholdedRelu": {"alpha": (-1.0, 2.0)},
    "Shrink": {"lambd": (0.0, 2.0), "bias": (-0.5, 1.0)},
    "Swish": {"alpha": (0.2, 2.0)},
}

_UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh"),
    *("Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "IsNaN", "LeakyRelu", "Log"),
    *("Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign"),
    *("Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
)


@recipe(*_UNARY)
def _unary(s: Sketch, op: str) -> None:
    dtype = s.dtype(op)
    if op == "Erf" and not dtype.startswith("float"):
        raise Skip  # what becomes of the fractions of integers is not said
    x = s.pick(dtype, spread=_DOMAINS.get(op, ANY))
    ranges = _FLOATS.get(op, {})
    if not x.dtype.startswith("float"):
        ranges = {}  # the same here
    floats: dict[str, Any] = {
        name: s.rng.uniform(*span) for name, span in ranges.items() if s.chance(0.7)
    }
    s.one(op, x, **floats)


@recipe("BitwiseNot")
def _bits(s: Sketch, op: str) -> None:
    s.one(op, s.pick(s.dtype(op)))


@recipe("IsInf")
def _is_inf(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op))
    s.one(op, x, detect_negative=s.choose(None, 0, 1), detect_positive=s.choose(None, 0, 1))


@recipe("Gelu")
def _gelu(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), spread=FINITE)
    s.one(op, x, approximate=s.choose(None, "none", "tanh"))


@recipe("Clip")
def _clip(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op))
    low, high = sorted(s.rng.sample(range(-3, 5), 2))
    if x.dtype.startswith("u"):
        low, high = abs(low), abs(low) + abs(high) + 1
    if not s.since(11):
        s.one(op, x, min=s.choose(None, float(low)), max=s.choose(None, float(high)))
        return
    bounds = [s.parameter(v, x.dtype) if s.chance(0.7) else None for v in (low, high)]
    s.one(op, x, *bounds)


@recipe("PRelu")
def _prelu(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op))
    s.one(op, x, s.weight(x.dtype, s.broadcast(x.shape), Spread(-1, 1, special=False)))


# --- several tensors -----------------------------------------------------------------------------


def operands(
    s: Sketch, dtype: str, count: int, spread: Spread = ANY, other: Spread | None = None
) -> list[Value]:
    """Return values that broadcast with each other; all but the first fit `other`."""
    first = s.pick(dtype, spread=spread)
    full = [s.size(5) if size == 1 and s.chance(0.3) else size for size in first.shape]
    if len(full) < 4 and s.chance(0.1):
        full = [s.size(4), *full]
    rest = [_partner(s, dtype, full, first, other or spread) for _ in range(count - 1)]
    values = [first, *rest]
    if other is None and s.chance(0.4):
        s.rng.shuffle(values)
    return values


def _partner(s: Sketch, dtype: str, full: list[int], first: Value, spread: Spread) -> Value:
    fate = s.rng.random()
    if fate < 0.06 and spread.fits(first.array):
        return first
    if fate < 0.25:
        return s.fresh(dtype, s.choose([], [1], [1] * len(full)), spread)
    if fate < 0.5:
        return s.pick(dtype, first.shape, spread=spread)
    return s.fresh(dtype, s.broadcast(full), spread)


@recipe("Add", "Sub", "Mul", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def _binary(s: Sketch, op: str) -> None:
    s.one(op, *operands(s, s.dtype(op), 2))


@recipe("And", "Or", "Xor")
def _logical(s: Sketch, op: str) -> None:
    s.one(op, *operands(s, "bool", 2))


@recipe("Sum", "Max", "Min", "Mean")
def _variadic(s: Sketch, op: str) -> None:
    s.one(op, *operands(s, s.dtype(op), s.choose(1, 2, 2, 3, 4)))


@recipe("Div")
def _div(s: Sketch, op: str) -> None:
    s.one(op, *operands(s, s.dtype(op), 2, other=NONZERO))


@recipe("Mod")
def _mod(s: Sketch, op: str) -> None:
    dtype = s.dtype(op)
    fmod = 1 if dtype.startswith("float") else s.choose(None, 0, 1)
    s.one(op, *operands(s, dtype, 2, FINITE, NONZERO), fmod=fmod)


@recipe("Pow")
def _pow(s: Sketch, op: str) -> None:
    base = s.dtype(op)
    exponent = base if not s.since(12) or s.chance(0.6) else s.dtype(op, 1)
    fractions = base.startswith("float") and exponent.startswith("float") and s.chance(0.6)
    if fractions:
        x, spread = s.pick(base, spread=POSITIVE), Spread(-2, 2, special=False)
    else:
        x, spread = s.pick(base, spread=FINITE), Spread(0, 3, special=False)
    if s.chance(0.5):  # patterns that passes look for
        y = s.parameter(s.choose(0, 1, 2, 2, 3), exponent)
    else:
        y = s.fresh(exponent, s.broadcast(x.shape), spread)
    if base.startswith("float") and not fractions and exponent.startswith("float"):
        y = s.parameter(y.array.round(), exponent)
    s.one(op, x, y)


@recipe("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bitwise(s: Sketch, op: str) -> None:
    s.one(op, *operands(s, s.dtype(op), 2))


@recipe("BitShift")
def _shift(s: Sketch, op: str) -> None:
    dtype = s.dtype(op)
    a, b = operands(s, dtype, 2, Spread(0, 100), Spread(0, 7))
    s.one(op, a, b, direction=s.choose("LEFT", "RIGHT"))


@recipe("Where")
def _where(s: Sketch, op: str) -> None:
    dtype = s.dtype(op, 1)
    a, b = operands(s, dtype, 2)
    full = a.shape if a.rank >= b.rank else b.shape
    s.one(op, s.pick("bool", s.broadcast(full)), a, b)


@recipe("Cast")
def _cast(s: Sketch, op: str) -> None:
    source, target = s.dtype(op), s.dtype(op)
    s.one(op, _castable(s, source, target), to=_code(target))


@recipe("BitCast")
def _bit_cast(s: Sketch, op: str) -> None:
    group = s.choose(
        ("float32", "int32", "uint32"), ("float16", "int16", "uint16"), ("int8", "uint8")
    )
    source, target = s.one_of(group), s.one_of(group)
    low = 0 if source.startswith("uint") or target.startswith("uint") else -100
    x = s.pick(source, spread=Spread(low, 100, special=False))
    s.one(op, x, to=_code(target))


@recipe("CastLike")
def _cast_like(s: Sketch, op: str) -> None:
    source, target = s.dtype(op), s.dtype(op)
    s.one(op, _castable(s, source, target), s.pick(target))


def _castable(s: Sketch, source: str, target: str) -> Value:
    low = 0 if target.startswith("u") and source.startswith("float") else -4
    return s.pick(source, spread=ANY if "float" in target else Spread(low, 100, special=False))


def _code(dtype: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@recipe("Dropout")
def _dropout(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op))
    outputs = s.choose(1, 1, 2)
    if not s.since(12):  # what a mask of nothing is, ONNX says since then
        s.node(op, [x], 1, ratio=s.choose(None, 0.3))
        return
    ratio = s.parameter(0.3, "float32", constant=1.0) if s.chance(0.5) else None
    training = s.parameter(False, "bool", constant=1.0) if s.chance(0.5) else None
    s.node(op, [x, ratio, training], outputs)


@recipe("Identity")
def _identity(s: Sketch, op: str) -> None:
    s.one(op, s.pick(s.dtype(op)))


@recipe("SwiGLU")
def _swiglu(s: Sketch, op: str) -> None:
    gate = s.pick(s.dtype(op), spread=FINITE)
    alpha = s.choose(None, s.rng.uniform(0.5, 2.0))
    s.one(op, gate, s.pick(gate.dtype, gate.shape, spread=FINITE), alpha=alpha)
