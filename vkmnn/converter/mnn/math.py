"""Elementwise operations, reductions and normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.converter.mnn.nodes import MnnOp, enum_name, reads
from vkmnn.converter.mnn.weights import floats
from vkmnn.converter.nodes import BOOL, FLOAT, INT32, INT64
from vkmnn.errors import ModelError

_UNARY = {
    "ABS": "Abs", "NEG": "Neg", "FLOOR": "Floor", "CEIL": "Ceil", "SQRT": "Sqrt", "EXP": "Exp",
    "LOG": "Log", "SIN": "Sin", "COS": "Cos", "TAN": "Tan", "ASIN": "Asin", "ACOS": "Acos",
    "ATAN": "Atan", "RECIPROCAL": "Reciprocal", "ACOSH": "Acosh", "SINH": "Sinh",
    "ASINH": "Asinh", "ATANH": "Atanh", "SIGN": "Sign", "ROUND": "Round", "COSH": "Cosh",
    "ERF": "Erf", "SIGMOID": "Sigmoid", "TANH": "Tanh", "HARDSWISH": "HardSwish",
    "BNLL": "Softplus",
}  # fmt: skip
"""MNN's functions that ONNX has by another name."""


def _one(op: MnnOp) -> str:
    return op.constant(1, np.float32)


def _composed(op: MnnOp, kind: str) -> bool:
    """Write a function that needs several nodes; False for an unknown one."""
    x = op.inputs[0]
    if kind == "SQUARE":
        op.finish("Mul", x, x)
    elif kind == "RSQRT":
        op.finish("Reciprocal", op.make("Sqrt", x))
    elif kind == "LOG1P":
        op.finish("Log", op.make("Add", x, _one(op)))
    elif kind == "EXPM1":
        op.finish("Sub", op.make("Exp", x), _one(op))
    elif kind == "ERFC":
        op.finish("Sub", _one(op), op.make("Erf", x))
    elif kind in ("GELU", "GELU_STANDARD"):
        op.finish("Gelu", x)  # files have GELU, which MNN approximates, for the exact one
    elif kind == "SILU":
        op.finish("Mul", x, op.make("Sigmoid", x))
    else:
        return False
    return True


@reads("UnaryOp")
def unary(op: MnnOp) -> None:
    """A function of one tensor."""
    op.need(1)
    table = op.parameters("UnaryOp")
    kind = enum_name("UnaryOpOperation", table.integer("opType"))
    if kind in _UNARY:
        op.finish(_UNARY[kind], op.inputs[0])
    elif not _composed(op, kind):
        raise op.unreadable(f"the function {kind or table.integer('opType')}")


@reads("AbsVal", "Exp", "Log", "Sigmoid", "TanH", "Dropout", "Identity", "Copy", "Rank", "Size")
def plain(op: MnnOp) -> None:
    """Ops whose type alone determines a function of one tensor."""
    op.need(1)
    names = {"AbsVal": "Abs", "TanH": "Tanh", "Dropout": "Identity", "Copy": "Identity"}
    rank = op.rank(0) if op.type == "Rank" else None
    if rank is not None:
        op.scope.set_constant(op.outputs[0], np.array(rank, np.int32))
    elif op.type == "Rank":
        shape = op.make("Shape", op.inputs[0], dtype=INT64)
        op.finish_as(INT32, op.make("Size", shape, dtype=INT64))
    elif op.type == "Size":
        op.finish_as(INT32, op.make("Size", op.inputs[0], dtype=INT64))
    else:
        op.finish(names.get(op.type, op.type), op.inputs[0])


_BINARY = {
    "ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div", "REALDIV": "Div", "POW": "Pow",
    "MAX_TEMP": "Max", "MIN_TEMP": "Min", "MAXIMUM": "Max", "MINIMUM": "Min",
}  # fmt: skip
_COMPARISONS = {
    "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual", "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual", "EQUAL": "Equal", "NOTEQUAL": "Equal",
}  # fmt: skip
_LOGIC = {"LOGICALOR": "Or", "LOGICALXOR": "Xor"}
_BITS = {"BITWISE_AND": "BitwiseAnd", "BITWISE_OR": "BitwiseOr", "BITWISE_XOR": "BitwiseXor"}


@reads("BinaryOp")
def binary(op: MnnOp) -> None:
    """A function of two tensors; comparisons give 0 or 1 as integers."""
    op.need(2)
    table = op.parameters("BinaryOp")
    kind = enum_name("BinaryOpOperation", table.integer("opType"))
    a, b = op.inputs[:2]
    if kind in _COMPARISONS:
        found = op.make(_COMPARISONS[kind], a, b, dtype=BOOL)
        found = op.make("Not", found) if kind == "NOTEQUAL" else found
        op.finish("Cast", found, dtype=INT32, to=INT32)
    elif kind in _LOGIC:
        found = op.make(_LOGIC[kind], op.cast(a, BOOL), op.cast(b, BOOL), dtype=BOOL)
        op.finish("Cast", found, dtype=INT32, to=INT32)
    elif kind in _BITS:
        op.finish(_BITS[kind], a, b)
    else:
        result = _arithmetic(op, kind, a, b)
        op.finish_active(result, "RELU" if table.integer("activationType") == 1 else "NONE")


def _arithmetic(op: MnnOp, kind: str, a: str, b: str) -> str:
    whole = op.type_of(a) != FLOAT
    if kind in _BINARY:
        return op.make(_BINARY[kind], a, b)
    if kind == "SQUARED_DIFFERENCE":
        difference = op.make("Sub", a, b)
        return op.make("Mul", difference, difference)
    if kind in ("MOD", "FLOORMOD") and whole:
        return op.make("Mod", a, b)
    if kind == "MOD":
        return op.make("Mod", a, b, fmod=1)
    if kind in ("FLOORDIV", "FLOORMOD"):
        if whole:
            return op.make("Div", op.make("Sub", a, op.make("Mod", a, b)), b)
        floor = op.make("Floor", op.make("Div", a, b))
        return floor if kind == "FLOORDIV" else op.make("Sub", a, op.make("Mul", floor, b))
    raise op.unreadable(f"the function {kind or 'of that number'} of two tensors")


@reads("Eltwise")
def eltwise(op: MnnOp) -> None:
    """Sums, products and similar operations on any number of tensors."""
    op.need(1)
    table = op.parameters("Eltwise")
    kind = enum_name("EltwiseType", table.integer("type"))
    names = {"PROD": "Mul", "SUM": "Add", "MAXIMUM": "Max", "SUB": "Sub"}
    factors = table.vector("coeff").tolist()
    terms = list(op.inputs)
    if factors and kind == "SUM" and any(factor != 1 for factor in factors):
        if len(factors) != len(terms):
            raise ModelError("it does not have one factor for each input", op=op.type, node=op.name)
        terms = [
            op.make("Mul", term, op.constant(factor, np.float32))
            for term, factor in zip(terms, factors, strict=True)
        ]
    if kind not in names:
        raise op.unreadable("a function of that number")
    result = terms[0]
    for term in terms[1:]:
        result = op.make(names[kind], result, term)
    op.finish("Identity", result)


@reads("ReLU")
def relu(op: MnnOp) -> None:
    """Relu, or LeakyRelu with a slope."""
    op.need(1)
    slope = float(op.main.scalar("slope")) if op.main and op.main.kind == "Relu" else 0.0
    if slope:
        op.finish("LeakyRelu", op.inputs[0], alpha=slope)
    else:
        op.finish("Relu", op.inputs[0])


@reads("ReLU6")
def relu6(op: MnnOp) -> None:
    """Clip."""
    op.need(1)
    low, high = 0.0, 6.0
    if op.main is not None and op.main.kind == "Relu6":
        low, high = float(op.main.scalar("minValue")), float(op.main.scalar("maxValue"))
    op.finish("Clip", op.inputs[0], op.constant(low, np.float32), op.constant(high, np.float32))


@reads("PReLU")
def prelu(op: MnnOp) -> None:
    """PRelu with one slope, or one for each channel of pictures."""
    op.need(1)
    slopes = op.parameters("PRelu").vector("slope").astype(np.float32)
    shaped = slopes if slopes.size == 1 else slopes.reshape(-1, 1, 1)
    op.finish("PRelu", op.inputs[0], op.scope.constant(shaped, op.name))


@reads("ELU", "Selu")
def elu(op: MnnOp) -> None:
    """Elu and Selu."""
    op.need(1)
    if op.type == "ELU":
        op.finish("Elu", op.inputs[0], alpha=float(op.parameters("ELU").scalar("alpha")))
        return
    table = op.parameters("Selu")
    alpha, gamma = float(table.scalar("alpha")), float(table.scalar("scale"))
    op.finish("Selu", op.inputs[0], alpha=alpha, gamma=gamma)


@reads("Softmax")
def softmax(op: MnnOp) -> None:
    """Softmax along an axis."""
    op.need(1)
    op.finish("Softmax", op.inputs[0], axis=op.parameters("Axis").integer("axis"))


@reads("Select")
def select(op: MnnOp) -> None:
    """Where with a numeric condition."""
    op.need(3)
    condition = op.cast(op.inputs[0], BOOL)
    values = op.inputs[1:3]
    if len({op.type_of(name) for name in values}) > 1:
        values = [op.cast(name, FLOAT) for name in values]
    op.finish("Where", condition, *values, dtype=op.type_of(values[0]))


@reads("Cast")
def cast(op: MnnOp) -> None:
    """Cast; booleans are the integers 0 and 1."""
    from vkmnn.converter.mnn.nodes import TYPES

    op.need(1)
    kind = enum_name("DataType", op.parameters("CastParam").integer("dstT"))
    if kind not in TYPES:
        raise op.unreadable(f"a cast to {kind or 'a type of that number'}")
    given = op.cast(op.inputs[0], BOOL) if kind == "DT_BOOL" else op.inputs[0]
    op.finish("Cast", given, dtype=TYPES[kind], to=TYPES[kind])


_REDUCTIONS = {"SUM": "ReduceSum", "ASUM": "ReduceL1", "SUMSQ": "ReduceSumSquare",
               "MEAN": "ReduceMean", "MAXIMUM": "ReduceMax", "MINIMUM": "ReduceMin",
               "PROD": "ReduceProd", "ANY": "ReduceMax", "ALL": "ReduceMin"}  # fmt: skip


@reads("Reduction")
def reduction(op: MnnOp) -> None:
    """A reduction over the axes given by a parameter or the second input."""
    op.need(1)
    table = op.parameters("ReductionParam")
    kind = enum_name("ReductionType", table.integer("operation"))
    if kind not in _REDUCTIONS:
        raise op.unreadable("a reduction of that number")
    axes = table.integers("dim")
    more = [op.constant(axes)] if axes else []
    if not axes and len(op.inputs) > 1:
        more = [op.cast(op.inputs[1], INT64)]
    op.finish(_REDUCTIONS[kind], op.inputs[0], *more, keepdims=int(table.scalar("keepDims")))


@reads("ArgMax", "ArgMin")
def arg_extremum(op: MnnOp) -> None:
    """ArgMax and ArgMin, whose axis goes away."""
    op.need(1)
    table = op.parameters("ArgMax")
    if table.integer("outMaxVal") or table.integer("topK") > 1:
        raise op.unreadable("several positions, or their values too")
    axis = table.integer("axis")
    found = op.make(op.type, op.inputs[0], dtype=INT64, axis=axis, keepdims=0)
    op.finish_as(INT32, found)


@reads("LayerNorm")
def layer_norm(op: MnnOp) -> None:
    """Normalisation of the last axes, of groups of channels, or by the root mean square."""
    op.need(1)
    table = op.parameters("LayerNorm")
    axes, epsilon = table.integers("axis"), float(table.scalar("epsilon"))
    gamma, beta = floats(op, table, "gamma", 0), floats(op, table, "beta", 1)
    group = table.integer("group")
    if len(op.inputs) > 1 or len(op.outputs) > 1:
        raise op.unreadable("a normalisation with a sum before it")
    x = op.inputs[0]
    if group > 1:
        flat = op.make("Reshape", x, op.constant([0, group, -1]))
        normal = _normal(op, flat, 1, None, None, epsilon, bool(table.scalar("useRMSNorm")))
        shape = op.make("Shape", x, dtype=INT64)
        result = op.make("Reshape", normal, shape)
        if gamma.size or beta.size:
            raise op.unreadable("factors of groups")
        op.finish("Identity", result)
        return
    last = max(len(axes), 1)
    scale = _over(op, x, gamma, last) if gamma.size else None
    bias = _over(op, x, beta, last) if beta.size else None
    rms = bool(table.scalar("useRMSNorm"))
    op.finish("Identity", _normal(op, x, last, scale, bias, epsilon, rms))


def _over(op: MnnOp, x: str, values: np.ndarray, last: int) -> str:
    """Return factors in the shape of the last axes of a tensor."""
    name = op.scope.constant(values, op.name)
    if last == 1:
        return name
    shape = op.make("Shape", x, dtype=INT64, start=-last)
    return op.make("Reshape", name, shape)


def _normal(
    op: MnnOp, x: str, last: int, scale: str | None, bias: str | None, epsilon: float, rms: bool
) -> str:
    if rms:
        axes = op.constant(list(range(-last, 0)))
        mean = op.make("ReduceMean", op.make("Mul", x, x), axes, keepdims=1)
        root = op.make("Sqrt", op.make("Add", mean, op.constant(epsilon, np.float32)))
        result = op.make("Div", x, root)
        result = op.make("Mul", result, scale) if scale else result
        return op.make("Add", result, bias) if bias else result
    operands = [scale or op.constant([1.0], np.float32), *([bias] if bias else [])]
    return op.make("LayerNormalization", x, *operands, axis=-last, epsilon=epsilon)


@reads("LRN")
def lrn(op: MnnOp) -> None:
    """LRN across channels."""
    op.need(1)
    table = op.parameters("LRN")
    if table.integer("regionType"):
        raise op.unreadable("a normalisation within channels")
    names = ("alpha", "beta", "bias")
    options: dict[str, Any] = {name: float(table.scalar(name)) for name in names}
    op.finish("LRN", op.inputs[0], size=table.integer("localSize"), **options)


@reads("CumSum")
def cumsum(op: MnnOp) -> None:
    """CumSum along the axis that the second input has."""
    op.need(2)
    table = op.parameters("CumSum")
    options: dict[str, Any] = {name: int(table.scalar(name)) for name in ("exclusive", "reverse")}
    op.finish("CumSum", *op.inputs[:2], **options)
