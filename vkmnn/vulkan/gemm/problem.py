"""Problems: matrix products and convolutions by their sizes, the only input of rules.

The tuner stores measurements under their `repr`.
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
"""Maximum batch axes of matrix product kernels."""

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
        """The number of multiplications."""
        return self.rows * self.columns * self.k * self.batches

    @property
    def pays_packing(self) -> bool:
        """Whether rewriting the left operand is worthwhile on a CPU device."""
        many = self.rows > PACKING_ROWS and self.columns >= PACKING_COLUMNS
        return many and self.work >= PACKING_WORK


@dataclass(frozen=True, slots=True)
class MatMulProblem:
    """A matrix product: batch axes with each operand's presence, rows, columns, inner size.

    `dtype` is the type of both operands in shaders. `plain`: the left operand can be read in place,
    as vec4s along k. `by_rows`: both can be read in place, or are constants, as rows along k in
    units of eight elements. `constant`: the right operand is constant, so that it is packed only
    once.
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
    """Traits that the problem itself needs, in addition to the job's."""

    @property
    def is_empty(self) -> bool:
        """Whether the result has no elements."""
        return 0 in (self.m, self.n, *self.batch)

    @property
    def gemm(self) -> Gemm:
        """The sizes only."""
        return Gemm(self.m, self.n, self.k, prod(self.batch))

    @property
    def matrices(self) -> tuple[int, int]:
        """The number of matrices of each operand."""
        a, b = (
            prod(size for size, here in zip(self.batch, present, strict=True) if here)
            for present in (self.a_batch, self.b_batch)
        )
        return a, b


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """A convolution of channel-blocked tensors; spatial triples are (depth, height, width).

    inputs and outputs are channels of one group. `out_size` is the grid of pixels to compute; pixel
    (n, z, y, x) is written to texel `out_offset + (n, z, y, x) · out_strides` of a channel block of
    `out_block` texels, so that a transposed convolution can write one of its phases. `pad` may be
    negative.

    `phases`: several convolutions at once that differ only in weights, pads and first texel: the
    decrease of each phase's pads from `pad`, and its offset from `out_offset`.
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

    # Derived values that rankings read many times.
    pixels: int = field(init=False, repr=False, compare=False)
    """Number of pixels to compute, over all images, per phase."""
    channels: int = field(init=False, repr=False, compare=False)
    """Output channels of all groups."""
    taps: int = field(init=False, repr=False, compare=False)
    """Elements of the window."""
    in_blocks: int = field(init=False, repr=False, compare=False)
    """Blocks of four input channels per group."""
    weight_groups: int = field(init=False, repr=False, compare=False)
    """Groups of weights: each group has one per phase."""
    grouping: Grouping = field(init=False, repr=False, compare=False)
    """Where groups start: at a channel block, at every channel, or elsewhere."""

    def __post_init__(self) -> None:
        """Compute the derived values."""
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
        """Traits that the problem itself needs, in addition to the job's."""
        trait = GROUPING_TRAITS[self.grouping]
        return trait | Trait.PHASES if self.phases else trait

    @property
    def is_empty(self) -> bool:
        """Whether the result has no elements."""
        return 0 in (self.pixels, self.channels)

    @property
    def padded(self) -> bool:
        """Whether any tap of any pixel is outside the input."""
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
        """The number of multiplications."""
        return self.pixels * self.outputs * self.weight_groups * self.inputs * self.taps

    def gemm(self, vector: int = 4) -> Gemm:
        """Return the convolution as a matrix product.

        Rows are pixels, batches are groups and phases, and k counts the input channels of every
        tap, padded to a multiple of `vector`.
        """
        k = self.taps * ceil_div(self.inputs, vector) * vector
        return Gemm(self.pixels, self.outputs, k, self.weight_groups)


_set_pixels, _set_channels, _set_taps, _set_in_blocks, _set_weight_groups, _set_grouping = (
    vars(ConvProblem)[name].__set__
    for name in ("pixels", "channels", "taps", "in_blocks", "weight_groups", "grouping")
)
