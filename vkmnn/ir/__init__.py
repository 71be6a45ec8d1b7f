"""The intermediate representation: graphs as plain data."""

from __future__ import annotations

from vkmnn.ir.dtype import DType
from vkmnn.ir.graph import Array, AttrsT, Dim, Graph, ModelMetadata, Op, TensorInfo, check_attrs
from vkmnn.ir.host import HOST_GRAPH, HostGraphAttrs
from vkmnn.ir.layout import Layout, storage_elements
from vkmnn.ir.op_type import OP_TYPES, OpAttrs, OpType, op_type
from vkmnn.ir.ops import Activation
from vkmnn.ir.regions import Region, View

__all__ = [
    "HOST_GRAPH",
    "OP_TYPES",
    "Activation",
    "Array",
    "AttrsT",
    "DType",
    "Dim",
    "Graph",
    "HostGraphAttrs",
    "Layout",
    "ModelMetadata",
    "Op",
    "OpAttrs",
    "OpType",
    "Region",
    "TensorInfo",
    "View",
    "check_attrs",
    "op_type",
    "storage_elements",
]
