"""BinaryOp: arithmetic, comparisons and logic with broadcasting."""

from __future__ import annotations

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Layouts, Rejection
from vkmnn.core.float_range import BINARY_KINDS, divides
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, storage_elements
from vkmnn.ir.ops import BIT_KINDS, BinaryAttrs, StridedBinaryAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import activation_spec, keeps_zero
from vkmnn.vulkan.broadcast import (
    MAX_AXES,
    Broadcast,
    elementwise_layouts,
    plan_operands,
    plan_strided,
    reject_many_axes,
)
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.storage import kernel_dtype

# Kinds that return zero for two zeros.
_KEEPS_ZERO = frozenset(
    {"ADD", "SUB", "MUL", "MIN", "MAX", "PRELU", "GREATER", "LESS", "AND", "OR", "XOR", *BIT_KINDS}
)
# Kinds whose result is a bool.
_TESTS = frozenset({"EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "AND", "OR", "XOR"})
# Kinds whose integer kernels detect results outside int32.
_OVERFLOWS = frozenset({"ADD", "SUB", "MUL", "POW"})


@vulkan_execution("BinaryOp")
class BinaryExecution(VulkanExecution[BinaryAttrs]):
    """One dispatch over the broadcast result."""

    float_rule = FloatRule.FOLLOWS
    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Reject operands of different kinds, and shapes with too many alternating axes."""
        tensors, output, activation = self.operands, self.output, self.attrs.activation
        if len({kernel_dtype(tensor.dtype) for tensor in tensors}) != 1:
            raise Rejection(f"operands are {' and '.join(t.dtype.value for t in tensors)}")
        strided = self._strided()
        if strided is None:
            reject_many_axes(tensors, output)
        elif not strided.fits:
            raise Rejection(f"views of {len(strided.sizes)} axes, at most {MAX_AXES} fit")
        if activation.kind != "NONE" and kernel_dtype(output.dtype) != "f32":
            raise Rejection(f"activation {activation.kind} of integers")

    def layouts(self) -> Layouts:
        """Use the order of the larger operand; views are in plain order."""
        attrs = self.attrs
        if isinstance(attrs, StridedBinaryAttrs):
            return [Layout.NCHW, Layout.NCHW], [Layout.NCHW]
        zero = attrs.kind in _KEEPS_ZERO and keeps_zero(attrs.activation)
        return elementwise_layouts(self.operands, self.output, zero)

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the operands where results stay in the range as easily as they do."""
        a, b = self.operand(0), self.operand(1)
        # Squares, and quotients by computed or tiny values, may be far larger or smaller.
        leaves = a is b or (self.attrs.kind == "DIV" and not divides(b.value, element))
        stays = self.attrs.kind in BINARY_KINDS and not leaves
        return self.by_rule(self.float_rule if stays else FloatRule.FULL, element)

    def _plan(self, encoder: VulkanEncoder) -> tuple[Broadcast, list[Tensor]]:
        strided = self._strided()
        if strided is not None:
            return strided, list(self.operands)
        return plan_operands(self.operands, self.output, encoder)

    def _strided(self) -> Broadcast | None:
        attrs = self.attrs
        if not isinstance(attrs, StridedBinaryAttrs):
            return None
        return plan_strided(attrs.strides, attrs.shape)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, output = self.attrs, self.output
        plan, operands = self._plan(encoder)
        test = attrs.kind in _TESTS
        shader = kernels.binary(
            form="test" if test else "map",
            width=plan.width,
            element=encoder.element_of(operands[0]),
            load=encoder.load,
        )
        tensors, check = [*operands, output], 0
        if kernel_dtype(operands[0].dtype) == "i32" and not test:
            checked = attrs.kind in _OVERFLOWS
            status, check = (
                encoder.check_overflow(self.op, output) if checked else encoder.unchecked()
            )
            tensors.append(status)
        params = kernels.BinaryParams(
            count=plan.count,
            size=plan.padded_sizes(),
            a_stride=plan.padded_strides(0),
            b_stride=plan.padded_strides(1),
            act_alpha=attrs.activation.alpha,
            act_beta=attrs.activation.beta,
            elements=storage_elements(output.shape, output.layout),
            check=check,
        )
        spec: dict[str, int | bool] = {
            "KIND": kernels.Binary[attrs.kind].value,
            "AXES": len(plan.sizes),
        }
        if attrs.activation.kind != "NONE":
            spec |= activation_spec(attrs.activation)
        if plan.width == 4:
            spec |= {"A_SPLAT": plan.splats[0], "B_SPLAT": plan.splats[1]}
        encoder.dispatch_linear(shader, tensors, params, plan.count, spec)
