"""Weights of convolutions: views, and packed forms for kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div

BYTE = np.iinfo(np.int8)


@dataclass(slots=True)  # not frozen, which would take twice as long: plans create hundreds
class Weights:
    """The weights of a convolution: a tensor with its view as [O, C/group, kd, kh, kw].

    `key` names the view; `view` must only move elements. `shift`: the weights are constants that
    kernels read as bytes, four to a word, and add this to; None for floats.
    """

    tensor: Tensor
    key: str
    view: Callable[[Array], Array]
    shift: int | None = None

    def seen_as(self, key: str, view: Callable[[Array], Array]) -> Weights:
        """Return the weights with a further view on top of this one."""
        before = self.view
        key = f"{self.key}:{key}"
        return Weights(self.tensor, key, lambda plain: view(before(plain)), self.shift)

    def as_floats(self, key: str, view: Callable[[Array], Array]) -> Weights:
        """Return the result of `view` on the weights as floats."""
        return replace(self.seen_as(key, view), shift=None)

    def packed(
        self, form: str, pack: Callable[[Array], Array], encoder: VulkanEncoder, elements: int = 0
    ) -> Tensor:
        """Return the weights in a packed form.

        Constants are packed once; computed weights in every run, on the device.

        Args:
            form: name of the packed form.
            pack: packs weights [O, C/group, taps]; must only move elements and add zeros.
            encoder: records the packing.
            elements: number of packed elements; 0 if unknown.
        """

        def repack(plain: Array) -> Array:
            seen = self.view(plain)
            return pack(seen.reshape(*seen.shape[:2], prod(seen.shape[2:])))

        key = f"conv:{self.key}:{form}"
        shift = self.shift
        if shift is not None:
            return encoder.constant(
                self.tensor,
                f"{key}:bytes{shift}",
                lambda plain: words_of(repack(plain), shift),
                words=elements // 4,
            )
        if self.tensor.value is not None:
            return encoder.constant(self.tensor, key, repack, words=elements)
        # Packing element indices shows the destination of each element.
        count = prod(self.tensor.shape)
        numbers = np.arange(1, count + 1, dtype=np.int32).reshape(self.tensor.shape)
        table = repack(numbers) - 1
        packed = encoder.scratch(table.size)
        encoder.dispatch_linear(
            kernels.conv_weight(element=encoder.element, load=encoder.load),
            [self.tensor, encoder.literal(f"{self.tensor.name}:{key}", table), packed],
            kernels.ConvWeightParams(count=table.size),
            table.size,
        )
        return packed


def shift_of(tensor: Tensor) -> int | None:
    """Return the shift from bytes to a tensor's values; None if bytes cannot represent them.

    It is 0 unless some values are outside the range of signed bytes, as with an odd zero point.
    """
    values = tensor.value
    if values is None or values.dtype.kind not in "iu":
        return None
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if high - low > BYTE.max - BYTE.min:
        return None
    return max(high - BYTE.max, 0) + min(low - BYTE.min, 0)


def words_of(values: Array, shift: int) -> Array:
    """Return values as words of four bytes along the last axis."""
    shifted = values if shift == 0 else values - shift
    words: Array = np.ascontiguousarray(shifted, np.int8).view(np.dtype("<i4"))
    return words


def packed_elements(groups: int, outputs: int, depth: int, taps: int, panel: int) -> int:
    """Return the packed elements of `outputs` rows of `depth` elements per group."""
    return groups * ceil_div(outputs, 4 * panel) * 4 * panel * depth * taps


def pack_panels(w: Array, panel: int, group: int) -> Array:
    """Pack weights [O, C/group, taps] as [group][panels][tap][C/group][panel][4].

    In every group, output channels are padded to whole panels of `panel` blocks of four, and input
    channels to whole blocks of four, with zeros.
    """
    return _pack(w, panel, group, ceil_div(w.shape[1], 4) * 4)


def pack_channels(w: Array) -> Array:
    """Pack weights [O, C/group, taps] as [O / 4][tap][C/group][4], with all groups as one."""
    return _pack(w, 1, 1, w.shape[1])


def _pack(w: Array, panel: int, groups: int, depth: int) -> Array:
    _, inputs, taps = w.shape
    outputs = w.shape[0] // groups
    width = panel * 4
    panels = ceil_div(outputs, width)
    padded = w.reshape(groups, outputs, inputs, taps)
    if (outputs, inputs) != (panels * width, depth):
        padded = np.zeros((groups, panels * width, depth, taps), w.dtype)
        padded[:, :outputs, :inputs] = w.reshape(groups, outputs, inputs, taps)
    # A view: the copy to device memory reorders the elements.
    split = padded.reshape(groups, panels, width, depth, taps)
    ordered: Array = split.transpose(0, 1, 4, 3, 2)
    return ordered


def bias_tensor(bias: Tensor | None, channels: int, encoder: VulkanEncoder) -> Tensor:
    """Return the bias; zeros if absent."""
    if bias is not None:
        return bias
    return encoder.zeros(channels)
