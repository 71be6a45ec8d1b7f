"""UnaryOp: functions of one operand, element by element."""

from __future__ import annotations

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Layouts, Rejection
from vkmnn.core.float_range import FULL_UNARY_KINDS
from vkmnn.ir import Activation, Layout
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import keeps_zero
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.storage import kernel_dtype, vec4_count

# Kinds beyond the activations with f(0) = 0, so that zero tail lanes of NC4HW4 stay zero.
_KEEPS_ZERO = frozenset(
    {
        "ABS", "NEG", "FLOOR", "CEIL", "ROUND", "SQRT", "SQUARE", "ERF", "SIN", "TAN", "ASIN",
        "ATAN", "SINH", "ASINH", "ATANH", "SIGN", "ISNAN", "ISINF", "SELU", "CELU", "SOFTSIGN",
        "MISH", "THRESHOLDED_RELU",
    }
)  # fmt: skip
# Kinds whose result is a bool, which has another type than their operand.
_TESTS = frozenset({"ISNAN", "ISINF"})
_INTEGER_KINDS = frozenset({"ABS", "NEG", "SIGN", "NOT", "RELU", "CLIP", "SQUARE"})
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


@vulkan_execution("UnaryOp")
class UnaryExecution(VulkanExecution[UnaryAttrs]):
    """One dispatch over whole vec4s."""

    float_rule = FloatRule.FOLLOWS
    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Reject float functions of integers."""
        dtype = self.operand(0).dtype
        if kernel_dtype(dtype) == "i32" and self.attrs.kind not in _INTEGER_KINDS:
            raise Rejection(f"{self.attrs.kind} of {dtype.value}")

    def layouts(self) -> Layouts:
        """Keep the input's order if zero tail lanes stay zero."""
        source, attrs = self.operand(0), self.attrs
        zero = attrs.kind in _KEEPS_ZERO or keeps_zero(
            Activation(attrs.kind, attrs.alpha, attrs.beta)
        )
        blocked = source.layout is Layout.NC4HW4 and (zero or source.shape[1] % 4 == 0)
        layout = Layout.NC4HW4 if blocked else Layout.NCHW
        return [layout], [layout]

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the operand, unless results are not floats, or easily exceed the range."""
        full = self.attrs.kind in FULL_UNARY_KINDS
        return self.by_rule(FloatRule.FULL if full else self.float_rule, element)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        source, output, attrs = self.operand(0), self.output, self.attrs
        dtype = kernel_dtype(source.dtype)
        count = vec4_count(output)
        shader = kernels.unary(
            form="test" if attrs.kind in _TESTS else "map",
            element=encoder.element_of(source),
            load=encoder.load,
        )
        params = kernels.UnaryParams(n4=count, alpha=attrs.alpha, beta=attrs.beta)
        if dtype == "i32":
            params = kernels.UnaryParams(n4=count, lo=_bound(attrs.alpha), hi=_bound(attrs.beta))
        spec = {"KIND": kernels.Unary[attrs.kind].value}
        encoder.dispatch_linear(shader, [source, output], params, count, spec)


def _bound(value: float) -> int:
    """Return a bound of an integer CLIP; infinities become int32's limits."""
    return int(min(max(value, _INT32_MIN), _INT32_MAX))
