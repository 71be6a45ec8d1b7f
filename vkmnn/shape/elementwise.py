"""Shapes of operators that work element by element."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import Dim, DType, Op
from vkmnn.ir.ops import (
    BINARY_KINDS,
    BIT_KINDS,
    COMPARISON_KINDS,
    MAX_STEP_NUMBERS,
    MAX_STEPS,
    STEP_KINDS,
    UNARY_KINDS,
    BinaryAttrs,
    BitCastAttrs,
    CastAttrs,
    ElementwiseAttrs,
    StridedBinaryAttrs,
    UnaryAttrs,
)
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Values,
    broadcast_shapes,
    dtype_of,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer
from vkmnn.shape.symbolic.dims import DimAlgebra
from vkmnn.shape.symbolic.facts import Facts, Found, NamedShape
from vkmnn.shape.symbolic.rules import broadcast, like_first, same_values, shape_rule, value_rule

_BOOL_UNARY = ("NOT", "ISNAN", "ISINF")


shape_rule("Identity", "ConvertTensor", exact=True)(like_first)
value_rule("Identity")(same_values)


@shape_rule("UnaryOp", exact=True)
def _unary(op: Op[UnaryAttrs], facts: Facts) -> list[Found]:
    kind = op.attrs.kind
    if kind not in UNARY_KINDS:
        raise ShapeError(f"unary kind '{kind}' is unknown")
    return [(DType.BOOL if kind in _BOOL_UNARY else facts.dtype(op), facts.shape(op))]


@size_computer("BinaryOp")
def _binary(op: Op[BinaryAttrs], inputs: Infos, values: Values) -> Outputs:
    kind = op.attrs.kind
    if kind not in BINARY_KINDS:
        raise ShapeError(f"binary kind '{kind}' is unknown")
    # ONNX Pow is the one operator whose operands may differ in type; the base decides.
    dtype = dtype_of(inputs, 0) if kind == "POW" else same_dtype(inputs, 0, 1)
    if kind in BIT_KINDS and dtype.numpy.kind not in "iu":
        raise ShapeError(f"{kind} of {dtype.value}, not of integers")
    if isinstance(op.attrs, StridedBinaryAttrs):
        output = op.attrs.shape
    else:
        output = broadcast_shapes(shape_of(inputs, 0), shape_of(inputs, 1))
    return [(DType.BOOL if kind in COMPARISON_KINDS else dtype, output)]


@shape_rule("BinaryOp")
def _named_binary(op: Op[BinaryAttrs], facts: Facts) -> list[Found]:
    is_test = op.attrs.kind in COMPARISON_KINDS
    dtype = DType.BOOL if is_test else facts.dtype(op, 0, 1)
    return [(dtype, broadcast(facts, facts.shape(op), facts.shape(op, 1)))]


@value_rule("BinaryOp")
def _binary_values(op: Op[BinaryAttrs], facts: Facts) -> NamedShape | None:
    attrs = op.attrs
    a, b = facts.values(op, 0), facts.values(op, 1)
    if a is None or b is None or attrs.activation.kind != "NONE":
        return None
    pairs = _paired(a, b)
    if pairs is None:
        return None
    return tuple(_arithmetic(attrs.kind, first, second, facts.algebra) for first, second in pairs)


def _paired(*vectors: NamedShape) -> list[NamedShape] | None:
    """Return the elements of vectors side by side; those with one element repeat it."""
    if len({len(vector) for vector in vectors} - {1}) > 1:
        return None
    length = next((len(vector) for vector in vectors if len(vector) != 1), 1)
    repeated = (vector * length if len(vector) == 1 else vector for vector in vectors)
    return list(zip(*repeated, strict=True))


def _arithmetic(kind: str, a: Dim, b: Dim, algebra: DimAlgebra) -> Dim:
    if kind == "ADD":
        return algebra.add(a, b)
    if kind == "SUB":
        return algebra.subtract(a, b)
    if kind == "MUL":
        return algebra.multiply(a, b)
    if kind == "DIV":
        # Truncation and floor differ below zero.
        if not algebra.is_natural(a) or not algebra.is_natural(b):
            return None
        return algebra.floor_divide(a, b) if isinstance(b, int) else algebra.divide(a, b)
    if kind == "EQUAL":
        return _equal(a, b, algebra)
    if kind in ("MIN", "MAX") and isinstance(a, int) and isinstance(b, int):
        return min(a, b) if kind == "MIN" else max(a, b)
    return None


def _equal(a: Dim, b: Dim, algebra: DimAlgebra) -> Dim:
    """Return 1 if the values are equal for all sizes, 0 if they never are, else None."""
    if a is None or b is None:
        return None
    if a == b:
        return 1
    if isinstance(a, int) and isinstance(b, int):
        return 0
    number, name = (a, b) if isinstance(a, int) else (b, a)
    return 0 if isinstance(number, int) and number < 0 and algebra.is_natural(name) else None


@size_computer("Elementwise")
def _elementwise(op: Op[ElementwiseAttrs], inputs: Infos, values: Values) -> Outputs:
    attrs = op.attrs
    for number, step in enumerate(attrs.steps):
        if STEP_KINDS.get(step.kind) != len(step.values):
            raise ShapeError(f"no step '{step.kind}' takes {len(step.values)} values")
        if not all(-len(attrs.numbers) <= v < len(inputs) + number for v in step.values):
            raise ShapeError(f"step {number} reads a value that does not exist")
    fits = 0 < len(attrs.steps) <= MAX_STEPS and len(attrs.numbers) <= MAX_STEP_NUMBERS
    if not fits:
        raise ShapeError(f"{len(attrs.steps)} steps with {len(attrs.numbers)} numbers")
    dtype = same_dtype(inputs, *range(len(inputs)))
    return [(dtype, broadcast_shapes(*(shape_of(inputs, n) for n in range(len(inputs)))))]


@shape_rule("Elementwise")
def _named_elementwise(op: Op, facts: Facts) -> list[Found]:
    places = range(len(op.inputs))
    shape = broadcast(facts, *(facts.shape(op, place) for place in places))
    return [(facts.dtype(op, *places), shape)]


@size_computer("Select")
def _select(op: Op, inputs: Infos, values: Values) -> Outputs:
    output = broadcast_shapes(*(shape_of(inputs, index) for index in range(3)))
    return [(same_dtype(inputs, 1, 2), output)]


@shape_rule("Select")
def _named_select(op: Op, facts: Facts) -> list[Found]:
    shape = broadcast(facts, *(facts.shape(op, place) for place in range(3)))
    return [(facts.dtype(op, 1, 2), shape)]


@value_rule("Select")
def _select_values(op: Op, facts: Facts) -> NamedShape | None:
    test, first, second = (facts.values(op, place) for place in range(3))
    if test is None or first is None or second is None:
        return None
    rows = _paired(test, first, second)
    if rows is None:
        return None
    return tuple(
        (one if use else other) if isinstance(use, int) else None for use, one, other in rows
    )


@shape_rule("Cast", exact=True)
def _cast(op: Op[CastAttrs], facts: Facts) -> list[Found]:
    return [(op.attrs.to, facts.shape(op))]


@shape_rule("BitCast", exact=True)
def _bit_cast(op: Op[BitCastAttrs], facts: Facts) -> list[Found]:
    return [(op.attrs.to, facts.shape(op))]


@value_rule("Cast")
def _cast_values(op: Op[CastAttrs], facts: Facts) -> NamedShape | None:
    return facts.values(op, 0) if op.attrs.to.is_integer else None
