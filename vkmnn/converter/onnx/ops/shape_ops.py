"""Constants, shapes, ranges."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.onnx.node import NodeContext
from vkmnn.converter.onnx.registry import converter
from vkmnn.converter.onnx.types import DTYPES, type_name
from vkmnn.ir import DType
from vkmnn.ir.ops import CastAttrs, ConstantOfShapeAttrs, ShapeAttrs, TriluAttrs


@converter("Constant")
def _constant(node: NodeContext) -> None:
    if node.has("value"):
        node.set_constant(node.tensor("value"))
    elif node.has("sparse_value"):
        node.set_constant(node.sparse_tensor("sparse_value"))
    elif node.has("value_float"):
        node.set_constant(np.array(node.float("value_float"), np.float32))
    elif node.has("value_floats"):
        node.set_constant(np.array(node.floats("value_floats"), np.float32))
    elif node.has("value_int"):
        node.set_constant(np.array(node.int("value_int"), np.int64))
    elif node.has("value_ints"):
        node.set_constant(np.array(node.ints("value_ints"), np.int64))
    else:
        raise node.unsupported("only tensors, floats and ints can be constants")


@converter("ConstantOfShape", since=9)
def _constant_of_shape(node: NodeContext) -> None:
    value = node.tensor("value") if node.has("value") else np.zeros(1, np.float32)
    if value.size != 1:
        raise node.unsupported(f"value has {value.size} elements, not one")
    attrs = ConstantOfShapeAttrs(value.reshape(()).item(), DType.from_numpy(value.dtype))
    node.finish("ConstantOfShape", node.inputs, attrs)


@converter("Shape")
def _shape(node: NodeContext) -> None:
    end = node.int("end") if node.has("end") else None
    node.finish("Shape", node.inputs, ShapeAttrs(node.int("start", 0), end))


@converter("Size")
def _size(node: NodeContext) -> None:
    node.finish("Size", node.inputs)


@converter("Range", since=11)
def _range(node: NodeContext) -> None:
    node.finish("Range", node.inputs)


@converter("EyeLike", since=9)
def _eye_like(node: NodeContext) -> None:
    """Ones of the input's shape, zeroed outside one diagonal."""
    x = node.input(0)
    code = node.int("dtype") if node.has("dtype") else None
    dtype = node.dtype(x) if code is None else DTYPES.get(code)
    if dtype is None:
        raise node.unsupported(f"dtype {type_name(code or 0)} is not supported")
    shape = node.emit("Shape", [x], ShapeAttrs())
    ones = node.emit("ConstantOfShape", [shape], ConstantOfShapeAttrs(1.0, DType.FLOAT32))
    k = node.constant(np.int64(node.int("k", 0)))
    upper = node.emit("Trilu", [ones, k], TriluAttrs(upper=True))
    diagonal = node.emit("Trilu", [upper, k], TriluAttrs(upper=False))
    node.finish("Cast", [diagonal], CastAttrs(dtype))
