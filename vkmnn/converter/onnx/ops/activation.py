"""Element-by-element functions of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.ir import Array, DType
from vkmnn.ir.ops import BinaryAttrs, UnaryAttrs


@dataclass(frozen=True, slots=True)
class _Function:
    """A `UnaryOp` kind, and the ONNX attributes (name, default) of alpha and beta."""

    kind: str
    since: int = 1
    alpha: tuple[str, float] | None = None
    beta: tuple[str, float] | None = None


_FUNCTIONS: Mapping[str, _Function] = {
    "Abs": _Function("ABS"),
    "Neg": _Function("NEG"),
    "Reciprocal": _Function("RECIPROCAL"),
    "Floor": _Function("FLOOR"),
    "Ceil": _Function("CEIL"),
    "Round": _Function("ROUND", 11),
    "Sqrt": _Function("SQRT"),
    "Exp": _Function("EXP"),
    "Log": _Function("LOG"),
    "Erf": _Function("ERF", 9),
    "Sin": _Function("SIN", 7),
    "Cos": _Function("COS", 7),
    "Tan": _Function("TAN", 7),
    "Asin": _Function("ASIN", 7),
    "Acos": _Function("ACOS", 7),
    "Atan": _Function("ATAN", 7),
    "Sinh": _Function("SINH", 9),
    "Cosh": _Function("COSH", 9),
    "Asinh": _Function("ASINH", 9),
    "Acosh": _Function("ACOSH", 9),
    "Atanh": _Function("ATANH", 9),
    "Sign": _Function("SIGN", 9),
    "Not": _Function("NOT"),
    "IsNaN": _Function("ISNAN", 9),
    "Relu": _Function("RELU"),
    "LeakyRelu": _Function("LEAKY_RELU", alpha=("alpha", 0.01)),
    "Sigmoid": _Function("SIGMOID"),
    "HardSigmoid": _Function("HARD_SIGMOID", alpha=("alpha", 0.2), beta=("beta", 0.5)),
    "HardSwish": _Function("HARD_SWISH", 14),
    "Tanh": _Function("TANH"),
    "Elu": _Function("ELU", alpha=("alpha", 1.0)),
    "Selu": _Function(
        "SELU",
        alpha=("alpha", 1.67326319217681884765625),
        beta=("gamma", 1.05070102214813232421875),
    ),
    "Celu": _Function("CELU", 12, alpha=("alpha", 1.0)),
    "Softplus": _Function("SOFTPLUS"),
    "Softsign": _Function("SOFTSIGN"),
    "Mish": _Function("MISH", 18),
    "ThresholdedRelu": _Function("THRESHOLDED_RELU", 10, alpha=("alpha", 1.0)),
}


def _unary(function: _Function) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        alpha = node.float(*function.alpha) if function.alpha else 0.0
        beta = node.float(*function.beta) if function.beta else 0.0
        node.finish("UnaryOp", node.inputs, UnaryAttrs(function.kind, alpha, beta))

    return convert


for _name, _function in _FUNCTIONS.items():
    converter(_name, since=_function.since)(_unary(_function))


@converter("IsInf", since=10)
def _is_inf(node: NodeContext) -> None:
    negative = float(node.bool("detect_negative", True))
    positive = float(node.bool("detect_positive", True))
    node.finish("UnaryOp", node.inputs, UnaryAttrs("ISINF", negative, positive))


@converter("Gelu", since=20)
def _gelu(node: NodeContext) -> None:
    kind = node.choice("approximate", "none", ("none", "tanh"))
    node.finish("UnaryOp", node.inputs, UnaryAttrs("GELU_TANH" if kind == "tanh" else "GELU"))


@converter("Swish", since=24)
def _swish(node: NodeContext) -> None:
    node.finish("UnaryOp", node.inputs, gated(node.float("alpha", 1.0)))


def gated(alpha: float) -> UnaryAttrs:
    """Return x · sigmoid(alpha · x), by its own kind where alpha is 1."""
    return UnaryAttrs("SILU") if alpha == 1 else UnaryAttrs("QUICK_GELU", alpha)


@converter("PRelu", since=7)
def _prelu(node: NodeContext) -> None:
    node.finish("BinaryOp", node.inputs, BinaryAttrs("PRELU"))


@converter("Clip")
def _clip_attributes(node: NodeContext) -> None:
    # Without a bound, the largest float32 is one: it shows on infinities, unless x is float16.
    info = node.info(node.input(0))
    is_fp16 = info is not None and info.dtype is DType.FLOAT16
    largest = math.inf if is_fp16 else float(np.finfo(np.float32).max)
    low = node.float("min", -largest)
    high = node.float("max", largest)
    node.finish("UnaryOp", node.inputs, UnaryAttrs("CLIP", low, high))


@converter("Clip", since=11)
def _clip_inputs(node: NodeContext) -> None:
    x, low, high = node.input(0), node.input(1), node.input(2)
    bounds = [_float_bound(node.const_value(name)) if name else None for name in (low, high)]
    if all(bound is not None or not name for bound, name in zip(bounds, (low, high), strict=True)):
        alpha = -math.inf if bounds[0] is None else bounds[0]
        beta = math.inf if bounds[1] is None else bounds[1]
        node.finish("UnaryOp", [x], UnaryAttrs("CLIP", alpha, beta))
        return
    # Integers occur here too: a float attribute cannot represent all bounds of an int64.
    if low:
        last = not high
        x = node.emit("BinaryOp", [x, low], BinaryAttrs("MAX"), node.outputs if last else None)
    if high:
        node.finish("BinaryOp", [x, high], BinaryAttrs("MIN"))


def _float_bound(value: Array | None) -> float | None:
    if value is None or value.size != 1 or not np.issubdtype(value.dtype, np.floating):
        return None
    return float(value.reshape(()))
