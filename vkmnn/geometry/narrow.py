"""Integer arithmetic in types narrower than a device word.

Kernels compute in 32-bit words. Results that may leave their type are computed in a wider one, and
cast back: int8 to uint16 wrap in the cast, and values that uint32 and uint64 cannot represent are
detected there.
"""

from __future__ import annotations

from collections.abc import Mapping

from vkmnn.geometry.registry import GeometryContext, geometry
from vkmnn.ir import DType
from vkmnn.ir.ops import (
    BinaryAttrs,
    CastAttrs,
    OpAttrs,
    ReductionAttrs,
    ScatterElementsAttrs,
    ScatterNDAttrs,
    UnaryAttrs,
)

_WRAPS = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
_UNSIGNED = (DType.UINT32, DType.UINT64)

# Kinds of ops whose results may leave the type of their operands.
_BINARY = frozenset({"ADD", "SUB", "MUL", "DIV", "POW", "PRELU"})
_UNARY = frozenset({"ABS", "NEG", "SQUARE"})
_REDUCTIONS = frozenset({"SUM", "PROD", "L1", "SUM_SQUARE"})
_SCATTERED = frozenset({"add", "mul"})
# Those whose results may be negative although no operand is.
_BELOW_ZERO = frozenset({"SUB", "NEG"})

# Ops with only some inputs of the result's type; in others, all are.
_NUMBERS: Mapping[str, tuple[int, ...]] = {
    "Reduction": (0,),
    "CumSum": (0,),
    "CumProd": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
}


def _kind(attrs: OpAttrs) -> str | None:
    """Return the kind of arithmetic, "" for the only one, None if it cannot leave its type."""
    match attrs:
        case BinaryAttrs(kind):
            return kind if kind in _BINARY else None
        case UnaryAttrs(kind):
            return kind if kind in _UNARY else None
        case ReductionAttrs(kind):
            return kind if kind in _REDUCTIONS else None
        case ScatterElementsAttrs(reduction=reduction) | ScatterNDAttrs(reduction=reduction):
            return reduction if reduction in _SCATTERED else None
    return ""


def widened(ctx: GeometryContext) -> bool:
    """Emit the op in a wider type and a cast back, if its results may leave their type."""
    output, kind = ctx.outputs[0], _kind(ctx.op.attrs)
    if kind is None or not output.name:
        return False
    if output.dtype in _WRAPS:
        wide = DType.INT32
    elif output.dtype in _UNSIGNED and kind in _BELOW_ZERO:
        wide = DType.INT64
    else:
        return False
    names = list(ctx.op.inputs)
    cast: dict[str, str] = {}
    for place in _NUMBERS.get(ctx.op.type, range(len(names))):
        name = names[place]
        if name and name not in cast:
            info = ctx.temp(wide, ctx.input(place).dims)
            ctx.emit("Cast", [name], CastAttrs(wide), info)
            cast[name] = info.name
        names[place] = cast.get(name, "")
    result = ctx.temp(wide, output.dims)
    ctx.emit(ctx.op.type, names, ctx.op.attrs, result)
    ctx.emit("Cast", [result.name], CastAttrs(output.dtype), output)
    return True


def _widen(ctx: GeometryContext) -> None:
    widened(ctx)


# Reduction has its own geometry, which asks first.
for _op_type in (
    "BinaryOp",
    "UnaryOp",
    "CumSum",
    "CumProd",
    "MatMul",
    "ScatterElements",
    "ScatterND",
):
    geometry(_op_type, only_for=frozenset({*_WRAPS, *_UNSIGNED}))(_widen)
