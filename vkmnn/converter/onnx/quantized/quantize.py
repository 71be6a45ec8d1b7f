"""Linear quantization, written out in floating point and 32-bit integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.quantized.coded import (
    Unit,
    averaged,
    behind_clamps,
    carried_in,
    clip_codes,
    is_finite,
    note_decoded,
    note_fixed,
    read_codes,
    recoded,
    rounded,
    unit_of,
    write_codes,
)
from vkmnn.converter.onnx.quantized.quantized_conv import requantized_conv
from vkmnn.converter.onnx.quantized.quantized_matmul import requantized_product
from vkmnn.converter.onnx.quantized.weights import note_dequantized
from vkmnn.converter.onnx.registry import converter
from vkmnn.converter.onnx.types import DTYPES, type_name
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    CastAttrs,
    ReshapeAttrs,
    ShapeAttrs,
    UnaryAttrs,
)

_MICROSOFT = "com.microsoft"
_F32 = DType.FLOAT32


def cast(node: NodeContext, name: str, to: DType) -> str:
    """Cast a tensor of the model unless it already has the type, or was cast from it."""
    if node.dtype(name) == to:
        return name
    made_from = node.noted(f"{name}:whole") if to is _F32 else None
    return made_from if isinstance(made_from, str) else node.emit("Cast", [name], CastAttrs(to))


def binary(node: NodeContext, kind: str, a: str, b: str) -> str:
    """Add a BinaryOp and return its result."""
    return node.emit("BinaryOp", [a, b], BinaryAttrs(kind))


def _factors(node: NodeContext, x: str, name: str, to: DType) -> str:
    """Cast scales or zero points and broadcast them to x.

    There is one for the whole of x, one for each index of the axis, or one for each block of
    `block_size` indices.
    """
    factors = cast(node, name, to)
    shape = node.shape(name)
    if not shape or shape == (1,):
        return factors
    rank = node.rank(x)
    axis = node.axis("axis", 1, rank)
    block = node.int("block_size", 0)
    if not block:
        return _reshape_to_axis(node, factors, rank, axis)
    extent = node.emit("Shape", [x], ShapeAttrs(axis, axis + 1))
    extent = node.emit("Squeeze", [extent, node.ints_constant([0])])
    zero, one = node.constant(np.int64(0)), node.constant(np.int64(1))
    indices = node.emit("Range", [zero, extent, one])
    blocks = binary(node, "DIV", indices, node.constant(np.int64(block)))
    return node.emit("Gather", [factors, blocks], AxisAttrs(axis))


def _reshape_to_axis(node: NodeContext, vector: str, rank: int, axis: int) -> str:
    """Append axes of size 1 to a vector so that it broadcasts along `axis`."""
    if axis == rank - 1:
        return vector
    shape = node.ints_constant([-1, *(1,) * (rank - axis - 1)])
    return node.emit("Reshape", [vector, shape], ReshapeAttrs())


def along(node: NodeContext, name: str, x: str, axis: int, to: DType) -> str:
    """Cast a scalar or a vector along `axis` of x and broadcast it to x.

    A tensor of x's own rank broadcasts already.
    """
    wide = cast(node, name, to)
    if len(node.shape(name)) != 1 or node.shape(name) == (1,):
        return wide
    rank = node.rank(x)
    return _reshape_to_axis(node, wide, rank, axis % rank)


def _wanted_dtype(node: NodeContext, attribute: str, default: DType) -> DType:
    code = node.int(attribute, 0)
    if not code:
        return default
    dtype = DTYPES.get(code)
    if dtype is None:
        raise node.unsupported(f"{attribute} {type_name(code)} is not supported")
    return dtype


def dequantized(node: NodeContext, x: str, scale: str, zero: str) -> str:
    """Return (x − zero) · scale in float32; scale and zero are float32 and broadcast to x."""
    wide = cast(node, x, _F32)
    if zero:
        wide = binary(node, "SUB", wide, zero)
    return binary(node, "MUL", wide, scale)


def quantize(node: NodeContext, steps: str, zero: str, to: DType) -> None:
    """Write saturate(round(steps) + zero), all of it float32 until the end.

    NaN becomes the lower limit, as in onnxruntime: calibrated transformers have softmax rows of
    only -inf, and rely on the runtime's result.
    """
    if to.is_narrow and to.is_float:
        if zero and to is DType.FLOAT4E2M1:
            steps = binary(node, "ADD", steps, zero)
        node.finish("Cast", [steps], CastAttrs(to, node.bool("saturate", True)))
        return
    if not to.is_integer:
        raise node.unsupported(f"quantizing to {to.value} is not supported")
    whole = whole_codes(node, steps, zero, to)
    node.finish("Cast", [whole], CastAttrs(to))
    node.note(f"{node.output(0)}:whole", whole)


def whole_codes(node: NodeContext, steps: str, zero: str, to: DType) -> str:
    """Return saturate(round(steps) + zero) in float32; NaN becomes the lower limit."""
    whole = node.emit("UnaryOp", [steps], UnaryAttrs("ROUND"))
    if zero:
        whole = binary(node, "ADD", whole, zero)
    return _between(node, whole, *to.limits)


@converter("QuantizeLinear", since=10)
@converter("QuantizeLinear", domain=_MICROSOFT)
def _quantize_linear(node: NodeContext) -> None:
    x, scale, zero = node.input(0), node.input(1), node.input(2)
    to = node.dtype(zero) if zero else _wanted_dtype(node, "output_dtype", DType.UINT8)
    unit = unit_of(node, scale, zero, to)
    if unit and node.dtype(x) is _F32 and _wanted_dtype(node, "precision", _F32) is _F32:
        quantize_to_codes(node, x, unit)
        return
    # The division has its own precision; the remaining steps are exact in float32 up to 16 bits.
    precision = _wanted_dtype(node, "precision", node.dtype(scale))
    steps = binary(node, "DIV", cast(node, x, precision), _factors(node, x, scale, precision))
    if precision is not _F32:
        steps = node.emit("Cast", [steps], CastAttrs(_F32))
    quantize(node, steps, _factors(node, x, zero, _F32) if zero else "", to)


def decode_to(node: NodeContext, x: str, unit: Unit, outputs: Sequence[str] | None = None) -> str:
    """Return integers of the model as floats, written to `outputs` where given."""
    codes = read_codes(node, x, unit)
    factors = [codes.tensor, node.constant(unit.scale)]
    made = node.emit("BinaryOp", factors, BinaryAttrs("MUL"), outputs)
    note_decoded(node, made, codes, unit.scale)
    return made


def decode(node: NodeContext, x: str, scale: str, zero: str) -> str:
    """Return integers of the model as floats, by one scale; `zero` may be absent."""
    unit = unit_of(node, scale, zero, node.dtype(x))
    if unit is not None and node.const_value(x) is None:
        return decode_to(node, x, unit)
    return dequantized(node, x, scale, cast(node, zero, _F32) if zero else "")


def quantize_to(node: NodeContext, x: str, scale: str, zero: str, to: DType) -> None:
    """Quantise a float32 tensor to output 0 with one scale; requantise where possible."""
    unit = unit_of(node, scale, zero, to)
    if unit is not None:
        quantize_to_codes(node, x, unit)
        return
    steps = binary(node, "DIV", x, scale)
    quantize(node, steps, cast(node, zero, _F32) if zero else "", to)


def quantize_to_codes(node: NodeContext, x: str, unit: Unit) -> None:
    """Write quantised values: of a quantised operator if possible, else of its floats."""
    found = behind_clamps(node, x)
    bounds = found.bounds(unit)
    made = carried_in(node, found.tensor, unit.scale)
    if made is not None:
        tensor = clip_codes(node, made.tensor, *bounds, (made.low, made.high))
        write_codes(node, tensor, unit, bounds)
        return
    codes = _from_codes(node, found.tensor, unit, bounds)
    if codes is not None:
        write_codes(node, codes, unit, bounds)
        return
    low, high = unit.bounds
    whole = _between(node, rounded(node, x, unit), low, high)
    write_codes(node, whole, unit, (low, high))


def _from_codes(node: NodeContext, x: str, unit: Unit, bounds: tuple[int, int]) -> str | None:
    """Return the quantised result of a quantised operator."""
    op = node.maker(x)
    codes = requantized_product(node, x, unit, bounds)
    if codes is None and op is not None and op.type == "Convolution":
        codes = requantized_conv(node, op, unit, bounds)
    if codes is None:
        codes = averaged(node, x, unit, bounds)
    if codes is None:
        codes = recoded(node, x, unit, bounds)
    if codes is None and is_finite(node, x):
        codes = clip_codes(node, rounded(node, x, unit), *bounds)
    return codes


def _between(node: NodeContext, x: str, lowest: float, highest: float) -> str:
    """Return x between limits; NaN becomes the lower one."""
    low = node.constant(lowest, _F32)
    # A comparison that NaN fails, in steps that are fused with the preceding ones.
    above = binary(node, "GREATER", x, low)
    raised = node.emit("Select", [above, x, low])
    return binary(node, "MIN", raised, node.constant(highest, _F32))


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Dynamic quantisation of a tensor: x in steps, scale, zero point.

    All three are float32 tensors; quantised values are round(steps) + zero point, from 0 to 255.
    """

    steps: str
    scale: str
    point: str


def dynamic(node: NodeContext, x: str) -> Dynamic:
    """Return how x is dynamically quantised, by its own range."""
    scale, point = node.new("scale"), node.new("point")
    node.emit("DynamicRange", [x], None, [scale, point])
    return Dynamic(binary(node, "DIV", x, scale), scale, point)


@converter("DynamicQuantizeLinear", since=11)
def _dynamic_quantize_linear(node: NodeContext) -> None:
    found = dynamic(node, node.input(0))
    quantize(node, found.steps, found.point, DType.UINT8)
    if node.output(1):
        node.emit("Identity", [found.scale], None, [node.output(1)])
    if node.output(2):
        node.emit("Cast", [found.point], CastAttrs(DType.UINT8), [node.output(2)])
        node.note(f"{node.output(0)}:dynamic", (node.output(2), found))


def dynamic_of(node: NodeContext, codes: str, zero: str) -> Dynamic | None:
    """Return the dynamic quantisation that `zero` belongs to."""
    found = node.noted(f"{codes}:dynamic")
    if isinstance(found, tuple) and found[0] == zero and isinstance(found[1], Dynamic):
        return found[1]
    return None


@converter("DequantizeLinear", since=10)
@converter("DequantizeLinear", domain=_MICROSOFT)
def _dequantize_linear(node: NodeContext) -> None:
    x, scale, zero = node.input(0), node.input(1), node.input(2)
    to = _wanted_dtype(node, "output_dtype", node.dtype(scale))
    unit = unit_of(node, scale, zero, node.dtype(x))
    if unit and to is _F32 and node.const_value(x) is None:
        decode_to(node, x, unit, node.outputs[:1])
        return
    offset = _factors(node, x, zero, _F32) if zero else ""
    result = dequantized(node, x, _factors(node, x, scale, _F32), offset)
    node.finish("Cast", [result], CastAttrs(to))
    rank = node.known_rank(x)
    if rank is not None and not node.int("block_size", 0):
        note_fixed(node, node.axis("axis", 1, rank) if rank > 1 else 0)
    if rank == 2:
        note_dequantized(node, node.axis("axis", 1, 2), node.int("block_size", 0), to)
