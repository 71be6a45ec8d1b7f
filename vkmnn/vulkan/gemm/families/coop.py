"""Cooperative matrices: float16 operands, float32 sums, in the sizes that the device supports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from math import lcm
from typing import ClassVar, cast

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.gemm.binding import Binding, bind_convolution, bind_matmul
from vkmnn.vulkan.gemm.coop_tiles import (
    TILES,
    VECTOR,
    CoopKernel,
    CoopTile,
    Matrix,
    coop_cost,
    product_tiles,
    timed_coop,
)
from vkmnn.vulkan.gemm.family import (
    Bid,
    ConvKernel,
    MatMulKernel,
    Place,
    kernel_family,
)
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.norm_binding import NormBinding
from vkmnn.vulkan.gemm.operands import Operand, rows_of
from vkmnn.vulkan.gemm.problem import ConvProblem, Gemm, MatMulProblem
from vkmnn.vulkan.gemm.split import dispatch_tiles
from vkmnn.vulkan.gemm.taps import places
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import packed_elements
from vkmnn.vulkan.splitting.spatial import Triple

# The tap table takes 16 bytes per eight products of an output: limited to a few megabytes.
MAX_TAP_PAIRS = 1 << 18
# A multiple of the pairs of each step.
STEP_PAIRS = lcm(*(tile.step // VECTOR for same in TILES for tile in same))
# Depth, height and width of taps are stored in 16 bits.
MAX_TAP = 1 << 15
# Channels of a block.
BLOCK = 4
# Cost of finding a tap, loading and rounding its channels: some two dozen instructions, each of
# which counts as a multiply-add.
TAP_FLOPS = 48
# A position outside of every input.
NOWHERE = 1 << 30


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulCoop(CoopKernel, MatMulKernel):
    """Products by cooperative matrices."""

    supports = Trait.PLAIN_IO
    reads_rows = True
    dtypes = frozenset({"f16"})

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Rank by `coop_tiles`, plus the time to pack an operand."""
        gemm = problem.gemm
        place = Place.TIMED if target.gpu else Place.EMULATED
        packing = 0.0 if problem.by_rows else packing_us(problem, target)
        info, total = target.info, target.weight_bytes
        for cost, kernel in timed_coop(gemm, info, total, tiles=product_tiles):
            yield Bid(cls(kernel.tile, kernel.parts), place, cost + packing)

    def predict(self, problem: MatMulProblem, target: Target) -> Expected:
        """Return the time by `coop_tiles`."""
        cost = coop_cost(self, problem.gemm, target.info, target.weight_bytes)
        return Expected(cost, problem.gemm.work, self.tile.done(problem.gemm))

    def pack(self, job: MatMulJob, encoder: VulkanEncoder) -> tuple[Operand, Operand]:
        """Return both operands as rows along k."""
        problem, across = job.problem, not job.transposed_b
        matrices = problem.matrices
        gain = job.norms.gain if job.norms else None
        return (
            rows_of(job.a, problem.m, problem.k, job.transposed_a, matrices[0], encoder),
            rows_of(job.b, problem.n, problem.k, across, matrices[1], encoder, gain),
        )

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        gemm = job.problem.gemm
        bound = bind_matmul(job, self.pack(job, encoder), encoder)
        shader = kernels.matmul_coop(
            tile=self.tile.name,
            step=self.tile.step,
            split=self.split,
            bits=0,
            aligned=4 if gemm.columns % 4 == 0 else 1,
        )
        k8 = ceil_div(gemm.k, VECTOR)
        walk = self.walk(gemm)
        norms = NormBinding.of(job, bound, encoder)
        sizes = bound.sizes | {"k4": k8 * VECTOR // 4} | walk | norms.sizes
        dispatch_tiles(
            shader,
            bound.tensors if self.split else [*bound.tensors, norms.folded, *norms.kept],
            kernels.MatmulCoopParams(**sizes),
            {
                **bound.spec,
                **norms.spec,
                **norms.kept_spec,
                "TAIL": k8 * VECTOR % self.tile.step != 0,
            },
            encoder,
            tiles=walk["tiles"],
            parts=self.parts,
            part_elements=self.tile.part_elements,
        )


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvCoop(CoopKernel, ConvKernel):
    """Convolutions as implicit GEMM by cooperative matrices; k counts pairs of channel blocks."""

    supports = Trait.PLAIN_IO | Trait.PHASES
    dtypes = frozenset({"f16"})

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by `coop_tiles`, if the tap table can represent the window."""
        return cls.ranked(problem, target)

    @classmethod
    def ranked(
        cls,
        problem: ConvProblem,
        target: Target,
        tiles: Callable[[Matrix], Iterable[CoopTile]] | None = None,
    ) -> Iterator[Bid[ConvKernel]]:
        """Return the kernels of a class, by time; `tiles`: as for `timed_coop`."""
        gemm = cls.gemm(problem)
        lacks = [lack for lack, _ in problem.phases] or [(0, 0, 0)]
        reach = [
            (k - 1) * step + max(lack)
            for k, step, *lack in zip(problem.kernel, problem.dilation, *lacks, strict=True)
        ]
        if gemm.k > VECTOR * MAX_TAP_PAIRS or max(reach) >= MAX_TAP:
            return
        place = Place.TIMED if target.gpu else Place.EMULATED
        info, total, words = target.info, target.weight_bytes, cls.word_flops(problem)
        needed = problem.work
        for cost, kernel in timed_coop(
            gemm, info, total, needed=needed, word_flops=words, tiles=tiles
        ):
            yield Bid(cls(kernel.tile, kernel.parts), place, cost)

    @staticmethod
    def gemm(problem: ConvProblem) -> Gemm:
        """Return the product that the tiles divide."""
        return problem.gemm(VECTOR)

    @staticmethod
    def word_flops(problem: ConvProblem) -> float:
        """Return the cost of finding and packing four elements, in addition to loads of blocks."""
        return 0.0

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the time by `coop_tiles`."""
        gemm, words = self.gemm(problem), self.word_flops(problem)
        cost = coop_cost(self, gemm, target.info, target.weight_bytes, word_flops=words)
        return Expected(cost, problem.work, self.tile.done(gemm))

    @property
    def panel(self) -> int:
        """The columns of a tile."""
        return self.tile.columns // 4

    @property
    def form(self) -> str:
        """The single packed form of all tiles."""
        return "coop"

    def pack(self, w: Array, group: int) -> Array:
        """Return weights as `pack_rows` does; input channels are padded to pairs of blocks."""
        return pack_rows(w, group, VECTOR)

    def elements(self, problem: ConvProblem) -> int:
        """Return the number of elements of the packed weights."""
        depth = ceil_div(problem.inputs, VECTOR) * VECTOR
        return packed_elements(problem.weight_groups, problem.outputs, depth, problem.taps, 1)

    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        problem = job.problem
        gemm = self.gemm(problem)
        bound = bind_convolution(job, self, encoder)
        shader = kernels.conv_coop(
            tile=cast(kernels.ConvCoopTile, self.tile.name),
            step=cast(kernels.ConvCoopStep, self.tile.step),
            split=self.split,
        )
        tail = gemm.k % self.tile.step != 0
        padded = problem.padded or tail or problem.in_blocks % 2 != 0
        one_tap = problem.kernel == (1, 1, 1) and not problem.phases
        x, weights, bias, residual, y = bound.tensors
        taps = weights if one_tap else self.taps(problem, bound, encoder)
        walk = self.walk(gemm)
        sizes = bound.sizes | walk
        dispatch_tiles(
            shader,
            [x, weights, taps, bias, residual, y],
            kernels.ConvCoopParams(k8=gemm.k // VECTOR, phases=len(problem.phases), **sizes),
            {
                **bound.spec,
                **index_spec(shader, problem.pixels),
                "TAIL": tail,
                "PADDED": padded,
                "ONE_TAP": one_tap,
                "PHASED": bool(problem.phases),
                **self.more_spec(problem),
            },
            encoder,
            tiles=walk["tiles"],
            parts=self.parts,
            part_elements=self.tile.part_elements,
        )

    def more_spec(self, problem: ConvProblem) -> dict[str, int]:
        """Return further specialization constants."""
        return {}

    def taps(
        self, problem: ConvProblem, bound: Binding, encoder: VulkanEncoder, entries: int = 1
    ) -> Tensor:
        """Return the tap table, with `entries` for a uvec4 along K."""
        in_block = bound.sizes["in_block"]
        sizes = problem.kernel, problem.dilation, problem.in_size
        whole = STEP_PAIRS * entries
        table = tap_table(*sizes, problem.in_blocks, in_block, problem.phases, whole)
        return encoder.literal("coop taps", table)


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvTaps(ConvCoop):
    """Windows over at most four channels, whose taps fill K without further padding.

    K counts 1, 2 or 4 channels for each tap: 25 taps of one channel take 32 elements, not 200.
    """

    family: ClassVar[str] = "taps"
    supports = Trait.PLAIN_IO

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by `coop_tiles`, for windows of few channels."""
        if problem.group == 1 and 0 < problem.inputs <= BLOCK and problem.taps > 1:
            return cls.ranked(problem, target)
        return iter(())

    @staticmethod
    def gemm(problem: ConvProblem) -> Gemm:
        """Return the product; K is padded to whole uvec4s."""
        k = ceil_div(problem.taps * _channels(problem.inputs), VECTOR) * VECTOR
        return Gemm(problem.pixels, problem.outputs, k)

    @staticmethod
    def word_flops(problem: ConvProblem) -> float:
        """Return the cost of finding and packing the taps of four elements."""
        return BLOCK * TAP_FLOPS / _channels(problem.inputs)

    @property
    def form(self) -> str:
        """The single packed form of all tiles."""
        return "taps"

    def pack(self, w: Array, group: int) -> Array:
        """Return weights [O, C, taps] as [O][tap][C], padded to blocks and whole uvec4s."""
        outputs, inputs, taps = w.shape
        channels = _channels(inputs)
        padded = np.pad(w, ((0, -outputs % BLOCK), (0, channels - inputs), (0, 0)))
        rows = padded.transpose(0, 2, 1).reshape(len(padded), taps * channels)
        return np.pad(rows, ((0, 0), (0, -rows.shape[1] % VECTOR)))

    def elements(self, problem: ConvProblem) -> int:
        """Return the number of elements of the packed weights."""
        return ceil_div(problem.outputs, BLOCK) * BLOCK * self.gemm(problem).k

    def more_spec(self, problem: ConvProblem) -> dict[str, int]:
        """Return the channels of a tap."""
        return {"TAPS": _channels(problem.inputs)}

    def taps(
        self, problem: ConvProblem, bound: Binding, encoder: VulkanEncoder, entries: int = 0
    ) -> Tensor:
        """Return the tap table, an entry per tap."""
        each = VECTOR // _channels(problem.inputs)
        return ConvCoop.taps(self, problem, bound, encoder, each)


def _channels(inputs: int) -> int:
    """Return the elements of a tap: a power of two, so that they lie in one uvec4."""
    return 1 << (inputs - 1).bit_length()


def packing_us(problem: MatMulProblem, target: Target) -> float:
    """Return the estimated time to pack the larger operand into rows along k."""
    matrices = problem.matrices
    elements = max(matrices[0] * problem.m, matrices[1] * problem.n) * problem.k
    packed = pass_cost(2 * target.element_bytes * elements, target.info)
    return packed.total + class_of(target.info).gap_us


def pack_rows(w: Array, group: int, vector: int) -> Array:
    """Pack weights [O, C/group, taps] as [group][O/group][tap][C/group].

    Output channels are padded to whole blocks of four, input channels to a multiple of `vector`.
    """
    _, inputs, taps = w.shape
    outputs = w.shape[0] // group
    split = w.reshape(group, outputs, inputs, taps)
    padding = ((0, 0), (0, -outputs % 4), (0, -inputs % vector), (0, 0))
    padded = np.pad(split, padding) if any(map(any, padding)) else split
    ordered: Array = padded.transpose(0, 1, 3, 2)
    return ordered


@lru_cache(maxsize=256)
def tap_table(
    kernel: Triple,
    dilation: Triple,
    in_size: Triple,
    blocks: int,
    in_block: int,
    phases: tuple[tuple[Triple, int], ...] = (),
    whole: int = STEP_PAIRS,
) -> Array:
    """Return the tap table of `conv_coop`, an entry per pair of channel blocks of a tap.

    Columns: distance in texels, distance to the second block (0 if there is none), depth, height ·
    65536 + width. After the last pair, entries outside the input fill up `whole` ones. Phases
    have one table each, followed by each phase's distance from the first texel. Cached, since plans
    share uploads by the array's identity.
    """
    if phases:
        alone = (kernel, dilation, in_size, blocks, in_block)
        return np.concatenate([*(_pairs(*alone, lack) for lack, _ in phases), places(phases)])
    table = _pairs(kernel, dilation, in_size, blocks, in_block, (0, 0, 0))
    outside = np.zeros((-len(table) % whole, 4), np.int32)
    outside[:, 2] = NOWHERE
    return np.concatenate([table, outside])


def _pairs(
    kernel: Triple, dilation: Triple, in_size: Triple, blocks: int, in_block: int, lack: Triple
) -> Array:
    positions = np.indices(kernel).reshape(3, -1).T * np.array(dilation) + lack
    _, height, width = in_size
    distance = positions @ np.array([height * width, width, 1])
    pairs = ceil_div(blocks, 2)
    table = np.zeros((len(positions), pairs, 4), np.int32)
    table[:, :, 0] = distance[:, None] + 2 * np.arange(pairs) * in_block
    table[:, :, 1] = np.where(2 * np.arange(pairs) + 1 < blocks, in_block, 0)
    table[:, :, 2] = positions[:, :1]
    table[:, :, 3] = positions[:, 1:2] << 16 | positions[:, 2:]
    return table.reshape(-1, 4)
