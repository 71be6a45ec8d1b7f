"""Requantisation epilogue: scale, add the residual, round, clamp."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.ir.ops import CodeSum, QuantizedConvolutionAttrs, QuantizedMatMulAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import ActivationCall
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.quantized.byte_codes import Shifts

SPEC = {"ACTIVATION": kernels.Activation.REQUANTIZE.value}
_UNIT = 4  # the row of a second rounding that holds the divisor


@dataclass(frozen=True, slots=True)
class Requantize:
    """Requantisation: factors by channel, bounds, and the treatment of a residual.

    `taken`: bounds of the quantised operand. `table`: maps quantised values, from `first` on;
    `again`: constants of a second rounding (`QuantizedMatMulAttrs`).
    """

    factor: Tensor
    low: float
    high: float
    add: CodeSum | None = None
    scale: float = 1.0
    taken: tuple[float, float] = (-inf, inf)
    table: Tensor | None = None
    first: int = 0
    again: Tensor | None = None

    @classmethod
    def of(
        cls,
        attrs: QuantizedConvolutionAttrs | QuantizedMatMulAttrs,
        factor: Tensor,
        table: Tensor | None,
        again: Tensor | None = None,
    ) -> Requantize:
        """Return the requantisation at the end of a quantised convolution or product."""
        rounding = attrs.low, attrs.high, attrs.add, attrs.scale, attrs.taken
        return cls(factor, *rounding, table, attrs.first, again)

    @property
    def call(self) -> ActivationCall:
        """The GLSL call that takes the place of an activation."""
        return self.call_with({})

    def call_with(self, spec: Mapping[str, int]) -> ActivationCall:
        """Return the call with further constants."""
        more: dict[str, int] = {}
        if self.table is not None:
            more["TABLE"] = len(_value(self.table))
        if self.again is not None:
            more["AGAIN"] = True
        return ActivationCall(self.low, self.high, {**SPEC, **more, **spec})

    @property
    def residual_mode(self) -> str:
        """How a residual is combined."""
        return "ADD_AFTER" if self.add else "ADD_BEFORE"

    def pack(
        self,
        bias: Tensor | None,
        channels: int,
        encoder: VulkanEncoder,
        more: tuple[str, Array] | None = None,
        shifts: Shifts = (0, 0, 0),
    ) -> Tensor:
        """Return the bias binding: the bias, the factors, and the constants after rounding.

        Biases and factors are padded to whole vec4s; they are followed by the scales, the bounds of
        a sum, with the table's first value, and `shifts`; the second rounding, by channel; the
        table, one vec4 per entry. `more` is added to the biases: integers with a cache key.
        """
        width = ceil_div(channels, 4) * 4
        packed = np.zeros((2 * width + 12,), np.float32)
        for values in (bias.value if bias else None, more[1] if more else None):
            if values is not None:
                packed[:channels] += values.astype(np.float32)
        packed[width : width + channels] = _value(self.factor).reshape(-1)
        packed[2 * width + 6 : -1] = self.scale, self.first, *shifts
        if self.add:
            packed[2 * width :][:3] = self.add.of_x, self.add.of_residual, self.add.unit
            packed[2 * width + 4 :][:2] = self.add.low, self.add.high
        parts = [packed, *self._after(width, channels)]
        name = f"{self.factor.name}:{bias.name if bias else ''}:{self.add}:{self.scale}:{channels}"
        name += f":{shifts}"
        for tensor in (self.table, self.again):
            name += f":{tensor.name}:{self.first}" if tensor is not None else ""
        if more is not None:
            name += f":{more[0]}"
        return encoder.literal(name, np.concatenate(parts))

    def _after(self, width: int, channels: int) -> list[Array]:
        """Return the constants after the factors."""
        parts: list[Array] = []
        if self.again is not None:
            rows = np.zeros((7, width), np.float32)
            rows[_UNIT] = 1.0
            rows[:, :channels] = _value(self.again)
            parts.append(rows.reshape(-1))
        if self.table is not None:
            entries = np.zeros((len(_value(self.table)), 4), np.float32)
            entries[:, 0] = _value(self.table)
            parts.append(entries.reshape(-1))
        return parts


def _value(tensor: Tensor) -> Array:
    assert tensor.value is not None
    return tensor.value
