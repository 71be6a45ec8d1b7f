"""Layout of a tensor in a 2-D image, and the devices that use images.

A texel holds four channels of a pixel. Rows of the image are rows of the tensor, those of all
images of the batch one below another, with the channel blocks side by side: N*H rows of W*ceil(C/4)
texels. If that is too wide for the device, every pixel has its own row: N*H*W rows of ceil(C/4)
texels. Tensors that fit neither way stay in a buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.shader import IMAGE_FORMATS

MIN_RANK, MAX_RANK = 2, 4

_TEXTURES = frozenset({"Qualcomm", "ARM", "Imagination"})
"""Vendors of GPUs that access memory mainly through a texture cache."""


@dataclass(frozen=True, slots=True)
class Place:
    """Layout of a tensor in an image: `columns` are the tensor's; see the module."""

    batch: int
    blocks: int
    rows: int
    columns: int
    folded: bool

    @property
    def width(self) -> int:
        """Texels of a row of the image."""
        return self.blocks if self.folded else self.blocks * self.columns

    @property
    def height(self) -> int:
        """Rows of the image."""
        rows = self.batch * self.rows
        return rows * self.columns if self.folded else rows

    @property
    def texels(self) -> int:
        """Number of texels."""
        return self.width * self.height


def place_of(shape: Sequence[int], limit: int) -> Place | None:
    """Return the layout of a tensor in an image; None for tensors in buffers.

    Args:
        shape: [N, C], [N, C, W] or [N, C, H, W].
        limit: the maximum number of texels along an axis of an image; 0 without images.
    """
    if not MIN_RANK <= len(shape) <= MAX_RANK or 0 in shape:
        return None
    batch, channels = shape[:2]
    rows, columns = (1,) * (MAX_RANK - len(shape)) + tuple(shape[2:])
    for folded in (False, True):
        place = Place(batch, -(-channels // 4), rows, columns, folded)
        if max(place.width, place.height) <= limit:
            return place
    return None


def image_size(info: DeviceInfo, storage: str, element: FloatElement = "f32") -> int:
    """Return the maximum texels along an axis of an image; 0 if images are not used.

    Args:
        info: the device.
        storage: "image", "buffer", or "auto" for the form that suits the device.
        element: how floats are stored; images hold only some.
    """
    if FLOATS[element].image not in IMAGE_FORMATS:
        return 0
    wanted = storage == "image" or (storage == "auto" and info.vendor in _TEXTURES)
    return info.limits.max_image_dimension if wanted and "images" in info.features else 0
