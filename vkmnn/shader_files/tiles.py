"""Tile sizes of matrix products, for unrolling in templates and for choosing kernels.

A template asks for the tile that its axis `tile` names (`shared_tile`, `dot_tile`, `coop_tile`);
`vulkan/gemm` ranks the same objects.
"""

from __future__ import annotations

import re

from vkmnn.base.records import dataclass

VEC4_BYTES = 16
# Groups of small tiles, at least, which follow another rule.
SMALL = 8
# Lengths of steps that are not sixteen for each group.
DEPTHS = {(32, 32, 1): 32, (40, 32, 8): 64, (32, 32, 8): 64, (16, 16, 16): 128}


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A tile of results whose operands are staged in shared memory (`include/staged.glsl.j2`).

    `groups` of invocations share each step along K.
    """

    rows: int
    columns: int
    groups: int = 1

    @classmethod
    def parse(cls, text: str) -> SharedTile:
        """Return the tile that a value of the axis `tile` names: "64x64" or "64x32x2"."""
        return cls(*map(int, text.split("x")))

    @property
    def label(self) -> str:
        """The value of the axis `tile`."""
        return f"{self.rows}x{self.columns}" + (f"x{self.groups}" if self.groups > 1 else "")

    @property
    def small(self) -> bool:
        """Whether many groups share a step."""
        return self.groups >= SMALL

    @property
    def each(self) -> tuple[int, int]:
        """Rows and columns of the results that an invocation computes."""
        down = 8 if self.rows > 32 or self.small else 4
        wide = self.columns > 16 if self.small else self.rows > 64 and self.columns > 32
        return down, 8 if wide else 4

    @property
    def members(self) -> int:
        """Invocations of a group."""
        down, across = self.each
        return self.rows * self.columns // (down * across)

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        return self.members * self.groups

    @property
    def depth(self) -> int:
        """Length of a step along K."""
        return DEPTHS.get((self.rows, self.columns, self.groups), 16 * self.groups)

    @property
    def stage(self) -> int:
        """Vec4s of a step in shared memory: of the left operand, with one of padding, and right."""
        return self.depth * (self.rows // 4 + 1 + self.columns // 4)

    @property
    def owners(self) -> int:
        """Groups that have results once all have met."""
        return min(self.groups, self.each[0])

    @property
    def met(self) -> int:
        """Vec4s in which sums of float16 arithmetic meet."""
        return (self.owners - 1) * self.each[0] * self.members


@dataclass(frozen=True, slots=True)
class DotTile:
    """A tile of sums of four bytes a word (`conv_dot`); an invocation makes four columns."""

    rows: int
    columns: int

    @classmethod
    def parse(cls, text: str) -> DotTile:
        """Return the tile that a value of the axis `tile` names: "64x64"."""
        return cls(*map(int, text.split("x")))

    @property
    def each(self) -> tuple[int, int]:
        """Rows and columns of the results that an invocation computes."""
        return 8 if self.rows > 32 else 4, 4

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        down, across = self.each
        return self.rows * self.columns // (down * across)

    @property
    def depth(self) -> int:
        """Words of a step along K."""
        return 16

    @property
    def stage(self) -> int:
        """Vec4s of a step in shared memory."""
        return self.depth * (self.rows // 4 + 1 + self.columns // 4)


@dataclass(frozen=True, slots=True)
class MatrixSize:
    """Cooperative matrices M x K by K x N that a subgroup of `subgroup` invocations multiplies.

    Elements have two bytes where they are float16, and one where they are whole numbers.
    """

    m: int
    n: int
    k: int
    subgroup: int
    element_bytes: int = 2

    @property
    def name(self) -> str:
        """Name as a template axis."""
        return f"m{self.m}x{self.n}x{self.k}s{self.subgroup}"


DEFAULT_MATRIX = "m16x16x16s32"
"""Matrices of tiles that name none."""
MAX_SHARED = 49_152
"""Shared memory that a template asks for at most where subgroups have 32 invocations."""
MAX_SHARED_SMALL = 32_768
"""The same where they are smaller, as devices with small matrices have less."""

AHEAD = 128 * 128
"""Results of the smallest tiles that fill the other buffer before they multiply."""
MAX_FLIGHT = 8
"""Matrices of the right operand that a subgroup loads ahead of their use, at most."""

_COOP = re.compile(r"(\d+)x(\d+)w(\d+)x(\d+)k(\d+)(l2|f)?m(\d+)x(\d+)x(\d+)s(\d+)")


@dataclass(frozen=True, slots=True)
class CoopTileSize:
    """A tile of results by cooperative matrices (`include/coop.glsl.j2`).

    A subgroup makes `sub_rows` by `sub_columns` of them, as products of `matrix`; `groups` of
    subgroups share each `step` along K. With two `limbs`, operands are float32, and each number is
    staged as two float16 numbers. With `fragments`, the right operand is stored matrix by matrix,
    and loaded without shared memory.
    """

    rows: int
    columns: int
    step: int
    sub_rows: int
    sub_columns: int
    groups: int
    matrix: MatrixSize
    limbs: int = 1
    fragments: bool = False

    @property
    def label(self) -> str:
        """The value of the axis `tile`."""
        size = self.matrix.name if self.matrix.element_bytes == 1 else self._matrix_label
        kind = "l2" if self.limbs == 2 else "f" if self.fragments else ""
        part = f"w{self.sub_rows}x{self.sub_columns}k{self.groups}"
        return f"{self.rows}x{self.columns}{part}{kind}{size}"

    @property
    def _matrix_label(self) -> str:
        return "" if self.matrix.name == DEFAULT_MATRIX else self.matrix.name

    @property
    def each(self) -> int:
        """Elements of an operand in a uvec4."""
        return VEC4_BYTES // self.matrix.element_bytes

    @property
    def subgroups(self) -> tuple[int, int]:
        """Subgroups of a group down and across."""
        return self.rows // self.sub_rows, self.columns // self.sub_columns

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        down, across = self.subgroups
        return self.matrix.subgroup * down * across * self.groups

    @property
    def max_shared(self) -> int:
        """The most bytes of shared memory that the template asks for."""
        return MAX_SHARED if self.matrix.subgroup == 32 else MAX_SHARED_SMALL

    def stage(self, step: int) -> int:
        """Return the vec4s of a step in shared memory, one of padding in each row."""
        staged = self.rows + (0 if self.fragments else self.columns)
        return self.limbs * staged * (step // self.each + 1)

    def flight(self, step: int) -> int:
        """Return how many matrices along K a subgroup loads ahead of their use in a step."""
        of_step = step // (self.matrix.k * self.groups)
        most = max(MAX_FLIGHT * self.matrix.n // self.sub_columns, 1)
        counts = range(min(of_step, most), 0, -1)
        return next((count for count in counts if of_step % count == 0), 1)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a step."""
        return VEC4_BYTES * self.stage(self.step)

    @property
    def buffers(self) -> int:
        """Number of steps in shared memory at once."""
        return 2 if 2 * self.stage_bytes <= self.max_shared else 1

    @property
    def ahead(self) -> bool:
        """Whether a step lies in shared memory before the one before it is multiplied.

        Then only barriers delay large float16 tiles.
        """
        large = self.rows * self.columns >= AHEAD and self.matrix.element_bytes > 1
        return large and self.buffers == 2 and not self.fragments

    @property
    def sum_pitch(self) -> int:
        """Vec4s of a row of sums in shared memory, one of padding."""
        return self.columns // 4 + 1

    @property
    def sum_row(self) -> int:
        """Vec4s of the sums of one row of matrices of every subgroup."""
        return self.groups * self.subgroups[0] * self.matrix.m * self.sum_pitch


HALO_TAPS = 9
HALO_DEPTH = 16


class HaloStage:
    """Shared memory of a convolution of 3 x 3 taps, mixed into the sizes of a tile.

    A step holds HALO_DEPTH channels of the tile's pixels and those around them, and the weights of
    all taps. A matrix has neighbouring pixels of a row; the smallest patch of a tile is one matrix
    wide.
    """

    __slots__ = ()
    rows: int
    columns: int
    invocations: int
    matrix: MatrixSize

    @property
    def lefts(self) -> int:
        """Pairs of channel blocks that an invocation loads per step, one of a pixel each."""
        pixels = (self.rows // self.matrix.m + 2) * (self.matrix.m + 2)
        return -(-pixels * HALO_DEPTH // 8 // self.invocations)

    @property
    def patch(self) -> int:
        """Pixels in shared memory."""
        return self.lefts * self.invocations * 8 // HALO_DEPTH

    @property
    def pixel_pitch(self) -> int:
        """Vec4s of a pixel in shared memory, one of padding."""
        return HALO_DEPTH // 8 + 1

    def stage(self, step: int) -> int:
        """Return the vec4s of a step in shared memory."""
        return self.patch * self.pixel_pitch + self.columns * (step // 8 + 1)


@dataclass(frozen=True, slots=True)
class HaloTileSize(HaloStage, CoopTileSize):
    """A tile of `conv_halo_coop`."""


def parse_halo(text: str) -> HaloTileSize:
    """Return the tile of `conv_halo_coop` that the axis `tile` names.

    Raises:
        ValueError: the text names none.
    """
    size = parse_coop(text, HALO_TAPS * HALO_DEPTH, 2)
    return HaloTileSize(**{name: getattr(size, name) for name in CoopTileSize.__dataclass_fields__})


def parse_coop(text: str, step: int, element_bytes: int) -> CoopTileSize:
    """Return the tile that the axes `tile` and `step` name: "64x32w16x16k1m8x8x8s8".

    Raises:
        ValueError: the text names none.
    """
    match = _COOP.fullmatch(text if "m" in text else text + DEFAULT_MATRIX)
    if match is None:
        raise ValueError(f"'{text}' names no tile of cooperative matrices")
    *numbers, kind = (*match.groups()[:5], *match.groups()[6:], match.group(6))
    rows, columns, sub_rows, sub_columns, groups, *size = map(int, numbers)
    matrix = MatrixSize(size[0], size[1], size[2], size[3], element_bytes)
    of_tile = rows, columns, step, sub_rows, sub_columns, groups, matrix
    return CoopTileSize(*of_tile, limbs=2 if kind == "l2" else 1, fragments=kind == "f")
