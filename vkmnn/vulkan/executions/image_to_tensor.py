"""ImageToTensor: images as decoded from files, in the layout that convolutions read."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Layouts
from vkmnn.core.float_range import fits
from vkmnn.ir import DType, Layout
from vkmnn.ir.ops import ImageToTensorAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, is_float

# Integer types that float16 represents exactly, and their largest magnitude.
_SMALL = {DType.BOOL: 1.0, DType.UINT8: 255.0, DType.INT8: 128.0}


@vulkan_execution("ImageToTensor")
class ImageToTensorExecution(VulkanExecution[ImageToTensorAttrs]):
    """Reorders axes, converts elements, scales, shifts and blocks channels in one dispatch."""

    repeatable = True

    def layouts(self) -> Layouts:
        """Read plain order, write blocks of channels."""
        return [Layout.NCHW], [Layout.NC4HW4]

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Read either type; write narrow floats if they can hold every result."""
        x, attrs = self.operand(0), self.attrs
        factors = np.array(attrs.scale or (1.0,)), np.array(attrs.bias or (0.0,))
        narrow = all(fits(array.astype(np.float32), element) for array in factors)
        if not is_float(x):
            largest = np.abs(factors[0]) * _SMALL.get(x.dtype, np.inf) + np.abs(factors[1])
            held = x.dtype in _SMALL and fits(largest.astype(np.float32), element)
            narrow = narrow and held
        return [x.element != "f32"], [narrow]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        attrs, x, output = self.attrs, self.operand(0), self.output
        if 0 in output.shape:
            return
        batch, channels = output.shape[:2]
        pixels = prod(output.shape[2:])
        factors = {f"scale{place}": value for place, value in enumerate(attrs.scale)}
        shifts = {f"bias{place}": value for place, value in enumerate(attrs.bias)}
        count = batch * ceil_div(channels, 4) * pixels
        params = kernels.ConvertLayoutParams(
            count=count, batch=batch, channels=channels, pixels=pixels, **factors, **shifts
        )
        shader = kernels.convert_layout(
            dest="nc4hw4", element=x.element, result=output.element, load=encoder.load
        )
        affine = bool(attrs.scale or attrs.bias)
        spec = {"CHANNELS_LAST": attrs.channels_last, "AFFINE": affine}
        if x.element == "f32":
            spec["WHOLE"] = not is_float(x)
        encoder.dispatch_linear(shader, [x, output], params, count, spec)
