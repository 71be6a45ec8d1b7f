"""Dynamic quantisation: quantise the activation at run time, dequantise the accumulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation, DType, storage_elements
from vkmnn.ir.ops import NO_ACTIVATION
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div

MIDDLE = 128
"""Offset of values quantised to bytes."""


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Quantisation of an operand, and the factors for the product.

    `scale`, `point`: one number each. `constants`: factors by channel, then biases, in whole vec4s.
    `ends`: the kernel's bias binding, derived from all of these: zeros in place of biases, factors
    times the scale, the biases, and the constants that dequantise bytes. `activation` is applied
    last.
    """

    scale: Tensor
    point: Tensor
    constants: Tensor
    ends: Tensor
    blocks: int
    activation: Activation = NO_ACTIVATION

    SPEC: ClassVar[Mapping[str, int | bool]] = {"SCALED": True}
    """Specialization constants of byte kernels for this epilogue."""

    @classmethod
    def of(
        cls,
        inputs: tuple[Tensor, Tensor],
        factor: Tensor,
        bias: Tensor | None,
        channels: int,
        activation: Activation,
        encoder: VulkanEncoder,
    ) -> Dynamic:
        """Return the quantisation for a scale and a zero point."""
        blocks = ceil_div(channels, 4)
        packed = np.zeros((2, 4 * blocks), np.float32)
        for row, tensor in zip(packed, (factor, bias), strict=True):
            if tensor is not None:
                assert tensor.value is not None
                row[:channels] = tensor.value.reshape(-1)
        name = f"ends:{factor.name}:{bias.name if bias else ''}:{channels}"
        constants = encoder.literal(name, packed.reshape(-1))
        ends = encoder.scratch(4 * (3 * blocks + 1), full=True)
        return cls(*inputs, constants, ends, blocks, activation)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Quantised values in tiles: number of ivec4s, rows, fours along K, and kernel constants.

    If the values are in the original order, `vectors` counts all vec4s.
    """

    count: int
    rows: int
    vectors: int
    spec: dict[str, int]


def code_numbers(x: Tensor, dynamic: Dynamic, encoder: VulkanEncoder) -> Tensor:
    """Return q - zero_point, in float32, in the order of the input."""
    vectors = _vectors(x)
    made = encoder.scratch(4 * vectors, full=True)
    _dispatch("rows", x, made, dynamic, Tiles(ceil_div(vectors, 4), 0, vectors, {}), encoder)
    return made


def code_words(x: Tensor, dynamic: Dynamic, encoder: VulkanEncoder) -> Tensor:
    """Return quantised values as bytes, four to a word, in input order."""
    vectors = _vectors(x)
    count = ceil_div(vectors, 4)
    made = replace(encoder.scratch(16 * count, full=True), codes=0)
    _dispatch("words", x, made, dynamic, Tiles(count, 0, vectors, {}), encoder)
    return made


def code_tiles(x: Tensor, dynamic: Dynamic, tiles: Tiles, encoder: VulkanEncoder) -> Tensor:
    """Return quantised rows as words of four bytes, tile by tile."""
    made = encoder.scratch(4 * tiles.count, DType.INT32)
    _dispatch("tile", x, made, dynamic, tiles, encoder)
    return made


def _vectors(x: Tensor) -> int:
    return ceil_div(storage_elements(x.shape, x.layout), 4)


def _dispatch(
    form: kernels.DynamicCodesForm,
    x: Tensor,
    made: Tensor,
    dynamic: Dynamic,
    tiles: Tiles,
    encoder: VulkanEncoder,
) -> None:
    load = "texel" if form == "tile" else encoder.load
    shader = kernels.dynamic_codes(form=form, load=load)
    tensors = [x, dynamic.scale, dynamic.point, dynamic.constants, made, dynamic.ends]
    params = kernels.DynamicCodesParams(
        count=tiles.count, rows=tiles.rows, vectors=tiles.vectors, blocks=dynamic.blocks
    )
    count = max(tiles.count, 3 * dynamic.blocks + 1)
    encoder.dispatch_linear(shader, tensors, params, count, tiles.spec)
