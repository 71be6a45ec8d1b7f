"""How sums of codes end: what kernels multiply them by, where they cut them off."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.ir.ops import CodeSum
from vkmnn.records import dataclass
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import Epilogue
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div

SPEC = {"ACTIVATION": kernels.Activation.REQUANTIZE.value}


@dataclass(frozen=True, slots=True)
class Requantize:
    """What sums are multiplied by, by channel; the bounds of codes; what a residual does.

    `taken`: bounds of the codes that are multiplied.
    """

    factor: Tensor
    low: float
    high: float
    add: CodeSum | None = None
    scale: float = 1.0
    taken: tuple[float, float] = (-inf, inf)

    @property
    def epilogue(self) -> Epilogue:
        """Return what the kernels are given in place of an activation."""
        return Epilogue(self.low, self.high, SPEC)

    def epilogue_with(self, spec: Mapping[str, int]) -> Epilogue:
        """Return the same with further constants."""
        return Epilogue(self.low, self.high, {**SPEC, **spec})

    @property
    def join(self) -> str:
        """Return where a residual comes in."""
        return "ADD_AFTER" if self.add else "ADD_BEFORE"

    def pack(
        self,
        bias: Tensor | None,
        channels: int,
        encoder: VulkanEncoder,
        more: tuple[str, Array] | None = None,
    ) -> Tensor:
        """Return what kernels bind as the bias: that, the factors, and what adds a residual.

        Biases and factors fill whole vec4s; then come the scales, and the bounds of a sum. `more`
        is added to the biases, whole numbers with a name.
        """
        factor = self.factor
        assert factor.value is not None
        width = ceil_div(channels, 4) * 4
        packed = np.zeros((2 * width + 8,), np.float32)
        for values in (bias.value if bias else None, more[1] if more else None):
            if values is not None:
                packed[:channels] += values.astype(np.float32)
        packed[width : width + channels] = factor.value.reshape(-1)
        packed[2 * width + 6] = self.scale
        if self.add:
            packed[2 * width :][:3] = self.add.of_x, self.add.of_residual, self.add.unit
            packed[2 * width + 4 :][:2] = self.add.low, self.add.high
        name = f"{factor.name}:{bias.name if bias else ''}:{self.add}:{self.scale}:{channels}"
        if more is not None:
            name += f":{more[0]}"
        return encoder.literal(name, packed)
