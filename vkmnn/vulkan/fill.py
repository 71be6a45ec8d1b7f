"""Filling a tensor with one value."""

from __future__ import annotations

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.storage import stored_dtype, stored_word, vec4_count
from vkmnn.vulkan.windows import flat_windows


def encode_fill(output: Tensor, value: float, encoder: VulkanEncoder) -> None:
    """Record one dispatch that sets every element to `value`, which the element type can hold."""
    # A word holds one element, or two of fp16.
    bits = int(np.full(2, value).astype(stored_dtype(output)).view(np.uint32)[0])
    shader = kernels.fill(element=stored_word(output))
    for (part,) in flat_windows((output,), encoder.info.limits.max_storage_buffer_range, encoder):
        count = vec4_count(part)
        encoder.dispatch_linear(shader, [part], kernels.FillParams(count=count, bits=bits), count)
