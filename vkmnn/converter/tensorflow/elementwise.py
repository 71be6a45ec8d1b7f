"""Element by element, reductions, Softmax."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import BOOL, INT32, INT64
from vkmnn.converter.nodes.composed import arc_tangent
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tensorflow.nodes import TfNode, reads

_UNARY = {
    "Abs": "Abs", "Acos": "Acos", "Acosh": "Acosh", "Asin": "Asin", "Asinh": "Asinh",
    "Atan": "Atan", "Atanh": "Atanh", "Ceil": "Ceil", "Cos": "Cos", "Cosh": "Cosh", "Elu": "Elu",
    "Erf": "Erf", "Exp": "Exp", "Floor": "Floor", "Inv": "Reciprocal", "IsInf": "IsInf",
    "IsNan": "IsNaN", "Log": "Log", "LogicalNot": "Not", "Neg": "Neg",
    "Reciprocal": "Reciprocal", "Relu": "Relu", "Rint": "Round", "Round": "Round",
    "Selu": "Selu", "Sigmoid": "Sigmoid", "Sign": "Sign", "Sin": "Sin", "Sinh": "Sinh",
    "Softplus": "Softplus", "Softsign": "Softsign", "Sqrt": "Sqrt", "Tan": "Tan", "Tanh": "Tanh",
}  # fmt: skip
_SAME = ("Identity", "StopGradient", "PreventGradient", "CheckNumerics", "Snapshot", "EnsureShape")


@reads(*_UNARY)
def unary(op: TfNode) -> None:
    """A function of one tensor."""
    op.need(1)
    dtype = BOOL if op.type in ("IsInf", "IsNan") else None
    op.finish(_UNARY[op.type], op.inputs[0], dtype=dtype)


@reads(*_SAME)
def same(op: TfNode) -> None:
    """The tensor itself."""
    op.need(1)
    op.alias(op.inputs[0], op.outputs[0])


@reads("IdentityN")
def several(op: TfNode) -> None:
    """The tensors themselves."""
    for name, output in zip(op.inputs, op.outputs, strict=False):
        op.alias(name, output)


def _number(op: TfNode, value: float) -> str:
    return op.constant(value, NUMPY_TYPES[op.type_of(op.inputs[0])])


@reads("Square", "Rsqrt", "Log1p", "Expm1", "Relu6", "LeakyRelu", "Erfc", "OnesLike", "ZerosLike")
def composed(op: TfNode) -> None:
    """Functions of one tensor that need several nodes, or constants."""
    op.need(1)
    x = op.inputs[0]
    if op.type == "Square":
        op.finish("Mul", x, x)
    elif op.type == "Rsqrt":
        op.finish("Reciprocal", op.make("Sqrt", x))
    elif op.type == "Log1p":
        op.finish("Log", op.make("Add", x, _number(op, 1)))
    elif op.type == "Expm1":
        op.finish("Sub", op.make("Exp", x), _number(op, 1))
    elif op.type == "Erfc":
        op.finish("Sub", _number(op, 1), op.make("Erf", x))
    elif op.type == "Relu6":
        op.finish("Clip", x, _number(op, 0), _number(op, 6))
    elif op.type == "LeakyRelu":
        op.finish("LeakyRelu", x, alpha=op.real("alpha", 0.2))
    else:
        value = _number(op, int(op.type == "OnesLike"))
        op.finish("Expand", value, op.make("Shape", x, dtype=INT64))


_BINARY = {
    "Add": "Add", "AddV2": "Add", "Sub": "Sub", "Mul": "Mul", "RealDiv": "Div", "Pow": "Pow",
    "Maximum": "Max", "Minimum": "Min", "TruncateDiv": "Div", "LogicalAnd": "And",
    "LogicalOr": "Or",
}  # fmt: skip
_COMPARISONS = {
    "Equal": "Equal", "NotEqual": "Equal", "Greater": "Greater", "GreaterEqual": "GreaterOrEqual",
    "Less": "Less", "LessEqual": "LessOrEqual",
}  # fmt: skip


@reads(*_BINARY)
def binary(op: TfNode) -> None:
    """A function of two tensors."""
    op.need(2)
    op.finish(_BINARY[op.type], *op.inputs[:2])


@reads(*_COMPARISONS)
def comparison(op: TfNode) -> None:
    """A comparison."""
    op.need(2)
    found = op.make(_COMPARISONS[op.type], *op.inputs[:2], dtype=BOOL)
    op.finish("Not" if op.type == "NotEqual" else "Identity", found)


@reads("Div", "FloorDiv", "FloorMod", "Mod", "SquaredDifference", "DivNoNan")
def arithmetic(op: TfNode) -> None:
    """Functions of two tensors that need several nodes."""
    op.need(2)
    a, b = op.inputs[:2]
    whole = NUMPY_TYPES[op.type_of(a)].kind in "iu"
    if op.type == "SquaredDifference":
        difference = op.make("Sub", a, b)
        op.finish("Mul", difference, difference)
    elif op.type == "Div":
        op.finish("Div", a, b)
    elif op.type == "DivNoNan":
        nothing = op.make("Equal", b, _number(op, 0), dtype=BOOL)
        safe = op.make("Where", nothing, _number(op, 1), b, dtype=op.type_of(a))
        op.finish("Where", nothing, _number(op, 0), op.make("Div", a, safe), dtype=op.type_of(a))
    elif whole and op.type == "FloorDiv":
        op.finish("Div", op.make("Sub", a, op.make("Mod", a, b)), b)
    elif whole:
        op.finish("Mod", a, b)
    else:
        floor = op.make("Floor", op.make("Div", a, b))
        if op.type == "FloorDiv":
            op.finish("Identity", floor)
        else:
            op.finish("Sub", a, op.make("Mul", floor, b))


@reads("TruncateMod", "MulNoNan", "Xdivy", "Xlogy", "Xlog1py", "Atan2", "IsFinite")
def careful(op: TfNode) -> None:
    """Functions of two tensors that are zero where one of them is; remainders, and angles."""
    op.need(1 if op.type == "IsFinite" else 2)
    a, kind = op.inputs[0], op.type_of(op.inputs[0])
    if op.type == "IsFinite":
        wrong = [op.make(one, a, dtype=BOOL) for one in ("IsInf", "IsNaN")]
        op.finish("Not", op.make("Or", *wrong, dtype=BOOL), dtype=BOOL)
        return
    b = op.inputs[1]
    if op.type == "TruncateMod":
        op.finish("Mod", a, b, fmod=1)
    elif op.type == "Atan2":
        op.finish("Identity", arc_tangent(op, a, b))
    else:
        key = b if op.type == "MulNoNan" else a
        nothing = op.make("Equal", key, _number(op, 0), dtype=BOOL)
        safe = op.make("Where", nothing, _number(op, 1), b, dtype=kind)
        if op.type == "Xlog1py":
            safe = op.make("Add", safe, _number(op, 1))
        other = op.make("Log", safe) if "log" in op.type else safe
        made = op.make("Div" if op.type == "Xdivy" else "Mul", a, other)
        op.finish("Where", nothing, _number(op, 0), made, dtype=kind)


_BITS = {"BitwiseAnd": "BitwiseAnd", "BitwiseOr": "BitwiseOr", "BitwiseXor": "BitwiseXor"}


@reads(*_BITS, "Invert", "LeftShift", "RightShift")
def bits(op: TfNode) -> None:
    """Functions of the bits of integers; shifts of signed ones are by powers of two."""
    if op.type == "Invert":
        op.need(1)
        op.finish("BitwiseNot", op.inputs[0])
        return
    op.need(2)
    a, b = op.inputs[:2]
    if op.type in _BITS:
        op.finish(_BITS[op.type], a, b)
    elif NUMPY_TYPES[op.type_of(a)].kind == "u":
        op.finish("BitShift", a, b, direction="LEFT" if op.type == "LeftShift" else "RIGHT")
    else:
        power = op.make("Pow", _number(op, 2), b)
        if op.type == "LeftShift":
            op.finish("Mul", a, power)
        else:
            op.finish("Div", op.make("Sub", a, op.make("Mod", a, power)), power)


@reads("AddN")
def add_all(op: TfNode) -> None:
    """Sum of any number of tensors."""
    op.need(1)
    op.finish("Sum", *op.inputs)


@reads("ClipByValue")
def clip(op: TfNode) -> None:
    """Clip; the limits may be tensors."""
    op.need(3)
    op.finish("Min", op.make("Max", op.inputs[0], op.inputs[1]), op.inputs[2])


@reads("Cast")
def cast(op: TfNode) -> None:
    """Cast."""
    op.need(1)
    dtype = op.dtype("DstT")
    op.finish("Cast", op.inputs[0], dtype=dtype, to=dtype)


@reads("SelectV2", "Select")
def select(op: TfNode) -> None:
    """Where; in the older operator a 1-D condition selects rows."""
    op.need(3)
    condition, yes, no = op.inputs[:3]
    if op.type == "Select" and op.known_rank() == 1 and op.known_rank(1) > 1:
        shape = op.constant([-1, *[1] * (op.known_rank(1) - 1)])
        condition = op.make("Reshape", condition, shape, dtype=BOOL)
    op.finish("Where", condition, yes, no, dtype=op.type_of(yes))


_REDUCTIONS = {
    "Sum": "ReduceSum", "Mean": "ReduceMean", "Max": "ReduceMax", "Min": "ReduceMin",
    "Prod": "ReduceProd", "All": "ReduceMin", "Any": "ReduceMax", "EuclideanNorm": "ReduceL2",
}  # fmt: skip


@reads(*_REDUCTIONS)
def reduction(op: TfNode) -> None:
    """A reduction over axes that are an input."""
    op.need(2)
    axes, x = op.settled(1, "axes"), op.inputs[0]
    rank = op.known_rank()
    axes = [op.axis(axis, rank) for axis in axes]
    logical = op.type in ("All", "Any")
    if not axes and op.type == "EuclideanNorm":
        op.finish("Abs", x)
        return
    if not axes:
        op.alias(x, op.outputs[0])
        return
    x = op.cast(x, INT32) if logical else x
    keep = int(op.flag("keep_dims", op.flag("keepdims")))
    found = op.make(_REDUCTIONS[op.type], x, op.constant(axes), keepdims=keep)
    op.finish_as(BOOL, found) if logical else op.finish("Identity", found)


@reads("Softmax", "LogSoftmax")
def softmax(op: TfNode) -> None:
    """Softmax along the last axis."""
    op.need(1)
    op.finish(op.type, op.inputs[0], axis=-1)


@reads("ArgMax", "ArgMin")
def argmax(op: TfNode) -> None:
    """Places of the largest or smallest elements."""
    op.need(2)
    (axis,) = op.settled(1, "an axis")[:1] or [0]
    found = op.make(op.type, op.inputs[0], axis=op.axis(axis, op.known_rank()), keepdims=0)
    op.scope.types[found] = INT64
    op.finish_as(op.dtype("output_type") if "output_type" in op.attrs else INT64, found)


@reads("Cumsum")
def cumulative(op: TfNode) -> None:
    """CumSum."""
    op.need(2)
    (axis,) = op.settled(1, "an axis")[:1] or [0]
    along = op.scope.constant(np.array(axis), op.name)
    exclusive, reverse = int(op.flag("exclusive")), int(op.flag("reverse"))
    op.finish("CumSum", op.inputs[0], along, exclusive=exclusive, reverse=reverse)


@reads("L2Loss")
def half_of_squares(op: TfNode) -> None:
    """Half the sum of squares."""
    op.need(1)
    total = op.make("ReduceSumSquare", op.inputs[0], keepdims=0)
    op.finish("Mul", total, _number(op, 0.5))
