"""Epilogue: the operations of a kernel on its sums before they are stored."""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation
from vkmnn.ir.ops import NO_ACTIVATION
from vkmnn.vulkan.activation import ActivationCall, call_of, residual_spec
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.dynamic import Dynamic
from vkmnn.vulkan.gemm.requantize import Requantize
from vkmnn.vulkan.quantized.byte_codes import Shifts

Ending = Activation | Requantize | Dynamic
"""An activation, a requantisation, or a dequantisation with a range computed in the run."""


@dataclass(slots=True)  # not frozen, which would take twice as long: plans create hundreds
class Epilogue:
    """A bias, a residual, and the ending of sums.

    Args:
        bias: one element per output channel or column.
        residual: a tensor of y's shape.
        mode: how the residual is combined: of RESIDUAL_KINDS.
        ending: the final operation.
    """

    bias: Tensor | None = None
    residual: Tensor | None = None
    mode: str = "ADD_BEFORE"
    ending: Ending = NO_ACTIVATION

    @property
    def requantize(self) -> Requantize | None:
        """The ending, if it is a requantisation."""
        return self.ending if isinstance(self.ending, Requantize) else None

    @property
    def dynamic(self) -> Dynamic | None:
        """The ending, if x was quantised with a range computed in the run."""
        return self.ending if isinstance(self.ending, Dynamic) else None

    @property
    def activation(self) -> Activation:
        """The activation; none if sums are requantised."""
        ending = self.ending
        if isinstance(ending, Requantize):
            return NO_ACTIVATION
        return ending.activation if isinstance(ending, Dynamic) else ending

    @property
    def call(self) -> ActivationCall:
        """The GLSL call of the activation, or of another ending."""
        ending = self.ending
        return ending.call if isinstance(ending, Requantize) else call_of(self.activation)

    @property
    def spec(self) -> dict[str, int | bool]:
        """Specialization constants of the residual and of dequantisation."""
        spec = residual_spec(self.residual, self.mode)
        return {**spec, **Dynamic.SPEC} if isinstance(self.ending, Dynamic) else spec

    def bound_bias(self, channels: int, encoder: VulkanEncoder, shifts: Shifts) -> Tensor | None:
        """Return the bias binding, with factors and bounds if the ending needs them.

        Args:
            channels: all output channels, or columns.
            encoder: uploads constants.
            shifts: as for `Requantize.pack`.
        """
        ending = self.ending
        if isinstance(ending, Requantize):
            return ending.pack(self.bias, channels, encoder, shifts=shifts)
        return ending.ends if isinstance(ending, Dynamic) else self.bias
