"""The graph op for a node that neither a device nor numpy can execute."""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.ir.op_type import MANY, OpAttrs, op_type

HOST_GRAPH = "HostGraph"
"""Type of ops that hold unconverted parts of the ONNX model."""


@op_type(HOST_GRAPH, inputs=(0, MANY), flops=0)
@dataclass(frozen=True, slots=True)
class HostGraphAttrs(OpAttrs):
    """A part of an ONNX model, to be run by an evaluator of ONNX on the host.

    Attributes:
        model: a serialised onnx.ModelProto.
        inputs: what it calls the op's inputs, in their order.
        outputs: what it calls the op's outputs, in their order; "" for one that is not there.
        kind: the operators in it, for people: "NonZero".
        reason: why it is here.
    """

    model: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kind: str
    reason: str
