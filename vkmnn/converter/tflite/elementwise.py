"""Element by element: arithmetic, comparisons, logic, activations, conversions of elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vkmnn.converter.nodes import BOOL, FLOAT, INT32
from vkmnn.converter.nodes.composed import arc_tangent
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tflite.nodes import LiteOp, reads
from vkmnn.converter.tflite.tensors import TYPES
from vkmnn.converter.tflite.vectors import note_sum

_ARITHMETIC = {
    "ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "MAXIMUM": "Max", "MINIMUM": "Min",
    "POW": "Pow", "BITWISE_XOR": "BitwiseXor",
}  # fmt: skip
_FUSED = ("ADD", "SUB", "MUL", "DIV")
_COMPARISONS = {
    "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual", "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual", "EQUAL": "Equal", "NOT_EQUAL": "Equal",
    "LOGICAL_AND": "And", "LOGICAL_OR": "Or",
}  # fmt: skip
_UNARY = {
    "ABS": "Abs", "NEG": "Neg", "EXP": "Exp", "LOG": "Log", "SQRT": "Sqrt", "SIN": "Sin",
    "COS": "Cos", "FLOOR": "Floor", "CEIL": "Ceil", "ROUND": "Round", "SIGN": "Sign",
    "LOGISTIC": "Sigmoid", "TANH": "Tanh", "RELU": "Relu",
}  # fmt: skip


@reads(*_ARITHMETIC)
def arithmetic(op: LiteOp) -> None:
    """A function of two tensors that broadcast; some have a fused activation."""
    op.need(2)
    if op.type == "ADD":
        note_sum(op)
    made = op.make(_ARITHMETIC[op.type], op.real(0), op.real(1))
    op.give_active(made) if op.type in _FUSED else op.give(made)


@reads("ADD_N")
def sum_of_all(op: LiteOp) -> None:
    """Sum."""
    op.need(1)
    made, *others = op.reals()
    for other in others:
        made = op.make("Add", made, other)
    op.give(made)


@reads("SQUARED_DIFFERENCE")
def squared_difference(op: LiteOp) -> None:
    """The square of a difference."""
    op.need(2)
    difference = op.make("Sub", op.real(0), op.real(1))
    op.give(op.make("Mul", difference, difference))


@reads("FLOOR_DIV", "FLOOR_MOD")
def floored(op: LiteOp) -> None:
    """Quotient and remainder by the floor, of floats and of integers."""
    op.need(2)
    a, b = op.real(0), op.real(1)
    if op.type_of(a) != FLOAT:
        rest = op.make("Mod", a, b)
        op.give(rest if op.type == "FLOOR_MOD" else op.make("Div", op.make("Sub", a, rest), b))
        return
    quotient = op.make("Floor", op.make("Div", a, b))
    op.give(quotient if op.type == "FLOOR_DIV" else op.make("Sub", a, op.make("Mul", quotient, b)))


@reads(*_COMPARISONS)
def comparison(op: LiteOp) -> None:
    """A comparison of numbers, or a function of truth values."""
    op.need(2)
    found = op.make(_COMPARISONS[op.type], op.real(0), op.real(1), dtype=BOOL)
    op.give(op.make("Not", found) if op.type == "NOT_EQUAL" else found)


@reads("LOGICAL_NOT")
def negation(op: LiteOp) -> None:
    """Not."""
    op.need(1)
    op.give(op.make("Not", op.inputs[0]))


@reads(*_UNARY)
def unary(op: LiteOp) -> None:
    """A function of one tensor."""
    op.need(1)
    op.give(op.make(_UNARY[op.type], op.real(0)))


def _limited(op: LiteOp, x: str) -> str:
    return op.active(x, {"RELU6": "RELU6", "RELU_0_TO_1": "RELU_0_TO_1"}.get(op.type, op.type))


_COMPOSED: dict[str, Callable[[LiteOp, str], str]] = {
    "SQUARE": lambda op, x: op.make("Mul", x, x),
    "RSQRT": lambda op, x: op.make("Reciprocal", op.make("Sqrt", x)),
    "RELU6": _limited,
    "RELU_N1_TO_1": _limited,
    "RELU_0_TO_1": _limited,
    "ELU": lambda op, x: op.make("Elu", x),
    "HARD_SWISH": lambda op, x: op.make("HardSwish", x),
    "LEAKY_RELU": lambda op, x: op.make("LeakyRelu", x, alpha=op.number("alpha")),
    "GELU": lambda op, x: op.make(
        "Gelu", x, approximate="tanh" if op.flag("approximate") else "none"
    ),
    "SOFTMAX": lambda op, x: op.make("Softmax", _scaled(op, x), axis=-1),
    "LOG_SOFTMAX": lambda op, x: op.make("LogSoftmax", x, axis=-1),
}


def _scaled(op: LiteOp, x: str) -> str:
    beta = op.number("beta", 1.0)
    return x if beta == 1.0 else op.make("Mul", x, op.constant(beta, np.float32))


@reads(*_COMPOSED)
def composed(op: LiteOp) -> None:
    """A function of one tensor, with options or in several nodes."""
    op.need(1)
    op.give(_COMPOSED[op.type](op, op.real(0)))


@reads("PRELU")
def prelu(op: LiteOp) -> None:
    """PRelu; slopes broadcast with channels last."""
    op.need(2)
    op.give(op.make("PRelu", op.real(0), op.real(1)))


@reads("ATAN2")
def angle(op: LiteOp) -> None:
    """The angle of y and x, by the arc tangent of their quotient and the quadrant."""
    op.need(2)
    op.give(arc_tangent(op, op.real(0), op.real(1)))


@reads("CAST")
def cast(op: LiteOp) -> None:
    """Cast; values of quantised tensors are cast as they are."""
    op.need(1)
    tensor, result = op.tensors[0], op.results[0]
    if tensor is None or not tensor.dtype or not result.dtype:
        raise op.unreadable(f"a cast to {result.kind or 'a type of that number'}")
    name, to = op.inputs[0], result.dtype
    if op.type_of(name) == to:
        op.finish("Identity", name)
    else:
        op.finish("Cast", name, dtype=to, to=to)


@reads("BITCAST")
def bitcast(op: LiteOp) -> None:
    """BitCast: constants are converted; other tensors must keep their type."""
    op.need(1)
    found, to = op.value(0), op.results[0].dtype
    if op.type_of(op.inputs[0]) == to:
        op.finish("Identity", op.inputs[0])
        return
    shape = op.results[0].shape
    if found is None or None in shape:
        raise op.unreadable("other elements for the bits of a computed tensor")
    raw = np.frombuffer(found.tobytes(), NUMPY_TYPES[to])
    op.scope.set_constant(op.outputs[0], raw.reshape([one or 0 for one in shape]))


@reads("RIGHT_SHIFT")
def right_shift(op: LiteOp) -> None:
    """BitShift of unsigned integers; signed ones are divided by a power of two, rounding down."""
    op.need(2)
    a, b = op.inputs[:2]
    if op.type_of(a) in (TYPES["UINT8"], TYPES["UINT16"], TYPES["UINT32"]):
        op.finish("BitShift", a, b, direction="RIGHT")
        return
    wide, shift = op.cast(a, INT32), op.cast(b, INT32)
    power = op.make("Pow", op.constant(2, np.int32), shift)
    rest = op.make("Mod", wide, power)
    op.give(op.make("Div", op.make("Sub", wide, rest), power))


@reads("SELECT", "SELECT_V2")
def select(op: LiteOp) -> None:
    """Where; with SELECT, a vector of conditions selects rows."""
    op.need(3)
    condition = op.inputs[0]
    if op.type == "SELECT" and op.rank(0) == 1:
        rank = op.known_rank(1)
        if rank > 1:
            condition = op.make("Reshape", condition, op.constant([-1, *[1] * (rank - 1)]))
    by, to = op.quantization(1), op.result_quantization()
    if by is not None and by.same_as(op.quantization(2)) and by.same_as(to):
        op.finish("Where", condition, *op.inputs[1:3], dtype=op.type_of(op.inputs[1]))
        return
    a, b = op.real(1), op.real(2)
    op.give(op.make("Where", condition, a, b, dtype=op.type_of(a)))
