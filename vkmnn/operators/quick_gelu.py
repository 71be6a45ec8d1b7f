"""QuickGelu and Swish: y = x · sigmoid(alpha · x), by one kernel instead of three."""

from __future__ import annotations

import numpy as np

from vkmnn.plugin import (
    AnyArray,
    DeviceInfo,
    HalfRule,
    Infos,
    Inputs,
    Layouts,
    NodeContext,
    Op,
    Outputs,
    Values,
    VulkanEncoder,
    VulkanExecution,
    attrs_of,
    converter,
    cpu_execution,
    ops,
    refuse_integers,
    required,
    same_dtype,
    same_shape,
    size_computer,
    vec4_count,
    vulkan_execution,
    widen,
)
from vkmnn.shaders import kernels


@size_computer("QuickGelu")
def _shape(op: Op, inputs: Infos, values: Values) -> Outputs:
    return [(same_dtype(inputs, 0), same_shape(inputs, 0))]


@cpu_execution("QuickGelu")
def _compute(op: Op, inputs: Inputs) -> list[AnyArray]:
    x = required(inputs, 0)
    wide = widen(x)
    alpha = wide.dtype.type(attrs_of(op, ops.QuickGeluAttrs).alpha)
    return [np.asarray(wide / (1 + np.exp(-alpha * wide))).astype(x.dtype, copy=False)]


@vulkan_execution("QuickGelu")
class QuickGeluExecution(VulkanExecution[ops.QuickGeluAttrs]):
    """One dispatch over whole vec4s."""

    half_rule = HalfRule.FOLLOWS

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse integers and bool: they run on the CPU backend."""
        refuse_integers(self.inputs)

    def layouts(self) -> Layouts:
        """Keep the input's order: zero stays zero, so the tail lanes of NC4HW4 do."""
        layout = self.operand(0).layout
        return [layout], [layout]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        count = vec4_count(self.output)
        shader = kernels.quick_gelu(storage=encoder.load_storage)
        params = kernels.QuickGeluParams(
            n4=count,
            alpha=self.attrs.alpha,
        )
        encoder.dispatch_linear(shader, [*self.operands, self.output], params, count)


@converter("QuickGelu", domain="com.microsoft")
def _quick_gelu(node: NodeContext) -> None:
    _finish(node, node.attributes(ops.QuickGeluAttrs))


@converter("Swish", since=24)
def _swish(node: NodeContext) -> None:
    _finish(node, ops.QuickGeluAttrs(node.float("alpha", 1.0)))


def _finish(node: NodeContext, attrs: ops.QuickGeluAttrs) -> None:
    if attrs.alpha == 1:  # an activation, which other operators may take over
        node.finish("UnaryOp", node.inputs, ops.UnaryAttrs("SILU"))
    else:
        node.finish("QuickGelu", node.inputs, attrs)
