"""SwiGLU, a gate of transformers: y = x0 · sigmoid(alpha · x0) · x1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from vkmnn.plugin import (
    AnyArray,
    DeviceInfo,
    FloatRule,
    Infos,
    Inputs,
    Layout,
    Layouts,
    NodeContext,
    Op,
    OpAttrs,
    Outputs,
    Values,
    VulkanEncoder,
    VulkanExecution,
    axes_of,
    converter,
    cpu_execution,
    elementwise_same_shape,
    op_type,
    reject_integers,
    required,
    same_dtype,
    same_shape,
    size_computer,
    vec4_count,
    vulkan_execution,
    widen,
)

from vkmnn_swiglu import kernels


@op_type("SwiGLU", inputs=2)
@dataclass(frozen=True, slots=True)
class SwiGLUAttrs(OpAttrs):
    """Attributes of SwiGLU, named as in the ONNX node."""

    alpha: float = 1.0


@size_computer("SwiGLU")
def _shape(op: Op, inputs: Infos, values: Values) -> Outputs:
    return [(same_dtype(inputs, 0, 1), same_shape(inputs, 0, 1))]


# Element by element: devices may compute parts. Not if the formula looks at other elements.
axes_of("SwiGLU", numbering={})(elementwise_same_shape)


@cpu_execution("SwiGLU")
def _compute(op: Op[SwiGLUAttrs], inputs: Inputs) -> list[AnyArray]:
    x0, x1 = (widen(required(inputs, index)) for index in range(2))
    alpha = x0.dtype.type(op.attrs.alpha)
    y = np.asarray(x0 / (1 + np.exp(-alpha * x0)) * x1)
    return [y.astype(required(inputs, 0).dtype, copy=False)]


@vulkan_execution("SwiGLU")
class SwiGLUExecution(VulkanExecution[SwiGLUAttrs]):
    """One dispatch over whole vec4s."""

    float_rule = FloatRule.FOLLOWS  # computes on 16 bits where its operands have them

    def prepare(self, info: DeviceInfo) -> None:
        """Refuse integers and bool: they run on the CPU backend."""
        reject_integers(self.inputs)

    def layouts(self) -> Layouts:
        """Keep the operands' memory order where they share one: zero stays zero in unused lanes."""
        orders = {tensor.layout for tensor in self.operands}
        order = orders.pop() if len(orders) == 1 else Layout.NCHW
        return [order, order], [order]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        count = vec4_count(self.output)
        shader = kernels.swiglu(element=encoder.element, load=encoder.load)
        params = kernels.SwigluParams(
            n4=count,
            alpha=self.attrs.alpha,
        )
        encoder.dispatch_linear(shader, [*self.operands, self.output], params, count)


@converter("SwiGLU", domain="vkmnn_swiglu")
def _convert(node: NodeContext) -> None:
    attrs = node.attributes(SwiGLUAttrs)
    node.finish("SwiGLU", node.inputs, attrs)
