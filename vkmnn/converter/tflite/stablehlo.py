"""StableHLO's operators in TFLite files, as far as they are ONNX's."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.nodes import BOOL
from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tflite.nodes import LiteOp, reads
from vkmnn.ir import Array

_PREFIX = "STABLEHLO_"
_DIRECT = {
    "ADD": "Add", "SUBTRACT": "Sub", "MULTIPLY": "Mul", "DIVIDE": "Div", "MAXIMUM": "Max",
    "MINIMUM": "Min", "POWER": "Pow", "ABS": "Abs", "NEGATE": "Neg", "EXPONENTIAL": "Exp",
    "LOG": "Log", "LOGISTIC": "Sigmoid", "TANH": "Tanh", "COSINE": "Cos", "FLOOR": "Floor",
}  # fmt: skip
_LOGIC = {"AND": ("And", "BitwiseAnd"), "OR": ("Or", "BitwiseOr")}
_COMPARISONS = ("Equal", "Equal", "GreaterOrEqual", "Greater", "LessOrEqual", "Less")
"""By StableHLO's number of the direction; the second is negated."""


@reads(*(f"{_PREFIX}{name}" for name in _DIRECT))
def direct(op: LiteOp) -> None:
    """A function of one tensor or of two of one shape."""
    op.need(1)
    op.give(op.make(_DIRECT[op.type.removeprefix(_PREFIX)], *op.reals()))


@reads("STABLEHLO_RSQRT", "STABLEHLO_REMAINDER", "STABLEHLO_CLAMP", "STABLEHLO_SELECT")
def composed(op: LiteOp) -> None:
    """Functions that are ONNX's in several nodes, or with their operands in another order."""
    kind = op.type.removeprefix(_PREFIX)
    op.need({"RSQRT": 1, "REMAINDER": 2}.get(kind, 3))
    if kind == "RSQRT":
        op.give(op.make("Reciprocal", op.make("Sqrt", op.real(0))))
    elif kind == "REMAINDER":
        op.give(op.make("Mod", op.real(0), op.real(1), fmod=1))
    elif kind == "CLAMP":
        low, x, high = op.reals()[:3]
        op.give(op.make("Min", op.make("Max", x, low), high))
    else:
        a, b = op.real(1), op.real(2)
        op.give(op.make("Where", op.inputs[0], a, b, dtype=op.type_of(a)))


@reads("STABLEHLO_AND", "STABLEHLO_OR")
def logic(op: LiteOp) -> None:
    """A function of truth values, or of the bits of integers."""
    op.need(2)
    truth, bits = _LOGIC[op.type.removeprefix(_PREFIX)]
    op.finish(truth if op.type_of(op.inputs[0]) == BOOL else bits, *op.inputs[:2])


@reads("STABLEHLO_COMPARE")
def compare(op: LiteOp) -> None:
    """A comparison in one of six directions."""
    op.need(2)
    direction = op.integer("comparison_direction")
    if not 0 <= direction < len(_COMPARISONS):
        raise op.damaged(f"it compares in direction {direction}")
    found = op.make(_COMPARISONS[direction], op.real(0), op.real(1), dtype=BOOL)
    op.give(op.make("Not", found) if direction == 1 else found)


@reads("STABLEHLO_CONVERT", "STABLEHLO_RESHAPE")
def convert(op: LiteOp) -> None:
    """Cast, and Reshape to the result's shape."""
    op.need(1)
    if op.type.endswith("CONVERT"):
        op.give(op.inputs[0])
        return
    shape = op.results[0].shape
    if shape.count(None) > 1:
        raise op.unreadable("a result with several dynamic sizes")
    sizes = op.constant([-1 if size is None else size for size in shape])
    op.pass_on(op.make("Reshape", op.inputs[0], sizes, allowzero=int(None not in shape)))


@reads("STABLEHLO_TRANSPOSE")
def transpose(op: LiteOp) -> None:
    """Transpose."""
    op.need(1)
    op.pass_on(op.make("Transpose", op.inputs[0], perm=op.listed("permutation")))


@reads("STABLEHLO_CONCATENATE")
def concatenate(op: LiteOp) -> None:
    """Concat."""
    op.need(1)
    op.give(op.make("Concat", *op.reals(), axis=op.integer("dimension")))


@reads("STABLEHLO_BROADCAST_IN_DIM")
def broadcast(op: LiteOp) -> None:
    """Expand a tensor whose axes become these axes of the result."""
    op.need(1)
    axes, shape = op.listed("broadcast_dimensions"), op.results[0].shape
    given = op.shape(0)
    if None in shape or given is None or None in given or len(given) != len(axes):
        raise op.unreadable("a broadcast of dynamic size")
    if axes != sorted(set(axes)) or any(not 0 <= axis < len(shape) for axis in axes):
        raise op.damaged(f"it broadcasts to the axes {axes[:8]}")
    sizes = dict(zip(axes, given, strict=True))
    placed = op.constant([sizes.get(axis, 1) for axis in range(len(shape))])
    made = op.make("Reshape", op.inputs[0], placed)
    op.pass_on(op.make("Expand", made, op.constant([size or 0 for size in shape])))


@reads("STABLEHLO_SLICE")
def cut(op: LiteOp) -> None:
    """Slice of all axes."""
    op.need(1)
    fields = ("start_indices", "limit_indices", "strides")
    starts, ends, steps = (op.listed(field) for field in fields)
    if len({len(starts), len(ends), len(steps)}) != 1 or min(steps, default=1) < 1:
        raise op.damaged("its starts, ends and steps do not fit")
    axes = op.constant(list(range(len(starts))))
    bounds = op.constant(starts), op.constant(ends), axes, op.constant(steps)
    op.pass_on(op.make("Slice", op.inputs[0], *bounds) if starts else op.inputs[0])


@reads("STABLEHLO_PAD")
def pad(op: LiteOp) -> None:
    """Pad by a value; negative pads cut."""
    op.need(2)
    low, high = op.listed("edge_padding_low"), op.listed("edge_padding_high")
    if any(op.listed("interior_padding")):
        raise op.unreadable("pads between elements")
    value = op.make("Reshape", op.inputs[1], op.constant([]))
    op.pass_on(op.make("Pad", op.inputs[0], op.constant([*low, *high]), value))


@reads("STABLEHLO_IOTA")
def iota(op: LiteOp) -> None:
    """Indexes along an axis, a constant."""
    op.need(0)
    shape, axis = op.results[0].shape, op.integer("iota_dimension")
    if None in shape or not 0 <= axis < len(shape) or op.results[0].dtype not in NUMPY_TYPES:
        raise op.unreadable("indexes of dynamic size")
    op.charge(8 * (shape[axis] or 0))
    line: Array = np.arange(shape[axis] or 0).astype(NUMPY_TYPES[op.results[0].dtype])
    line = line.reshape([-1 if one == axis else 1 for one in range(len(shape))])
    sizes = op.constant([size or 0 for size in shape])
    op.finish("Expand", op.scope.constant(line, op.name), sizes)


@reads("STABLEHLO_DYNAMIC_SLICE")
def dynamic_slice(op: LiteOp) -> None:
    """Slice of fixed sizes at a start that is clamped so that the slice is inside."""
    op.need(2)
    sizes, shape = op.listed("slice_sizes"), op.shape(0)
    if shape is None or None in shape or len(sizes) != len(shape) != len(op.inputs) - 1:
        raise op.unreadable("slices of dynamic size")
    starts = [op.make("Reshape", op.long(n + 1), op.constant([1])) for n in range(len(sizes))]
    limits = [max((size or 0) - one, 0) for size, one in zip(shape, sizes, strict=True)]
    start = op.make("Max", op.make("Concat", *starts, axis=0), op.constant([0]))
    start = op.make("Min", start, op.constant(limits))
    end = op.make("Add", start, op.constant(sizes))
    made = op.make("Slice", op.inputs[0], start, end)
    fixed = op.make("Reshape", made, op.constant(sizes), dtype=op.type_of(op.inputs[0]))
    op.pass_on(fixed)


@reads("STABLEHLO_DOT_GENERAL")
def product(op: LiteOp) -> None:
    """Einsum over the axes that are summed and those of batches."""
    op.need(2)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    a, b = ([""] * op.known_rank(number) for number in range(2))
    batches, summed = (
        list(zip(op.listed(f"lhs_{kind}"), op.listed(f"rhs_{kind}"), strict=True))
        for kind in ("batching_dimensions", "contracting_dimensions")
    )
    for left, right in (*batches, *summed):
        if not (0 <= left < len(a) and 0 <= right < len(b)):
            raise op.damaged("it multiplies axes that are not there")
        a[left] = b[right] = next(letters)
    for side in (a, b):
        side[:] = [one or next(letters) for one in side]
    gone = {a[left] for left, _ in summed}
    first = [a[left] for left, _ in batches]
    rest = [one for one in (*a, *b) if one not in gone and one not in first]
    equation = f"{''.join(a)},{''.join(b)}->{''.join((*first, *rest))}"
    op.give(op.make("Einsum", op.real(0), op.real(1), equation=equation))
