"""Operators that planning lowers to others, unless their sizes forbid it."""

from __future__ import annotations

from collections.abc import Mapping

from vkmnn.core.execution import Rejection
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution

_REASONS: Mapping[str, str] = {
    "Col2Im": "too many elements of blocks meet on one of the image",
    "DFT": "a long transform: the host has a fast one",
}


@vulkan_execution(*_REASONS)
class UnloweredExecution(VulkanExecution):
    """Reports why the op is left to the host."""

    def prepare(self, info: DeviceInfo) -> None:
        """Reject the op."""
        raise Rejection(_REASONS[self.op.type])

    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Never called: `prepare` rejects the op."""
