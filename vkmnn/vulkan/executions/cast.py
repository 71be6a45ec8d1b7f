"""Cast and BitCast between element types."""

from __future__ import annotations

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Layouts, Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import NARROW_FLOATS, NARROW_INTEGERS, DType, storage_elements
from vkmnn.ir.ops import BitCastAttrs, CastAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule, is_float
from vkmnn.vulkan.storage import kernel_dtype, storage_bytes

# Integer types narrower than a device word: bits, and whether they are signed.
_NARROW = {
    **NARROW_INTEGERS,
    DType.INT8: (8, True),
    DType.UINT8: (8, False),
    DType.INT16: (16, True),
    DType.UINT16: (16, False),
}
_SIGNED = frozenset({DType.INT8, DType.INT16, DType.INT32, DType.INT64})
# Types for which negative numbers exceed a device word.
_WIDE_UNSIGNED = frozenset({DType.UINT32, DType.UINT64})


@vulkan_execution("Cast")
class CastExecution(VulkanExecution[CastAttrs]):
    """One dispatch, or a view if both types are stored alike and no value changes."""

    float_rule = FloatRule.FOLLOWS

    def layouts(self) -> Layouts:
        """Keep the input's order: zero stays zero."""
        layout = self.operand(0).layout
        return [layout], [layout]

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the operand from one float type to another: float16 is rounded already."""
        exact = is_float(self.output) and not _is_coarse(self.operand(0), self.output)
        return self.by_rule(self.float_rule if exact else FloatRule.FULL, element)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch or the view."""
        source, output, dest = self.operand(0), self.output, self.attrs.to
        if _same_values(source.dtype, dest) or (
            source.element != "f32" and output.element != "f32"
        ):
            encoder.alias(output, source)
            return
        spec = _format(self.attrs)
        shader = kernels.cast(
            source=kernel_dtype(source.dtype),  # type: ignore[arg-type]
            dest=_kernel_dest(dest),  # type: ignore[arg-type]
            load=encoder.load,
        )
        if source.dtype in _SIGNED and dest in _WIDE_UNSIGNED:
            spec["NEGATIVE_FITS"] = False
        tensors, check = [source, output], 0
        if _kernel_dest(dest) == "i32":
            status, check = encoder.check_overflow(self.op, output)
            tensors.append(status)
        count = storage_bytes(output) // 16
        elements = storage_elements(output.shape, output.layout)
        params = kernels.CastParams(count=count, elements=elements, check=check)
        encoder.dispatch_linear(shader, tensors, params, count, spec)


@vulkan_execution("BitCast")
class BitCastExecution(VulkanExecution[BitCastAttrs]):
    """A view: 32-bit floats and integers are both stored as words."""

    float_rule = FloatRule.FULL

    def prepare(self, info: DeviceInfo) -> None:
        """Reject types stored in words wider than themselves."""
        types = {self.operand(0).dtype, self.attrs.to}
        if not types <= {DType.FLOAT32, DType.INT32}:
            names = ", ".join(sorted(dtype.value for dtype in types))
            raise Rejection(f"{names}: the device stores them with other bits")

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the view."""
        encoder.alias(self.output, self.operand(0))


def _format(attrs: CastAttrs) -> dict[str, int | bool]:
    """Return how numbers of a type are stored among those of a device word."""
    if attrs.to in _NARROW:
        bits, signed = _NARROW[attrs.to]
        return {"BITS": bits, "SIGNED": signed}
    if attrs.to is DType.FLOAT8E8M0:
        mode = kernels.PowerMode[attrs.round_mode.upper()]
        return {"POWER": mode, "SATURATE": attrs.saturate}
    found = NARROW_FLOATS.get(attrs.to)
    if found is None:
        return {}
    is_bfloat = attrs.to is DType.BFLOAT16  # its subnormal numbers are those of float32
    saturates = found.saturates or (attrs.saturate and not is_bfloat)
    return {
        "MANTISSA": found.mantissa,
        "SMALLEST": 0 if is_bfloat else found.smallest + 127 << 23,
        "LARGEST": _bits(found.largest),
        "OVERFLOW": _bits(found.largest if saturates else found.overflow),
        "NOTHING": 0x80000000 if found.saturates else _bits(np.nan),
        "SIGNED_ZERO": found.signed_zero,
    }


def _bits(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


def _is_coarse(*tensors: Tensor) -> bool:
    """Return whether one of these types has a format that float16 storage cannot represent."""
    return any(tensor.dtype.is_narrow for tensor in tensors)


def _kernel_dest(dtype: DType) -> str:
    if dtype is DType.FLOAT16:
        return "f16"
    if dtype.is_narrow and dtype.is_float:
        return "narrow"
    return "bool" if dtype is DType.BOOL else str(kernel_dtype(dtype))


def _same_values(source: DType, dest: DType) -> bool:
    """Return whether a cast to `dest` leaves every stored value of `source` unchanged."""
    if source is dest or kernel_dtype(source) != kernel_dtype(dest):
        return source is dest
    if dest in _WIDE_UNSIGNED:
        return source not in _SIGNED
    return dest in (DType.FLOAT32, DType.INT32, DType.INT64) or source is DType.BOOL
