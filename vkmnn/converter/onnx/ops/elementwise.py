"""Element-by-element functions of several tensors, with numpy broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.quantized.coded import as_floats
from vkmnn.converter.onnx.registry import converter
from vkmnn.converter.onnx.types import DTYPES, type_name
from vkmnn.ir import NARROW_INTEGERS, DType
from vkmnn.ir.ops import BinaryAttrs, BitCastAttrs, CastAttrs, ConstantOfShapeAttrs, ShapeAttrs

# ONNX operator → (BinaryOp kind, first opset with numpy broadcasting or of the operator).
_BINARY: Mapping[str, tuple[str, int]] = {
    "Add": ("ADD", 7),
    "Sub": ("SUB", 7),
    "Mul": ("MUL", 7),
    "Div": ("DIV", 7),
    "Equal": ("EQUAL", 7),
    "Greater": ("GREATER", 7),
    "GreaterOrEqual": ("GREATER_EQUAL", 12),
    "Less": ("LESS", 7),
    "LessOrEqual": ("LESS_EQUAL", 12),
    "And": ("AND", 7),
    "Or": ("OR", 7),
    "Xor": ("XOR", 7),
    "BitwiseAnd": ("BIT_AND", 18),
    "BitwiseOr": ("BIT_OR", 18),
    "BitwiseXor": ("BIT_XOR", 18),
}

_WHOLE_EXPONENTS = 64
"""Below this, exponents of integers fit every type; beyond, powers exceed all types anyway."""

_PACKED = {*NARROW_INTEGERS, DType.FLOAT4E2M1}
"""Types with several elements in a byte."""

_VARIADIC: Mapping[str, str] = {"Sum": "ADD", "Max": "MAX", "Min": "MIN"}


def _binary(kind: str) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        node.finish("BinaryOp", node.inputs, BinaryAttrs(kind))

    return convert


def _variadic(kind: str) -> Callable[[NodeContext], None]:
    def convert(node: NodeContext) -> None:
        _chain(node, kind, node.inputs, node.outputs)

    return convert


def _chain(
    node: NodeContext, kind: str, inputs: Sequence[str], outputs: Sequence[str] | None
) -> str:
    """Combine the inputs pairwise from the left."""
    if len(inputs) == 1:
        return inputs[0] if outputs is None else node.emit("Identity", inputs, None, outputs)
    result = inputs[0]
    for position, name in enumerate(inputs[1:], 2):
        last = position == len(inputs)
        result = node.emit("BinaryOp", [result, name], BinaryAttrs(kind), outputs if last else None)
    return result


for _name, (_kind, _since) in _BINARY.items():
    converter(_name, since=_since)(_binary(_kind))
for _name, _kind in _VARIADIC.items():
    converter(_name, since=6)(_variadic(_kind))


@converter("Mean", since=6)
def _mean(node: NodeContext) -> None:
    total = _chain(node, "ADD", node.inputs, None)
    count = node.constant(len(node.inputs), node.dtype(node.inputs[0]))
    node.finish("BinaryOp", [total, count], BinaryAttrs("DIV"))


@converter("Mod", since=10)
def _mod(node: NodeContext) -> None:
    node.finish("BinaryOp", node.inputs, BinaryAttrs("FMOD" if node.bool("fmod") else "MOD"))


@converter("Pow", since=7)
def _pow(node: NodeContext) -> None:
    base, exponent = node.inputs
    if node.opset < 12 or node.dtype(base) == node.dtype(exponent):
        node.finish("BinaryOp", [base, exponent], BinaryAttrs("POW"))
        return
    result = node.dtype(base)
    if result.is_float or node.dtype(exponent).is_integer or _is_small_and_whole(node, exponent):
        exponent = node.emit("Cast", [exponent], CastAttrs(result))
        node.finish("BinaryOp", [base, exponent], BinaryAttrs("POW"))
        return
    # An integer raised to a float is computed in floating point and has the base's type.
    base = node.emit("Cast", [base], CastAttrs(node.dtype(exponent)))
    power = node.emit("BinaryOp", [base, exponent], BinaryAttrs("POW"))
    node.finish("Cast", [power], CastAttrs(result))


def _is_small_and_whole(node: NodeContext, exponent: str) -> bool:
    """True for constant exponents of integers that need no floating point."""
    value = node.const_value(exponent)
    return value is not None and bool(np.isin(value, np.arange(_WHOLE_EXPONENTS)).all())


@converter("Where", since=9)
def _where(node: NodeContext) -> None:
    node.finish("Select", node.inputs)


@converter("Cast", since=6)
def _cast(node: NodeContext) -> None:
    code = node.int("to")
    dtype = DTYPES.get(code)
    if dtype is None:
        raise node.unsupported(f"casting to {type_name(code)} is not supported")
    _finish_cast(node, dtype)


@converter("CastLike", since=15)
def _cast_like(node: NodeContext) -> None:
    _finish_cast(node, node.dtype(node.inputs[1]))


def _finish_cast(node: NodeContext, to: DType) -> None:
    floats = as_floats(node, node.input(0)) if to is DType.FLOAT32 else None
    if floats is not None:
        node.finish("Identity", [floats])
    else:
        node.finish("Cast", node.inputs[:1], _cast_attrs(node, to))


@converter("BitCast", since=26)
def _bit_cast(node: NodeContext) -> None:
    """Cast between integers of equal width, which wraps; otherwise reinterpret words."""
    code = node.int("to")
    source, to = node.dtype(node.input(0)), DTYPES.get(code)
    if to is None or (source is not to and {source, to} & _PACKED):
        raise node.unsupported(f"bits of {source.value} as {type_name(code)}")
    if source is to:
        node.finish("Identity", node.inputs)
    elif source.is_float or to.is_float:
        x = node.input(0)
        if source is DType.UINT32:  # words of the device are signed
            x = node.emit("Cast", [x], CastAttrs(DType.INT32))
        if to is DType.UINT32:
            x = node.emit("BitCast", [x], BitCastAttrs(DType.INT32))
            node.finish("Cast", [x], CastAttrs(to))
        else:
            node.finish("BitCast", [x], BitCastAttrs(to))
    else:
        node.finish("Cast", node.inputs, CastAttrs(to))


def _cast_attrs(node: NodeContext, to: DType) -> CastAttrs:
    """Return the attributes of a cast; most types have none."""
    if not (to.is_narrow and to.is_float):
        return CastAttrs(to)
    mode = "up"
    if to is DType.FLOAT8E8M0:
        mode = node.choice("round_mode", "up", ("up", "down", "nearest"))
    return CastAttrs(to, node.bool("saturate", True), mode)


@converter("Dropout", since=7)
def _dropout_attributes(node: NodeContext) -> None:
    _identity_with_mask(node, node.dtype(node.input(0)) if node.opset < 10 else DType.BOOL)


@converter("Dropout", since=12)
def _dropout_inputs(node: NodeContext) -> None:
    training, ratio = node.input(2), node.input(1)
    if training:
        mode = node.const_value(training)
        rate = node.const_value(ratio) if ratio else None
        if mode is None:
            raise node.unsupported("training_mode is not a constant; export for inference")
        # Without a ratio, ONNX drops half of the elements; a ratio of 0 drops none.
        if mode.any() and (rate is None or rate.any()):
            raise node.unsupported("it drops elements at random (training_mode is on)")
    _identity_with_mask(node, DType.BOOL)


def _identity_with_mask(node: NodeContext, mask_dtype: DType) -> None:
    node.finish("Identity", node.inputs[:1])
    if node.is_read(1):
        shape = node.emit("Shape", node.inputs[:1], ShapeAttrs())
        ones = ConstantOfShapeAttrs(mask_dtype.numpy.type(1).item(), mask_dtype)
        node.emit("ConstantOfShape", [shape], ones, node.outputs[1:2])


@converter("Identity")
def _identity(node: NodeContext) -> None:
    value = node.const_value(node.inputs[0])
    if value is not None:
        node.set_constant(value)
    else:
        node.finish("Identity", node.inputs)
