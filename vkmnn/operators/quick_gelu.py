"""QuickGelu and Swish: y = x · sigmoid(alpha · x), by one kernel instead of three."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkmnn.plugin import (
    AnyArray,
    DeviceInfo,
    HalfRule,
    Infos,
    Inputs,
    Layout,
    NodeContext,
    Op,
    Outputs,
    Tensor,
    Values,
    VulkanEncoder,
    VulkanExecution,
    attrs_of,
    converter,
    cpu_execution,
    operands,
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
class QuickGeluExecution(VulkanExecution):
    """One dispatch over whole vec4s."""

    half_rule = HalfRule.FOLLOWS

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse integers and bool: they run on the CPU backend."""
        return refuse_integers(inputs)

    def layouts(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> tuple[list[Layout], list[Layout]]:
        """Keep the input's order: zero stays zero, so the tail lanes of NC4HW4 do."""
        (x,) = operands(inputs)
        return [x.layout], [x.layout]

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatch."""
        attrs = attrs_of(self.op, ops.QuickGeluAttrs)
        count = vec4_count(outputs[0])
        shader = kernels.quick_gelu(storage=encoder.load_storage)
        params = kernels.QuickGeluParams(
            n4=count,
            alpha=attrs.alpha,
        )
        encoder.dispatch_linear(shader, [*operands(inputs), outputs[0]], params, count)


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
