"""Cooperative matrices: float16 operands, float32 sums, in the sizes that the device supports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import lcm

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
from vkmnn.vulkan.gemm.coop_tiles import TILES, VECTOR, CoopKernel, coop_cost, timed_coop
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
from vkmnn.vulkan.gemm.problem import ConvProblem, MatMulProblem
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
        packing = 0.0 if problem.by_rows else _packing_us(problem, target)
        for cost, kernel in timed_coop(gemm, target.info, target.weight_bytes):
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
        gemm = problem.gemm(VECTOR)
        lacks = [lack for lack, _ in problem.phases] or [(0, 0, 0)]
        reach = [
            (k - 1) * step + max(lack)
            for k, step, *lack in zip(problem.kernel, problem.dilation, *lacks, strict=True)
        ]
        if gemm.k > VECTOR * MAX_TAP_PAIRS or max(reach) >= MAX_TAP:
            return
        place = Place.TIMED if target.gpu else Place.EMULATED
        info, total = target.info, target.weight_bytes
        for cost, kernel in timed_coop(gemm, info, total, needed=problem.work):
            yield Bid(cls(kernel.tile, kernel.parts), place, cost)

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the time by `coop_tiles`."""
        gemm = problem.gemm(VECTOR)
        cost = coop_cost(self, gemm, target.info, target.weight_bytes)
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
        gemm = problem.gemm(VECTOR)
        bound = bind_convolution(job, self, encoder)
        shader = kernels.conv_coop(tile=self.tile.name, step=self.tile.step, split=self.split)
        tail = gemm.k % self.tile.step != 0
        padded = problem.padded or tail or problem.in_blocks % 2 != 0
        one_tap = problem.kernel == (1, 1, 1) and not problem.phases
        x, weights, bias, residual, y = bound.tensors
        taps = weights if one_tap else _taps(problem, bound, encoder)
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
            },
            encoder,
            tiles=walk["tiles"],
            parts=self.parts,
            part_elements=self.tile.part_elements,
        )


def _packing_us(problem: MatMulProblem, target: Target) -> float:
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


def _taps(problem: ConvProblem, bound: Binding, encoder: VulkanEncoder) -> Tensor:
    in_block = bound.sizes["in_block"]
    sizes = problem.kernel, problem.dilation, problem.in_size
    table = tap_table(*sizes, problem.in_blocks, in_block, problem.phases)
    return encoder.literal("coop taps", table)


@lru_cache(maxsize=256)
def tap_table(
    kernel: Triple,
    dilation: Triple,
    in_size: Triple,
    blocks: int,
    in_block: int,
    phases: tuple[tuple[Triple, int], ...] = (),
) -> Array:
    """Return the tap table of `conv_coop`, an entry per pair of channel blocks of a tap.

    Columns: distance in texels, distance to the second block (0 if there is none), depth, height ·
    65536 + width. After the last pair, entries outside the input fill up the longest step. Phases
    have one table each, followed by each phase's distance from the first texel. Cached, since plans
    share uploads by the array's identity.
    """
    if phases:
        alone = (kernel, dilation, in_size, blocks, in_block)
        return np.concatenate([*(_pairs(*alone, lack) for lack, _ in phases), places(phases)])
    table = _pairs(kernel, dilation, in_size, blocks, in_block, (0, 0, 0))
    outside = np.zeros((-len(table) % STEP_PAIRS, 4), np.int32)
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
