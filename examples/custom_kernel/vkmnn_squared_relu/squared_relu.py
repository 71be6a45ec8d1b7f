"""A Custom op with its own kernel for devices, and a pass that puts it in place of a pattern.

The op is y = scale · max(x, 0)², the activation of some transformers. No model needs to name it:
the pass finds a Relu whose result is multiplied by itself.
"""

from __future__ import annotations

from struct import pack
from typing import Any

import numpy as np
from vkmnn.plugin import (
    BEGIN,
    AnyArray,
    CustomAttrs,
    DeviceInfo,
    GraphIndex,
    Infos,
    Inputs,
    NoMatch,
    Op,
    Outputs,
    PatternPass,
    Values,
    VulkanEncoder,
    VulkanExecution,
    custom_execution,
    custom_op,
    graph_pass,
    kernel,
    merged_source,
    reject_integers,
    required,
    same_dtype,
    same_shape,
    vec4_count,
    widen,
)

from vkmnn_squared_relu import kernels

TYPE = "acme.SquaredRelu"


@custom_op(TYPE, flops=3)
def _shape(op: Op[CustomAttrs], inputs: Infos, values: Values) -> Outputs:
    return [(same_dtype(inputs, 0), same_shape(inputs, 0))]


@custom_execution(TYPE)
def _compute(op: Op[CustomAttrs], inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    y = np.maximum(widen(x), 0)
    (scale,) = op.attrs.floats("scale", [1.0])
    return [np.asarray(y.dtype.type(scale) * y * y).astype(x.dtype, copy=False)]


@kernel(f"Custom:{TYPE}", backend="VULKAN", provider="acme")
class SquaredRelu(VulkanExecution[CustomAttrs]):
    """One dispatch over whole vec4s."""

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse integers and bool: they run on the CPU backend."""
        reject_integers(self.inputs)
        (self._scale,) = self.attrs.floats("scale", [1.0])

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        count = vec4_count(self.output)
        shader = kernels.squared_relu(load=encoder.load)
        params = kernels.SquaredReluParams(n4=count, scale=self._scale)
        encoder.dispatch_linear(shader, [*self.operands, self.output], params, count)


@graph_pass(after=BEGIN)
class FuseSquaredRelu(PatternPass[Op[Any]]):
    """relu(x) · relu(x): one Custom op, in one dispatch."""

    name = "acme_fuse_squared_relu"
    roots = frozenset({"BinaryOp"})

    def match(self, op: Op[Any], index: GraphIndex) -> Op[Any] | NoMatch:
        """Return the Relu."""
        if op.attrs.kind != "MUL" or op.attrs.activation.kind != "NONE":
            return NoMatch("not a bare product")
        if op.inputs[0] != op.inputs[1]:
            return NoMatch("a product of two values")
        relu = index.producer_of_type(op.inputs[0], "UnaryOp")
        if relu is None or relu.attrs.kind != "RELU":
            return NoMatch("not the square of a Relu")
        return relu

    def rewrite(self, op: Op[Any], match: Op[Any], index: GraphIndex) -> None:
        """Replace the product; the Relu goes when nobody else reads it."""
        attrs = CustomAttrs(TYPE, (("scale", pack("<f", 1.0)),))
        new = Op("Custom", op.name, match.inputs, op.outputs, attrs, merged_source([match, op]))
        index.replace(op, new)
