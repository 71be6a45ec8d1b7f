"""Cast between element types."""

from __future__ import annotations

from vkmnn.core.execution import Layouts
from vkmnn.ir import DType, storage_elements
from vkmnn.ir.ops import CastAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.fp16 import Fp16Operands, Fp16Rule, is_float
from vkmnn.vulkan.storage import kernel_dtype, storage_bytes

# Integer types narrower than a device word: bits, and whether they are signed.
_NARROW = {
    DType.INT8: (8, True),
    DType.UINT8: (8, False),
    DType.INT16: (16, True),
    DType.UINT16: (16, False),
}
_SIGNED = frozenset({DType.INT8, DType.INT16, DType.INT32, DType.INT64})
# Negative numbers become ones that a device word cannot hold.
_WIDE_UNSIGNED = frozenset({DType.UINT32, DType.UINT64})


@vulkan_execution("Cast")
class CastExecution(VulkanExecution[CastAttrs]):
    """One dispatch, or a view when both types are stored alike and no value changes."""

    fp16_rule = Fp16Rule.FOLLOWS

    def layouts(self) -> Layouts:
        """Keep the input's order: zero stays zero."""
        layout = self.operand(0).layout
        return [layout], [layout]

    def fp16_operands(self) -> Fp16Operands:
        """Follow the operand from one float type to another: fp16 is rounded already."""
        return self.by_rule(self.fp16_rule if is_float(self.output) else Fp16Rule.FULL)

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch or the view."""
        source, output, dest = self.operand(0), self.output, self.attrs.to
        if _same_values(source.dtype, dest) or (source.fp16 and output.fp16):
            encoder.alias(output, source)
            return
        spec: dict[str, int | bool] = {}
        if dest in _NARROW:
            spec["BITS"], spec["SIGNED"] = _NARROW[dest]
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


def _kernel_dest(dtype: DType) -> str:
    if dtype is DType.FLOAT16:
        return "f16"
    return "bool" if dtype is DType.BOOL else str(kernel_dtype(dtype))


def _same_values(source: DType, dest: DType) -> bool:
    """Return whether a cast to `dest` leaves every stored value of `source` as it is."""
    if source is dest or kernel_dtype(source) != kernel_dtype(dest):
        return source is dest
    if dest in _WIDE_UNSIGNED:
        return source not in _SIGNED
    return dest in (DType.FLOAT32, DType.INT32, DType.INT64) or source is DType.BOOL
