"""Shapes of operators that work element by element."""

from __future__ import annotations

from vkmnn.errors import ShapeError
from vkmnn.ir import DType, Op
from vkmnn.ir.ops import (
    BINARY_KINDS,
    COMPARISON_KINDS,
    MAX_STEP_NUMBERS,
    MAX_STEPS,
    STEP_KINDS,
    UNARY_KINDS,
    BinaryAttrs,
    CastAttrs,
    ElementwiseAttrs,
    UnaryAttrs,
)
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Values,
    attrs_of,
    broadcast_shapes,
    dtype_of,
    same_dtype,
    shape_of,
)
from vkmnn.shape.registry import size_computer

_BOOL_UNARY = ("NOT", "ISNAN", "ISINF")


@size_computer("Identity")
@size_computer("ConvertTensor")
def _same(op: Op, inputs: Infos, values: Values) -> Outputs:
    return [(dtype_of(inputs, 0), shape_of(inputs, 0))]


@size_computer("UnaryOp")
def _unary(op: Op, inputs: Infos, values: Values) -> Outputs:
    kind = attrs_of(op, UnaryAttrs).kind
    if kind not in UNARY_KINDS:
        raise ShapeError(f"unary kind '{kind}' is unknown")
    dtype = DType.BOOL if kind in _BOOL_UNARY else dtype_of(inputs, 0)
    return [(dtype, shape_of(inputs, 0))]


@size_computer("BinaryOp")
def _binary(op: Op, inputs: Infos, values: Values) -> Outputs:
    kind = attrs_of(op, BinaryAttrs).kind
    if kind not in BINARY_KINDS:
        raise ShapeError(f"binary kind '{kind}' is unknown")
    # ONNX Pow is the one operator whose operands may differ in type; the base decides.
    dtype = dtype_of(inputs, 0) if kind == "POW" else same_dtype(inputs, 0, 1)
    output = broadcast_shapes(shape_of(inputs, 0), shape_of(inputs, 1))
    return [(DType.BOOL if kind in COMPARISON_KINDS else dtype, output)]


@size_computer("Elementwise")
def _elementwise(op: Op, inputs: Infos, values: Values) -> Outputs:
    attrs = attrs_of(op, ElementwiseAttrs)
    for number, step in enumerate(attrs.steps):
        if STEP_KINDS.get(step.kind) != len(step.values):
            raise ShapeError(f"no step '{step.kind}' takes {len(step.values)} values")
        if not all(-len(attrs.numbers) <= v < len(inputs) + number for v in step.values):
            raise ShapeError(f"step {number} takes a value that is not there")
    fits = 0 < len(attrs.steps) <= MAX_STEPS and len(attrs.numbers) <= MAX_STEP_NUMBERS
    if not fits:
        raise ShapeError(f"{len(attrs.steps)} steps with {len(attrs.numbers)} numbers")
    dtype = same_dtype(inputs, *range(len(inputs)))
    return [(dtype, broadcast_shapes(*(shape_of(inputs, n) for n in range(len(inputs)))))]


@size_computer("Select")
def _select(op: Op, inputs: Infos, values: Values) -> Outputs:
    output = broadcast_shapes(*(shape_of(inputs, index) for index in range(3)))
    return [(same_dtype(inputs, 1, 2), output)]


@size_computer("Cast")
def _cast(op: Op, inputs: Infos, values: Values) -> Outputs:
    return [(attrs_of(op, CastAttrs).to, shape_of(inputs, 0))]
