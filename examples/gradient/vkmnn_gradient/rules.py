"""Gradients of operators, for Gradient.

What depends on shapes, or needs a newer opset than the model may have, is a call of a function with
an opset of its own; such calls have rules as well, for second derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any

import onnx
from onnx import helper, parser

DOMAIN = "vkmnn.gradient"
"""Rules by operator."""

CONSTANT = frozenset(
    {
        *("And", "ArgMax", "ArgMin", "Ceil", "Constant", "ConstantOfShape", "Equal", "Floor"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "MeanShare", "NonZero", "Not"),
        *("Number", "OnesLike", "Or", "Round", "Shape", "Sign", "Size", "Step", "ZerosLike"),
    }
)
"""Operators through which no gradient passes: it is 0 wherever there is one."""

_FUNCTIONS = (
    (
        "OnesLike (x) => (y) { a = Constant<value_float = 1.0>() b = CastLike(a, x) s = Shape(x) "
        "y = Expand(b, s) }"
    ),
    (
        "ZerosLike (x) => (y) { a = Constant<value_float = 0.0>() b = CastLike(a, x) s = Shape(x) "
        "y = Expand(b, s) }"
    ),
    "Number <value> (x) => (y) { a = Constant<value_float: float = @value>() y = CastLike(a, x) }",
    (
        "Step (x) => (y) { a = Constant<value_float = 0.0>() b = CastLike(a, x) c = Greater(x, b) "
        "y = CastLike(c, x) }"
    ),
    "ExpandLike (g, x) => (y) { s = Shape(x) y = Expand(g, s) }",
    "ReshapeLike (g, x) => (y) { s = Shape(x) y = Reshape<allowzero = 1>(g, s) }",
    "CastTo (g, x) => (y) { y = CastLike(g, x) }",
    'Transposed (x) => (y) { y = Einsum<equation = "...ij->...ji">(x) }',
    "SumAlong (x, axes) => (y) { y = ReduceSum<keepdims = 1>(x, axes) }",
    (
        "MeanShare (y, x) => (z) { a = Size(y) b = Size(x) c = Cast<to = 1>(a) d = Cast<to = 1>(b) "
        "e = Div(c, d) z = CastLike(e, x) }"
    ),
    # The sum over the axes along which x was broadcast.
    (
        "SumLike (g, x) => (y) { sg = Shape(g) sx = Shape(x) ng = Size(sg) nx = Size(sx) "
        "d = Sub(ng, nx) one = Constant<value_ints = [1]>() n = Reshape(d, one) "
        "ones = ConstantOfShape<value = int64[1] {1}>(n) wide = Concat<axis = 0>(ones, sx) "
        "same = Equal(wide, sg) other = Not(same) places = NonZero(other) "
        "flat = Constant<value_ints = [-1]>() axes = Reshape(places, flat) "
        "sum = ReduceSum<keepdims = 1, noop_with_empty_axes = 1>(g, axes) "
        "y = Reshape<allowzero = 1>(sum, sx) }"
    ),
)


@functools.cache
def functions() -> tuple[onnx.FunctionProto, ...]:
    """Return the functions that the rules call."""
    head = f'<opset_import: ["": 18], domain: "{DOMAIN}"> '
    return tuple(parser.parse_function(head + text) for text in _FUNCTIONS)


class Tape:
    """Takes down nodes.

    Args:
        name: returns a name that nothing has.
        opset: of the nodes.

    Attributes:
        nodes: what was taken down, in order.
    """

    def __init__(self, name: Callable[[], str], opset: int) -> None:
        self._name = name
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []

    def node(self, kind: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its only output."""
        output = self._name()
        made = helper.make_node(kind, inputs, [output], output, domain=domain, **attributes)
        self.nodes.append(made)
        return output

    def call(self, function: str, *inputs: str) -> str:
        """Add a call of one of the functions."""
        return self.node(function, inputs, DOMAIN)

    def number(self, value: float, like: str) -> str:
        """Return a scalar of the type of another tensor."""
        return self.node("Number", [like], DOMAIN, value=float(value))

    def product(self, first: str, *others: str) -> str:
        """Return the product of tensors."""
        for other in others:
            first = self.node("Mul", [first, other])
        return first


Rule = Callable[[Tape, Any, str], Sequence[str]]
"""Returns gradients of inputs from the node and the gradient of its only output."""

RULES: dict[str, Rule] = {}


def rule_of(node: onnx.NodeProto, opset: int) -> Rule | None:
    """Return the rule for a node, if there is one."""
    if node.op_type == "Softmax" and opset < 13:  # until then, over all axes from one on
        return None
    return RULES.get(node.op_type)


def _rule(*kinds: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


@_rule("Identity", "Neg", "Sum", "Add", "Mean", "Sub")
def _linear(tape: Tape, node: Any, g: str) -> Sequence[str]:
    count = len(node.input)
    if node.op_type == "Mean":
        g = tape.product(g, tape.number(1 / count, g))
    signs = {"Neg": (-1,), "Sub": (1, -1)}.get(node.op_type, (1,) * count)
    if count == 1:
        return [tape.node("Neg", [g]) if signs[0] < 0 else g]
    parts = [tape.node("Neg", [g]) if sign < 0 else g for sign in signs]
    return [tape.call("SumLike", *pair) for pair in zip(parts, node.input, strict=True)]


@_rule("Mul", "Div", "Pow")
def _product(tape: Tape, node: Any, g: str) -> Sequence[str]:
    (a, b), y = node.input, node.output[0]
    if node.op_type == "Mul":
        parts = tape.product(g, b), tape.product(g, a)
    elif node.op_type == "Div":
        first = tape.node("Div", [g, b])
        parts = first, tape.node("Neg", [tape.product(first, y)])
    else:
        exponent = tape.call("CastTo", b, a)
        less = tape.node("Sub", [exponent, tape.number(1, a)])
        first = tape.product(g, exponent, tape.node("Pow", [a, less]))
        second = tape.call("CastTo", tape.product(g, y, tape.node("Log", [a])), b)
        parts = first, second
    return [tape.call("SumLike", part, x) for part, x in zip(parts, (a, b), strict=True)]


def _slope(tape: Tape, node: Any) -> str:
    """Return the derivative of a function of one variable, from its input or its output."""
    x, y, kind = node.input[0], node.output[0], node.op_type
    if kind in ("Exp", "Softplus", "Abs", "Log", "Relu", "Sin"):
        slopes = {
            "Abs": "Sign", "Exp": "Identity", "Log": "Reciprocal", "Sin": "Cos",
            "Softplus": "Sigmoid",
        }  # fmt: skip
        if kind == "Relu":
            return tape.call("Step", x)
        return tape.node(slopes[kind], [y if kind == "Exp" else x])
    if kind == "Cos":
        return tape.node("Neg", [tape.node("Sin", [x])])
    one = tape.number(1, x)
    if kind == "Sigmoid":
        return tape.product(y, tape.node("Sub", [one, y]))
    if kind == "Tanh":
        return tape.node("Sub", [one, tape.product(y, y)])
    if kind == "Sqrt":
        return tape.node("Div", [tape.number(0.5, x), y])
    if kind == "Reciprocal":
        return tape.node("Neg", [tape.product(y, y)])
    if kind == "Erf":
        bell = tape.node("Exp", [tape.node("Neg", [tape.product(x, x)])])
        return tape.product(bell, tape.number(2 / sqrt(pi), x))
    alpha = _attributes(node).get("alpha", 0.01)
    rise = tape.product(tape.call("Step", x), tape.number(1 - alpha, x))
    return tape.node("Add", [rise, tape.number(alpha, x)])


@_rule(
    *("Abs", "Cos", "Erf", "Exp", "LeakyRelu", "Log", "Reciprocal", "Relu", "Sigmoid", "Sin"),
    *("Softplus", "Sqrt", "Tanh"),
)
def _function(tape: Tape, node: Any, g: str) -> Sequence[str]:
    return [tape.product(g, _slope(tape, node))]


@_rule("MatMul")
def _matmul(tape: Tape, node: Any, g: str) -> Sequence[str]:
    a, b = node.input
    first = tape.node("MatMul", [g, tape.call("Transposed", b)])
    second = tape.node("MatMul", [tape.call("Transposed", a), g])
    return [tape.call("SumLike", first, a), tape.call("SumLike", second, b)]


@_rule("Gemm")
def _gemm(tape: Tape, node: Any, g: str) -> Sequence[str]:
    a, b = node.input[:2]
    said = _attributes(node)
    alpha, beta = said.get("alpha", 1.0), said.get("beta", 1.0)
    by_a, by_b = said.get("transA", 0), said.get("transB", 0)

    def gemm(left: str, right: str, left_turned: int, right_turned: int) -> str:
        both = [left, right]
        return tape.node("Gemm", both, alpha=alpha, transA=left_turned, transB=right_turned)

    parts = [
        gemm(b, g, by_b, 1) if by_a else gemm(g, b, 0, 1 - by_b),
        gemm(g, a, 1, by_a) if by_b else gemm(a, g, 1 - by_a, 0),
    ]
    if len(node.input) > 2 and node.input[2]:
        parts.append(tape.call("SumLike", tape.product(g, tape.number(beta, g)), node.input[2]))
    return parts


@_rule("Transpose")
def _transpose(tape: Tape, node: Any, g: str) -> Sequence[str]:
    perm = _attributes(node).get("perm")
    if perm is None:
        return [tape.node("Transpose", [g])]
    return [tape.node("Transpose", [g], perm=[perm.index(axis) for axis in range(len(perm))])]


@_rule("Flatten", "Reshape", "ReshapeLike", "Squeeze", "Unsqueeze")
def _reshape(tape: Tape, node: Any, g: str) -> Sequence[str]:
    return [tape.call("ReshapeLike", g, node.input[0])]


@_rule("ReduceMean", "ReduceSum")
def _reduce(tape: Tape, node: Any, g: str) -> Sequence[str]:
    said = {**_attributes(node), "keepdims": 1}
    kept = tape.call("ReshapeLike", g, tape.node(node.op_type, node.input, **said))
    wide = tape.call("ExpandLike", kept, node.input[0])
    if node.op_type == "ReduceSum":
        return [wide]
    return [tape.product(wide, tape.call("MeanShare", node.output[0], node.input[0]))]


@_rule("Softmax")
def _softmax(tape: Tape, node: Any, g: str) -> Sequence[str]:
    axis = tape.node("Constant", [], value_ints=[_attributes(node).get("axis", -1)])
    own = tape.product(g, node.output[0])
    total = tape.call("SumAlong", own, axis)
    return [tape.node("Sub", [own, tape.product(node.output[0], total)])]


@_rule("Where")
def _where(tape: Tape, node: Any, g: str) -> Sequence[str]:
    condition, a, b = node.input
    zero = tape.number(0, g)
    parts = (
        tape.node("Where", [condition, g, zero]),
        tape.node("Where", [condition, zero, g]),
    )
    return ["", *(tape.call("SumLike", part, x) for part, x in zip(parts, (a, b), strict=True))]


@_rule("Cast", "CastTo")
def _cast(tape: Tape, node: Any, g: str) -> Sequence[str]:
    return [tape.call("CastTo", g, node.input[0])]


@_rule("Expand", "ExpandLike")
def _expand(tape: Tape, node: Any, g: str) -> Sequence[str]:
    return [tape.call("SumLike", g, node.input[0])]


@_rule("SumAlong", "SumLike")
def _sum(tape: Tape, node: Any, g: str) -> Sequence[str]:
    return [tape.call("ExpandLike", g, node.input[0])]


@_rule("Transposed")
def _transposed(tape: Tape, node: Any, g: str) -> Sequence[str]:
    return [tape.call("Transposed", g)]
