"""Quantised tensors between quantised operators.

q − zero_point is an integer, which float32 represents exactly; in this form, pads are zeros and
ReLU is a bound. The form of a model's tensor is recorded for the nodes that read it: under its own
name for integers, under `decoded` for results of DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.quantization import Quantization, QuantizedConstant
from vkmnn.ir import Array, DType, Op
from vkmnn.ir.ops import (
    BinaryAttrs,
    CastAttrs,
    CodeMean,
    InterpAttrs,
    PadAttrs,
    PoolingAttrs,
    ReductionAttrs,
    UnaryAttrs,
)

BYTES = (DType.UINT8, DType.INT8)

_WIDE = 1 << 16
"""Upper bound for additions to quantised values: convolutions count the range of their sums."""

MOVES = frozenset(
    {
        *("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Concat"),
        *("DepthToSpace", "SpaceToDepth", "Expand", "Tile", "Identity"),
        *("Gather", "GatherElements", "GatherND"),
    }
)
"""Ops that only move elements of their first input, or of all."""


@dataclass(frozen=True, slots=True)
class Coded:
    """A float32 tensor that holds q - `zero`, between `low` and `high`.

    `bounds`: the bounds that apply, if `low` and `high` are of quantised values with equally large
    sums. `point`: a tensor of one number, not constant, that was subtracted from numbers from 0 to
    255.
    """

    tensor: str
    zero: int
    low: int
    high: int
    bounds: tuple[float, float] | None = None
    point: str = ""

    @property
    def taken(self) -> tuple[float, float]:
        """The bounds that are known."""
        return self.bounds or (float(self.low), float(self.high))

    @property
    def largest(self) -> int:
        """The largest absolute value."""
        return max(-self.low, self.high)

    def reach(self, weights: Array, axes: int | tuple[int, ...]) -> Array:
        """Return the bound of any partial sum of products with weights, in either direction.

        Quantised values of one sign have sums half as large as their range suggests: positive and
        negative weights cancel in part.

        Args:
            weights: whole numbers; codes outside a tensor are zeros.
            axes: those of the sums.
        """
        wide = weights.astype(np.int64)
        above, below = np.maximum(wide, 0).sum(axes), -np.minimum(wide, 0).sum(axes)
        high, low = max(self.high, 0), max(-self.low, 0)
        reached: Array = np.maximum(above * high + below * low, above * low + below * high)
        return reached


@dataclass(frozen=True, slots=True)
class Decoded:
    """The output of a DequantizeLinear with one scale."""

    codes: Coded
    scale: np.float32


@dataclass(frozen=True, slots=True)
class Unit:
    """A scale and zero point for a whole tensor, and its quantised type."""

    scale: np.float32
    zero: int
    dtype: DType

    @property
    def bounds(self) -> tuple[int, int]:
        """The minimum and maximum of q − zero_point."""
        low, high = (int(limit) for limit in self.dtype.limits)
        return low - self.zero, high - self.zero

    def steps(self, value: float) -> float:
        """Return q − zero_point of a number that is not NaN."""
        return float(np.rint(np.float32(value) / self.scale))


def unit_of(node: NodeContext, scale: str, zero: str, dtype: DType) -> Unit | None:
    """Return scale and zero point where both are constant, single and ordinary."""
    factor, point = node.const_value(scale), node.const_value(zero) if zero else np.int8(0)
    if factor is None or point is None or factor.size != 1 or np.size(point) != 1:
        return None
    single = float(factor.reshape(()))
    if dtype not in BYTES or factor.dtype != np.float32 or not 0 < single < inf:
        return None
    return Unit(np.float32(single), int(np.reshape(point, ())), dtype)


def write_codes(node: NodeContext, tensor: str, unit: Unit, bounds: tuple[int, int]) -> None:
    """Write output 0 from q - zero_point, and record that for its readers."""
    zero = node.constant(np.float32(unit.zero))
    whole = node.emit("BinaryOp", [tensor, zero], BinaryAttrs("ADD")) if unit.zero else tensor
    node.finish("Cast", [whole], CastAttrs(unit.dtype))
    node.note(node.output(0), Coded(tensor, unit.zero, *bounds))


def read_codes(node: NodeContext, x: str, unit: Unit) -> Coded:
    """Return integers of the model as q - zero_point."""
    found = carried(
        node,
        x,
        lambda name: _noted_codes(node, name, unit.zero),
        lambda value: value - unit.zero,
    )
    if found is not None:
        return found
    wide = node.emit("Cast", [x], CastAttrs(DType.FLOAT32))
    if unit.zero:
        zero = node.constant(np.float32(unit.zero))
        wide = node.emit("BinaryOp", [wide, zero], BinaryAttrs("SUB"))
    coded = Coded(wide, unit.zero, *unit.bounds)
    node.note(x, coded)
    return coded


def _noted_codes(node: NodeContext, name: str, zero: int) -> Coded | None:
    found = node.noted(name)
    return found if isinstance(found, Coded) and found.zero == zero else None


def note_decoded(node: NodeContext, name: str, codes: Coded, scale: np.float32) -> None:
    """Record the quantised origin of a float tensor."""
    node.note(f"{name}:decoded", Decoded(codes, scale))


def decoded(node: NodeContext, name: str) -> Decoded | None:
    """Return the quantised origin of a float tensor."""
    found = node.noted(f"{name}:decoded")
    return found if isinstance(found, Decoded) else None


def note_floats(node: NodeContext, floats: str) -> None:
    """Record that output 0 is a cast of integers that came from floats."""
    node.note(f"{node.output(0)}:floats", floats)


def as_floats(node: NodeContext, name: str) -> str | None:
    """Return the floats that a cast of integers to float32 restores."""
    found = node.noted(f"{name}:floats")
    return found if isinstance(found, str) else None


def note_fixed(node: NodeContext, axis: int) -> None:
    """Keep the constants that a DequantizeLinear reads."""
    values, scale = node.const_value(node.input(0)), node.const_value(node.input(1))
    zero = node.const_value(node.input(2)) if node.input(2) else None
    known = values is not None and scale is not None and (zero is not None or not node.input(2))
    if known and values is not None and scale is not None and scale.dtype == np.float32:
        node.note(
            f"{node.output(0)}:fixed", QuantizedConstant(values, Quantization.of(scale, zero, axis))
        )


def fixed(node: NodeContext, name: str) -> QuantizedConstant | None:
    """Return the constants that a float tensor was dequantised from."""
    found = node.noted(f"{name}:fixed")
    return found if isinstance(found, QuantizedConstant) else None


def _is_move(op: Op | None) -> bool:
    """True for ops whose elements are those of their first input, or of all, or fill a pad."""
    if op is None or (len(op.outputs) != 1 and op.type != "Split"):
        return False
    attrs = op.attrs
    if isinstance(attrs, InterpAttrs):
        return attrs.mode == "nearest" and attrs.coordinate_mode != "tf_crop_and_resize"
    kept = isinstance(attrs, PoolingAttrs) and attrs.kind == "MAX"
    return kept or op.type in MOVES or isinstance(attrs, PadAttrs)


Leaf = Callable[[str], Coded | None]
Fill = Callable[[float], float | None]


def carried(node: NodeContext, name: str, leaf: Leaf, fill: Fill = lambda _: None) -> Coded | None:
    """Return the quantised tensor after the same data movement as since `leaf`.

    Args:
        node: the node that reads them.
        name: the tensor of the model.
        leaf: returns the quantised origin of a tensor that it knows.
        fill: returns the quantised value, minus the zero point, that a Pad adds; None if there is
            none.
    """
    found = leaf(name)
    op = node.maker(name)
    if found is not None or op is None or not _is_move(op):
        return found
    count = len(op.inputs) if op.type == "Concat" else 1
    parts: list[Coded] = []
    for source in op.inputs[:count]:
        part = carried(node, source, leaf, fill)
        if part is None:
            return None
        parts.append(part)
    inputs = [*(part.tensor for part in parts), *op.inputs[count:]]
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    if isinstance(op.attrs, PadAttrs) and op.attrs.mode == "constant":
        added = _added(node, op, fill)
        if added is None:
            return None
        low, high = min(low, int(added)), max(high, int(added))
        inputs[2:3] = [node.constant(np.float32(added))]
    outputs = [node.new(output) if output else "" for output in op.outputs]
    node.emit(op.type, inputs, op.attrs, outputs)
    moved = outputs[op.outputs.index(name)]
    if len(parts) > 1 or parts[0].bounds is None:
        bounds = min(part.taken[0] for part in parts), max(part.taken[1] for part in parts)
        return Coded(moved, parts[0].zero, low, high, (min(bounds[0], low), max(bounds[1], high)))
    return replace(parts[0], tensor=moved)


def _added(node: NodeContext, op: Op, fill: Fill) -> float | None:
    """Return the quantised padding value; None if it is computed, or not representable."""
    if len(op.inputs) < 3 or not op.inputs[2]:
        return fill(0.0)
    value = node.const_value(op.inputs[2])
    return None if value is None or value.size != 1 else fill(float(value.reshape(())))


def carried_in(node: NodeContext, name: str, scale: np.float32) -> Coded | None:
    """Return the quantised origin of a float tensor, through data movement."""

    def leaf(source: str) -> Coded | None:
        found = decoded(node, source)
        return found.codes if found is not None and found.scale == scale else None

    return carried(node, name, leaf, lambda value: _code_of(value, scale))


def _code_of(value: float, scale: np.float32) -> float | None:
    """Return the small quantised value that represents a number exactly."""
    if not abs(value) < _WIDE * float(scale):
        return None
    code = np.rint(np.float32(value) / scale)
    return float(code) if code * scale == np.float32(value) else None


def recoded(node: NodeContext, name: str, unit: Unit, bounds: tuple[int, int]) -> str | None:
    """Requantise the parts of a Concat to one scale; None if that is impossible.

    Each part is rounded where it was dequantised: its producer can then take over the rounding.
    """
    joins: list[str] = []
    whole: set[str] = set()

    def leaf(source: str) -> Coded | None:
        found = decoded(node, source)
        if found is not None:
            return _rounded_again(node, found, unit, bounds, whole)
        op = node.maker(source)
        if op is not None and op.type == "Concat":
            joins.append(source)
            whole.update(_cut_and_joined(node, op.inputs))
        return None

    made = carried(node, name, leaf)
    return made.tensor if made is not None and joins else None


def _cut_and_joined(node: NodeContext, parts: Sequence[str]) -> set[str]:
    """Return the quantised parts of a Split that a Concat joins, if it joins two or more."""
    cut: list[str] = []
    for part in set(parts):
        found = decoded(node, part)
        op = node.maker(found.codes.tensor) if found is not None else None
        cut.extend([op.inputs[0]] if op is not None and op.type == "Split" else [])
    return {codes for codes in cut if cut.count(codes) > 1}


def _rounded_again(
    node: NodeContext, found: Decoded, unit: Unit, bounds: tuple[int, int], whole: Collection[str]
) -> Coded:
    """Requantise a dequantised tensor to another scale.

    They are rounded before a Resize, which multiplies them, and before a Split of `whole`: one op
    for several parts.
    """

    def leaf(tensor: str) -> Coded | None:
        op = node.maker(tensor)
        if op is not None and isinstance(op.attrs, InterpAttrs):
            return None
        if op is not None and op.type == "Split" and op.inputs[0] in whole:
            return None
        if found.scale == unit.scale:
            codes = clip_codes(node, tensor, *bounds, (found.codes.low, found.codes.high))
        else:
            scaled = [tensor, node.constant(found.scale)]
            floats = node.emit("BinaryOp", scaled, BinaryAttrs("MUL"))
            codes = clip_codes(node, rounded(node, floats, unit), *bounds)
        return Coded(codes, unit.zero, *bounds)

    made = carried(node, found.codes.tensor, leaf)
    assert made is not None
    return made


def scale_of(node: NodeContext, name: str) -> np.float32 | None:
    """Return the quantisation scale of a float tensor's origin, through data movement."""
    found, op = decoded(node, name), node.maker(name)
    if found is not None:
        return found.scale
    return scale_of(node, op.inputs[0]) if op is not None and _is_move(op) else None


@dataclass(frozen=True, slots=True)
class Clamped:
    """A float tensor, and its bounds after clamps."""

    tensor: str
    low: float
    high: float

    def bounds(self, unit: Unit) -> tuple[int, int]:
        """Return the bounds of q - zero_point."""
        low, high = unit.bounds
        lower = max(low, min(unit.steps(self.low), high))
        return int(lower), int(max(lower, min(unit.steps(self.high), high)))


def behind_clamps(node: NodeContext, x: str) -> Clamped:
    """Return the tensor that ReLU and Clip with constant bounds clamp: rounding keeps order."""
    low, high = -inf, inf
    op = node.maker(x)
    while op is not None and isinstance(op.attrs, UnaryAttrs):
        if op.attrs.kind == "RELU":
            bounds = (0.0, inf)
        elif op.attrs.kind == "CLIP" and op.attrs.alpha <= op.attrs.beta:
            bounds = (op.attrs.alpha, op.attrs.beta)
        else:
            break
        # The later bound wins if the two are disjoint.
        low, high = (min(max(bound, low), high) for bound in bounds)
        x = op.inputs[0]
        op = node.maker(x)
    return Clamped(x, low, high)


_LARGE = 1e30
"""Constants below this are added to dequantised values without a check for infinity."""


def _is_number(node: NodeContext, x: str) -> bool:
    """True for dequantised values and constants, also quantised ones."""
    if decoded(node, x) is not None:
        return True
    constants = fixed(node, x)
    values = node.const_value(x)
    if constants is not None:
        values = np.asarray(constants.by.scale)
    if values is None or values.dtype != np.float32:
        return False
    return bool((np.abs(values) < _LARGE).all())


def is_finite(node: NodeContext, x: str) -> bool:
    """True for sums and products of dequantised values and constants: they are not NaN."""
    if decoded(node, x) is not None:
        return True
    op = node.maker(x)
    if op is None or not isinstance(op.attrs, BinaryAttrs) or op.attrs.kind not in ("ADD", "MUL"):
        return False
    return all(_is_number(node, name) for name in op.inputs)


def averaged(node: NodeContext, x: str, unit: Unit, bounds: tuple[int, int]) -> str | None:
    """Return quantised means, where x is a mean of dequantised values."""
    op = node.maker(x)
    if op is None or not isinstance(op.attrs, PoolingAttrs | ReductionAttrs):
        return None
    scale = scale_of(node, op.inputs[0]) if op.attrs.kind in ("AVERAGE", "MEAN") else None
    codes = None if scale is None else carried_in(node, op.inputs[0], scale)
    if codes is None or scale is None:
        return None
    low, high = (float(bound) for bound in bounds)
    ending = CodeMean(float(scale), float(unit.scale), low, high)
    if isinstance(op.attrs, PoolingAttrs):
        return node.emit("Pooling", [codes.tensor], replace(op.attrs, ending=ending))
    axes = _spatial_axes(node, op)
    if axes:
        pooled = PoolingAttrs("AVERAGE", is_global=True, ending=ending)
        means = node.emit("Pooling", [codes.tensor], pooled)
        squeezed = [means, node.ints_constant(axes)]
        return means if op.attrs.keepdims else node.emit("Squeeze", squeezed)
    means = node.emit("Reduction", [codes.tensor, *op.inputs[1:]], op.attrs)
    scaled = node.emit("BinaryOp", [means, node.constant(scale)], BinaryAttrs("MUL"))
    return clip_codes(node, rounded(node, scaled, unit), low, high)


def _spatial_axes(node: NodeContext, op: Op) -> tuple[int, ...]:
    """Return the reduced axes, if they are all but batch and channels."""
    axes = node.const_value(op.inputs[1]) if len(op.inputs) > 1 and op.inputs[1] else None
    rank = node.known_rank(op.inputs[0])
    if axes is None or rank is None:
        return ()
    spatial = tuple(range(2, rank))
    return spatial if {int(axis) % rank for axis in axes.reshape(-1)} == set(spatial) else ()


def rounded(node: NodeContext, x: str, unit: Unit) -> str:
    """Return floats in steps of a scale, rounded half to even."""
    steps = node.emit("BinaryOp", [x, node.constant(unit.scale)], BinaryAttrs("DIV"))
    return node.emit("UnaryOp", [steps], UnaryAttrs("ROUND"))


def clip_codes(
    node: NodeContext, tensor: str, low: float, high: float, have: Sequence[float] = (-inf, inf)
) -> str:
    """Clamp quantised values; returns the input where bounds have no effect."""
    if low <= have[0] and have[1] <= high:
        return tensor
    return node.emit("UnaryOp", [tensor], UnaryAttrs("CLIP", low, high))
