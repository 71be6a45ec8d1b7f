"""The problems: matrix products and convolutions by their sizes, all that rules look at.

The tuner keeps what it measured by their `repr`.
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import ClassVar, Literal

from vkmnn.base.records import dataclass
from vkmnn.vulkan.encoder import ceil_div
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.splitting.spatial import Triple

MAX_BATCH_AXES = 3
"""Batch axes over which kernels of matrix products go."""

Grouping = Literal["blocks", "depthwise", "odd"]
GROUPING_TRAITS: dict[Grouping, Trait] = {
    "blocks": Trait.NONE,
    "depthwise": Trait.DEPTHWISE,
    "odd": Trait.ODD_GROUPS,
}

PACKING_ROWS = 8
PACKING_COLUMNS = 256
PACKING_WORK = 6_000_000


@dataclass(frozen=True, slots=True)
class Gemm:
    """Sizes of `batches` matrix products: rows by columns, with an inner axis of `k`."""

    rows: int
    columns: int
    k: int
    batches: int = 1

    @property
    def work(self) -> int:
        """How many numbers are multiplied."""
        return self.rows * self.columns * self.k * self.batches

    @property
    def pays_packing(self) -> bool:
        """Whether a CPU device gains more than it loses when the left operand is rewritten."""
        many = self.rows > PACKING_ROWS and self.columns >= PACKING_COLUMNS
        return many and self.work >= PACKING_WORK


@dataclass(frozen=True, slots=True)
class MatMulProblem:
    """A matrix product: batch axes with each operand's presence, rows, columns, inner size.

    `dtype` is the type of both operands in shaders. `plain`: the left operand could be read where
    it lies, as vec4s along k. `by_rows`: both could, or are constants, as rows along k of eight
    elements at a time. `constant`: the right operand is, so that it is packed only once.
    """

    batch: tuple[int, ...]
    a_batch: tuple[bool, ...]
    b_batch: tuple[bool, ...]
    m: int
    n: int
    k: int
    dtype: str = "f32"
    plain: bool = True
    by_rows: bool = True
    constant: bool = True

    what: ClassVar[str] = "matmul"
    """The kind of choice between its kernels."""
    needs: ClassVar[Trait] = Trait.NONE
    """What kernels must support besides what jobs need."""

    @property
    def is_empty(self) -> bool:
        """Whether the result has no elements."""
        return 0 in (self.m, self.n, *self.batch)

    @property
    def gemm(self) -> Gemm:
        """The sizes alone."""
        return Gemm(self.m, self.n, self.k, prod(self.batch))

    @property
    def matrices(self) -> tuple[int, int]:
        """How many matrices each operand holds."""
        a, b = (
            prod(size for size, here in zip(self.batch, present, strict=True) if here)
            for present in (self.a_batch, self.b_batch)
        )
        return a, b


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """A convolution of channel-blocked tensors; spatial triples are (depth, height, width).

    inputs and outputs are channels of one group. `out_size` is the grid of pixels to compute; pixel
    (n, z, y, x) goes to texel `out_offset + (n, z, y, x) · out_strides` of a channel block of
    `out_block` texels: so a transposed convolution writes one of its phases. `pad` may be negative.

    `phases`: several convolutions at once that differ only in weights, pads and first texel: by how
    much the pads of each fall short of `pad`, and how far from `out_offset` it begins.
    """

    batch: int
    group: int
    inputs: int
    outputs: int
    in_size: Triple
    out_size: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    pad: Triple
    out_strides: tuple[int, int, int, int]
    out_offset: int
    out_block: int
    phases: tuple[tuple[Triple, int], ...] = ()

    what: ClassVar[str] = "convolution"
    """The kind of choice between its kernels."""
    dtype: ClassVar[str] = "f32"
    """The type of x and the weights in shaders."""

    # What rankings ask for many times is worked out once.
    pixels: int = field(init=False, repr=False, compare=False)
    """Number of pixels to compute, over all images, of each phase."""
    channels: int = field(init=False, repr=False, compare=False)
    """Output channels of all groups."""
    taps: int = field(init=False, repr=False, compare=False)
    """Elements of the window."""
    in_blocks: int = field(init=False, repr=False, compare=False)
    """Blocks of four input channels of a group."""
    weight_groups: int = field(init=False, repr=False, compare=False)
    """Groups of weights: every group has some for each phase."""
    grouping: Grouping = field(init=False, repr=False, compare=False)
    """Where groups begin: with a channel block, with every channel, or elsewhere."""

    def __post_init__(self) -> None:
        """Work out what follows from the sizes."""
        inputs, outputs, group = self.inputs, self.outputs, self.group
        _set_pixels(self, self.batch * prod(self.out_size))
        _set_channels(self, group * outputs)
        _set_taps(self, prod(self.kernel))
        _set_in_blocks(self, -(-inputs // 4))
        _set_weight_groups(self, group * (len(self.phases) or 1))
        grouping: Grouping = "odd"
        if inputs == outputs == 1:
            grouping = "depthwise"
        elif group == 1 or (inputs % 4 == 0 and outputs % 4 == 0):
            grouping = "blocks"
        _set_grouping(self, grouping)

    @property
    def needs(self) -> Trait:
        """What kernels must support besides what jobs need."""
        trait = GROUPING_TRAITS[self.grouping]
        return trait | Trait.PHASES if self.phases else trait

    @property
    def is_empty(self) -> bool:
        """Whether the result has no elements."""
        return 0 in (self.pixels, self.channels)

    @property
    def padded(self) -> bool:
        """True when some tap of some pixel lies outside the input."""
        for lack, _ in self.phases or (((0, 0, 0), 0),):
            for i, size in enumerate(self.in_size):
                pad = self.pad[i] - lack[i]
                if pad > 0:
                    return True
                reach = (self.kernel[i] - 1) * self.dilation[i]
                if (self.out_size[i] - 1) * self.stride[i] - pad + reach >= size:
                    return True
        return False

    @property
    def work(self) -> int:
        """How many numbers are multiplied."""
        return self.pixels * self.outputs * self.weight_groups * self.inputs * self.taps

    def gemm(self, vector: int = 4) -> Gemm:
        """Return the convolution as a matrix product.

        Pixels are the rows, groups and phases the batches, and k counts the input channels of every
        tap, filled up to a multiple of `vector`.
        """
        k = self.taps * ceil_div(self.inputs, vector) * vector
        return Gemm(self.pixels, self.outputs, k, self.weight_groups)


_set_pixels, _set_channels, _set_taps, _set_in_blocks, _set_weight_groups, _set_grouping = (
    vars(ConvProblem)[name].__set__
    for name in ("pixels", "channels", "taps", "in_blocks", "weight_groups", "grouping")
)
