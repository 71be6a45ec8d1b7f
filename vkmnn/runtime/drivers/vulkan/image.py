"""Images: 2-D VkImages with their own memory, always in the layout GENERAL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vkmnn.errors import InvalidInputError, OutOfDeviceMemoryError
from vkmnn.runtime.drivers.buffer import DriverBuffer
from vkmnn.runtime.drivers.vulkan.api import address, ffi, lib, struct
from vkmnn.runtime.drivers.vulkan.handles import Handles
from vkmnn.runtime.drivers.vulkan.memory import allocate_memory, release_memory
from vkmnn.runtime.drivers.vulkan.tables import TEXEL_FORMATS
from vkmnn.runtime.memory import MemoryKind
from vkmnn.runtime.shader import TEXEL_SIZES

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.vulkan.owner import Owner
    from vkmnn.runtime.memory import BufferRange

GENERAL = 1  # VK_IMAGE_LAYOUT_GENERAL
_USAGE = 0x1 | 0x2 | 0x4 | 0x8  # TRANSFER_SRC | TRANSFER_DST | SAMPLED | STORAGE
_COLOR = 1  # VK_IMAGE_ASPECT_COLOR_BIT
_2D = 1  # VK_IMAGE_TYPE_2D, VK_IMAGE_VIEW_TYPE_2D


class VulkanImage(DriverBuffer):
    """A VkImage, its memory and its view. `number` is 0: no buffer descriptor can name it."""

    __slots__ = (
        "__weakref__",
        "_device",
        "_finalizer",
        "_handles",
        "_memory",
        "_view",
        "height",
        "image",
        "number",
        "row_bytes",
        "texel_format",
        "width",
    )

    def __init__(self, device: Owner, width: int, height: int, texel_format: str) -> None:
        self.width, self.height, self.texel_format = width, height, texel_format
        self.row_bytes = width * TEXEL_SIZES[texel_format]
        self.nbytes = self.row_bytes * height
        self.empty_offset = self.number = 0
        self.host = None
        self.coherent = True
        self._device = device
        self._handles = Handles(device)
        limit = device.info.limits.max_allocation_bytes
        if self.nbytes > limit:
            raise OutOfDeviceMemoryError(
                f"an image of {self.nbytes} bytes exceeds the device's limit of {limit} bytes",
                hint="split the tensor, or run a smaller batch",
            )
        self._finalizer = device.own(
            self, "images", release_memory, self._handles, device.heap_claims, nbytes=self.nbytes
        )
        try:
            self._make()
        except BaseException:
            device.release(self._finalizer)
            raise

    def _make(self) -> None:
        device, handles = self._device, self._handles
        memory = handles.cell("VkDeviceMemory")  # the first, to be freed last
        info = struct(
            "VkImageCreateInfo",
            lib.VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO,
            imageType=_2D,
            format=TEXEL_FORMATS[self.texel_format],
            mipLevels=1,
            arrayLayers=1,
            samples=1,
            usage=_USAGE,
        )
        info.extent.width, info.extent.height, info.extent.depth = self.width, self.height, 1
        self.image = handles.create("VkImage", info)
        requirements = ffi.new("VkMemoryRequirements *")
        lib.vkGetImageMemoryRequirements(device.handle, self.image, requirements)
        self._memory, _ = allocate_memory(
            device, handles, requirements, MemoryKind.WEIGHTS, memory, linear=False
        )
        device.check(
            lib.vkBindImageMemory(device.handle, self.image, self._memory, 0), "vkBindImageMemory"
        )
        view = struct(
            "VkImageViewCreateInfo",
            lib.VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
            image=self.image,
            viewType=_2D,
            format=TEXEL_FORMATS[self.texel_format],
        )
        fill_range(view.subresourceRange)
        self._view = address(handles.create("VkImageView", view))

    def image_view(self, texel_format: str) -> int:
        """Return the VkImageView as an integer.

        Raises:
            InvalidInputError: the image holds texels of another format.
        """
        if texel_format != self.texel_format:
            raise InvalidInputError(
                f"the binding needs an image of {texel_format}, not of {self.texel_format}"
            )
        return self._view

    def rows(self, own: BufferRange, other: BufferRange) -> Any:
        """Return the VkBufferImageCopy between rows of this image and bytes of a buffer."""
        region = ffi.new("VkBufferImageCopy *")
        region.bufferOffset = other.offset
        region.imageSubresource.aspectMask = _COLOR
        region.imageSubresource.layerCount = 1
        region.imageOffset.y = own.offset // self.row_bytes
        region.imageExtent.width = self.width
        region.imageExtent.height = own.nbytes // self.row_bytes
        region.imageExtent.depth = 1
        return region

    def flush(self) -> None:
        pass

    def invalidate(self) -> None:
        pass

    def destroy(self) -> None:
        self._device.release(self._finalizer)


def fill_range(subresources: Any) -> None:
    """Select all of a 2-D image."""
    subresources.aspectMask = _COLOR
    subresources.levelCount = subresources.layerCount = 1
