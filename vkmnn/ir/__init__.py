"""The intermediate representation: graphs as plain data."""

from __future__ import annotations

from vkmnn.ir.dtype import (
    NARROW_FLOATS,
    NARROW_INTEGERS,
    DType,
    FloatFormat,
    has_narrow_types,
)
from vkmnn.ir.graph import (
    MAX_PLANNED_SIZES,
    PACKING,
    QUANTIZATION,
    SIGNATURES,
    TRAINABLE,
    USAGE,
    Array,
    AttrsT,
    Dim,
    Graph,
    GraphState,
    ModelMetadata,
    Op,
    PackedForm,
    TensorInfo,
    check_attrs,
)
from vkmnn.ir.host import HOST_GRAPH, HostGraphAttrs
from vkmnn.ir.layout import Layout, storage_elements
from vkmnn.ir.op_type import OP_TYPES, OpAttrs, OpType, op_type
from vkmnn.ir.ops import Activation
from vkmnn.ir.regions import Region, View

__all__ = [
    "HOST_GRAPH",
    "MAX_PLANNED_SIZES",
    "NARROW_FLOATS",
    "NARROW_INTEGERS",
    "OP_TYPES",
    "PACKING",
    "QUANTIZATION",
    "SIGNATURES",
    "TRAINABLE",
    "USAGE",
    "Activation",
    "Array",
    "AttrsT",
    "DType",
    "Dim",
    "FloatFormat",
    "Graph",
    "GraphState",
    "HostGraphAttrs",
    "Layout",
    "ModelMetadata",
    "Op",
    "OpAttrs",
    "OpType",
    "PackedForm",
    "Region",
    "TensorInfo",
    "View",
    "check_attrs",
    "has_narrow_types",
    "op_type",
    "storage_elements",
]
