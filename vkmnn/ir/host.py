"""The op for nodes that neither a device nor numpy can execute."""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.ir.op_type import MANY, OpAttrs, op_type

HOST_GRAPH = "HostGraph"
"""Type of ops that contain unconverted parts of the ONNX model."""


@op_type(HOST_GRAPH, inputs=(0, MANY), flops=0)
@dataclass(frozen=True, slots=True)
class HostGraphAttrs(OpAttrs):
    """A part of an ONNX model, to be run by an ONNX evaluator on the host.

    Attributes:
        model: a serialised onnx.ModelProto.
        inputs: its names for the op's inputs, in order.
        outputs: its names for the op's outputs, in order; "" for an absent one.
        kind: its operators, for display: "NonZero".
        reason: why it was not converted.
    """

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kind: str
    reason: str
