"""LayerNorm: normalisation over the last axes, with or without subtracting the mean."""

from __future__ import annotations

from math import prod

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, Layout
from vkmnn.ir.ops import LayerNormAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shape.common import normalize_axis
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule
from vkmnn.vulkan.quantized.byte_codes import code_shift, keeps_rows_of_codes, reads_or_makes_codes
from vkmnn.vulkan.rows.norm import MAX_ROW, Factor, RowNorm, encode_row_norm


@vulkan_execution("LayerNorm")
class LayerNormExecution(VulkanExecution[LayerNormAttrs]):
    """One dispatch with a workgroup per row; long rows take several."""

    float_rule = FloatRule.FOLLOWS
    code_layout = Layout.NCHW
    repeatable = True

    def prepare(self, info: DeviceInfo) -> None:
        """Reject computed factors that broadcast within a row."""
        x = self.operand(0)
        self._size = size = prod(x.shape[normalize_axis(self.attrs.axis, len(x.shape)) :])
        if reads_or_makes_codes(self.attrs) and size > MAX_ROW:
            raise Rejection(f"quantised values in rows of {size} elements")
        self._rows_of_codes = keeps_rows_of_codes(info) and self._has_whole_words()
        for what, factor in zip(("scale", "bias"), self.inputs[1:], strict=False):
            if factor is None or factor.value is not None:
                continue
            if prod(factor.shape) not in (1, size, prod(x.shape)):
                raise Rejection(
                    f"{what} of shape {factor.shape} is not constant and broadcasts to {x.shape}"
                )

    def _has_whole_words(self) -> bool:
        """Return whether rows of quantised values, and the factors, are whole vectors."""
        factors = [f for f in self.inputs[1:] if f is not None and f.value is None]
        whole = self._size % 4 == 0 and all(prod(f.shape) != 1 for f in factors)
        alone = self.result(1) is None and self.result(2) is None
        return whole and alone and reads_or_makes_codes(self.attrs)

    def code_inputs(self) -> dict[int, int | None]:
        """Kernels of CPU devices apply the scale of quantised inputs."""
        return {0: None} if self._rows_of_codes else {}

    def begins_codes(self) -> bool:
        """Return whether results are quantised."""
        return self._rows_of_codes and self.attrs.ending is not None

    def made_codes(self, wish: int | None = None) -> int | None:
        """Results that are rounded and not dequantised are quantised."""
        ending = self.attrs.ending
        if not self._rows_of_codes or ending is None or ending.scale != 1.0:
            return None
        return code_shift(ending.low, ending.high, wish)

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Follow the input; mean and deviation are float32."""
        codes = reads_or_makes_codes(self.attrs)
        wanted, made = self.by_rule(FloatRule.FULL if codes else self.float_rule, element)
        y = self.result(0)
        return wanted, [narrow and out is y for narrow, out in zip(made, self.outputs, strict=True)]

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the dispatches."""
        attrs, x, size = self.attrs, self.operand(0), self._size
        if 0 in x.shape:
            return
        norm = RowNorm(
            rows=prod(x.shape) // size,
            size=size,
            epsilon=attrs.epsilon,
            rms=attrs.rms,
            scale=_factor(self.optional(1), x, size, encoder),
            bias=_factor(self.optional(2), x, size, encoder),
            mean=self.result(1),
            deviation=self.result(2),
            of_input=attrs.of_input,
            ending=attrs.ending,
        )
        y = self.result(0) or encoder.scratch(prod(x.shape))
        encode_row_norm(norm, x, y, encoder)


def _factor(tensor: Tensor | None, x: Tensor, size: int, encoder: VulkanEncoder) -> Factor | None:
    if tensor is None:
        return None
    words = prod(tensor.shape)
    if words == size:
        return Factor(tensor)
    if words == prod(x.shape):
        return Factor(tensor, row=size)
    if tensor.value is None:
        return Factor(tensor, step=0)
    shape = x.shape
    return Factor(
        encoder.constant(tensor, f"broadcast:{shape}", lambda array: _broadcast(array, shape)),
        row=size,
    )


def _broadcast(array: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(array, shape)
