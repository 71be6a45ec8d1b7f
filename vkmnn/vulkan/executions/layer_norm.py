"""LayerNorm: normalisation over the last axes, with or without subtracting the mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, Op
from vkmnn.ir.ops import LayerNormAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shape.common import normalize_axis
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.half import HalfRule, Halves, halves
from vkmnn.vulkan.rows.norm import Factor, RowNorm, encode_row_norm


@vulkan_execution("LayerNorm")
class LayerNormExecution(VulkanExecution):
    """One dispatch with a workgroup per row; long rows take several."""

    half_rule = HalfRule.FOLLOWS

    @classmethod
    def reject(
        cls, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
    ) -> str | None:
        """Refuse computed factors that broadcast within a row."""
        assert isinstance(op.attrs, LayerNormAttrs)
        x = inputs[0]
        assert x is not None
        size = _row_size(op.attrs, x)
        for what, factor in zip(("scale", "bias"), inputs[1:], strict=False):
            if factor is None or factor.value is not None:
                continue
            if prod(factor.shape) not in (1, size, prod(x.shape)):
                return f"{what} of shape {factor.shape} is no constant and broadcasts to {x.shape}"
        return None

    def halves(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> Halves:
        """Follow the input; mean and deviation are float32."""
        wanted, made = halves(self.half_rule, inputs, outputs)
        named = [index for index, name in enumerate(self.op.outputs) if name]
        return wanted, [half and index == 0 for half, index in zip(made, named, strict=True)]

    def on_encode(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], encoder: VulkanEncoder
    ) -> None:
        """Record the dispatches."""
        attrs = self.op.attrs
        assert isinstance(attrs, LayerNormAttrs)
        x, scale, bias = (*inputs, None, None)[:3]
        assert x is not None
        size = _row_size(attrs, x)
        if 0 in x.shape:
            return
        named = iter(outputs)
        made = [next(named) if name else None for name in self.op.outputs]
        y, mean, deviation = (*made, None, None)[:3]
        assert y is not None
        norm = RowNorm(
            rows=prod(x.shape) // size,
            size=size,
            epsilon=attrs.epsilon,
            rms=attrs.rms,
            scale=_factor(scale, x, size, encoder),
            bias=_factor(bias, x, size, encoder),
            mean=mean,
            deviation=deviation,
        )
        encode_row_norm(norm, x, y, encoder)


def _row_size(attrs: LayerNormAttrs, x: Tensor) -> int:
    return prod(x.shape[normalize_axis(attrs.axis, len(x.shape)) :])


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
