"""Filling a tensor with one value."""

from __future__ import annotations

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.storage import stored_dtype, vec4_count
from vkmnn.vulkan.windows import flat_windows

CODES_OF_WORD = 4


def encode_fill(output: Tensor, value: float, encoder: VulkanEncoder) -> None:
    """Record one dispatch that sets every element to a representable value."""
    bits = _word_of(output, value)
    shader = kernels.fill(element=output.element)
    for (part,) in flat_windows((output,), encoder.info.limits.max_storage_buffer_range, encoder):
        count = vec4_count(part) // (1 if part.codes is None else CODES_OF_WORD)
        encoder.dispatch_linear(shader, [part], kernels.FillParams(count=count, bits=bits), count)


def _word_of(output: Tensor, value: float) -> int:
    """Return the bits of a word of one element, two narrow elements, or four bytes."""
    if output.codes is None:
        elements = np.full(2, value).astype(stored_dtype(output))
    else:
        elements = np.full(CODES_OF_WORD, value - output.codes).astype(np.int8)
    return int(elements.view(np.uint32)[0])
