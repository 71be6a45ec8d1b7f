"""QuantizeLinear as it appears in a graph: a division by a scale, rounding, and a clamp."""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.converter.passes.base import binary_parts
from vkmnn.converter.passes.index import GraphIndex
from vkmnn.ir.graph import Op
from vkmnn.ir.ops import UnaryAttrs


@dataclass(frozen=True, slots=True)
class Rounding:
    """clip(rint(value / unit), low, high); `ops` are those before the last one."""

    value: str
    unit: float
    low: float
    high: float
    ops: tuple[Op, ...]


def rounding_of(op: Op, index: GraphIndex) -> Rounding | None:
    """Return the rounding that the op ends, if its intermediate results have no other reader.

    The last step is a CLIP, or if the value may be NaN: MIN(SELECT(x > low, x, low), high).
    """
    whole, low, high, ends = _cut_off(op, index)
    rounded = index.producer_of_type(whole, "UnaryOp")
    if rounded is None or rounded.attrs.kind != "ROUND" or low > high:
        return None
    steps = index.producer(rounded.inputs[0])
    divided = binary_parts(steps, "DIV")
    unit = index.scalar(divided[1]) if divided else None
    if divided is None or steps is None or unit is None:
        return None
    inside = (steps, rounded, *ends)
    if not index.same_shape(divided[0], op.outputs[0]):
        return None
    if not all(index.read_only_by(one.outputs[0], (*inside, op)) for one in inside):
        return None
    return Rounding(divided[0], unit, low, high, inside)


def _cut_off(op: Op, index: GraphIndex) -> tuple[str, float, float, tuple[Op, ...]]:
    """Return the clamped value, the bounds, and all clamping ops but the last; "" if none match."""
    none: tuple[str, float, float, tuple[Op, ...]] = ("", 0.0, 0.0, ())
    if isinstance(op.attrs, UnaryAttrs):
        clip = op.attrs.kind == "CLIP"
        return (op.inputs[0], op.attrs.alpha, op.attrs.beta, ()) if clip else none
    parts = binary_parts(op, "MIN")
    raised = index.producer_of_type(parts[0], "Select") if parts else None
    high = index.scalar(parts[1]) if parts else None
    if raised is None or high is None:
        return none
    condition, whole, lowest = raised.inputs
    above = index.producer(condition)
    low = index.scalar(lowest)
    compared = binary_parts(above, "GREATER")
    if above is None or low is None or compared is None or compared[0] != whole:
        return none
    return (whole, low, high, (above, raised)) if index.scalar(compared[1]) == low else none


def is_codes(name: str, index: GraphIndex) -> bool:
    """True for an op with whole numbers as results."""
    op = index.producer(name)
    if op is None:
        return False
    if op.type in ("QuantizedConvolution", "QuantizedMatMul"):
        return bool(op.attrs.scale == 1.0)
    if op.type in ("Interp", "LayerNorm", "Softmax", "Pooling"):
        return op.attrs.ending is not None and bool(op.attrs.ending.scale == 1.0)
    return rounding_of(op, index) is not None
