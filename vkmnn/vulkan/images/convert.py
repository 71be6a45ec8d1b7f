"""Copies between images and buffers, plain or channel-blocked."""

from __future__ import annotations

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.images.place import place_of


def convert_image(source: Tensor, output: Tensor, encoder: VulkanEncoder) -> None:
    """Record the copy of a tensor into or out of an image; both store floats alike."""
    into = output.layout is Layout.IMAGE
    place = place_of(output.shape, encoder.info.limits.max_image_dimension)
    assert place is not None, f"{output.name} is in no image"
    shader = kernels.image_convert(dest="image" if into else "buffer", element=source.element)
    params = kernels.ImageConvertParams(
        count=place.texels,
        rows=place.batch * place.rows,
        height=place.rows,
        width=place.columns,
        channels=output.shape[1],
    )
    other = source if into else output
    spec = {"BLOCKED": other.layout is Layout.NC4HW4, "FOLDED": place.folded}
    encoder.dispatch_linear(shader, [source, output], params, place.texels, spec)
