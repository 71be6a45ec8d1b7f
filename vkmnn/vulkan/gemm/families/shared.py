"""Tiles in shared memory: both operands are staged, for float32 arithmetic on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeVar, cast

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.shader import Shader
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.encoder import VulkanEncoder, index_spec
from vkmnn.vulkan.gemm.binding import bind_convolution, bind_matmul
from vkmnn.vulkan.gemm.family import (
    Bid,
    ConvKernel,
    MatMulKernel,
    Place,
    kernel_family,
)
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.norm_binding import NormBinding
from vkmnn.vulkan.gemm.operands import conv_element, weight_element
from vkmnn.vulkan.gemm.problem import ConvProblem, Gemm, MatMulProblem
from vkmnn.vulkan.gemm.shared_tiles import (
    NARROW,
    TILES,
    SharedKernel,
    Tile,
    listed_shared,
    room_of,
    shared_cost,
    timed_shared,
)
from vkmnn.vulkan.gemm.split import dispatch_tiles
from vkmnn.vulkan.gemm.taps import places
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.splitting.spatial import Triple

K = TypeVar("K", covariant=True)

# The tap table takes 16 bytes per four products of an output: limited to a few megabytes.
MAX_TAP_BLOCKS = 1 << 18


@lru_cache(maxsize=512)
def _emulated(
    kind: Callable[[Tile, int], K], k: int, room: tuple[int, int], narrow: bool
) -> tuple[Bid[K], ...]:
    """Return a few kernels for devices that emulate shared memory, where speed does not matter."""
    listed = listed_shared(k, room, narrow=narrow)
    made = (kind(kernel.tile, kernel.parts) for kernel in listed)
    return tuple(Bid(kernel, Place.EMULATED, cost) for cost, kernel in enumerate(made))


def _timed(
    kind: Callable[[Tile, int], K],
    gemm: Gemm,
    target: Target,
    *,
    pixels: bool,
    padded: bool = False,
) -> Iterable[Bid[K]]:
    if not target.gpu:
        return _emulated(kind, gemm.k, room_of(target.info), pixels)
    tiles = (*TILES, *NARROW) if pixels else TILES
    device = target.info, target.weight_bytes, target.element_bytes
    timed = timed_shared(gemm, *device, tiles, pixels=pixels, padded=padded)
    return [Bid(kind(kernel.tile, kernel.parts), Place.TIMED, cost) for cost, kernel in timed]


def _cost(
    kernel: SharedKernel, gemm: Gemm, target: Target, *, pixels: bool, padded: bool = False
) -> Cost:
    device = target.info, target.weight_bytes, target.element_bytes
    return shared_cost(kernel, gemm, *device, pixels=pixels, padded=padded)


def kernels_of(
    kind: Any,
    gemm: Gemm,
    target: Target,
    tiles: Sequence[Tile],
    *,
    pixels: bool = False,
    padded: bool = False,
) -> list[Bid[Any]]:
    """Return the kernels of a class other than those below, by time.

    On devices that emulate shared memory, they also come last.
    """
    device = target.info, target.weight_bytes, target.element_bytes
    timed = timed_shared(gemm, *device, tiles, pixels=pixels, padded=padded, kind=kind)
    place = Place.TIMED if target.gpu else Place.EMULATED
    return [Bid(kernel, place, cost) for cost, kernel in timed]


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulShared(SharedKernel, MatMulKernel):
    """Products by tiles in shared memory."""

    supports = Trait.INT8_WEIGHTS | Trait.PLAIN_IO

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterable[Bid[MatMulKernel]]:
        """Rank by `shared_tiles`."""
        return _timed(cls, problem.gemm, target, pixels=False)

    def predict(self, problem: MatMulProblem, target: Target) -> Expected:
        """Return the time by `shared_tiles`."""
        cost = _cost(self, problem.gemm, target, pixels=False)
        return Expected(cost, problem.gemm.work, self.tile.done(problem.gemm))

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        gemm = job.problem.gemm
        bound = bind_matmul(job, self.pack(job, encoder), encoder)
        element = weight_element(job, encoder)
        shader = kernels.matmul_shared(
            tile=cast(kernels.MatmulSharedTile, self.tile.name),
            split=self.split,
            aligned=4 if gemm.columns % 4 == 0 else 1,
            element=element,
        )
        walk = self.walk(gemm)
        norms = NormBinding.of(job, bound, encoder)
        whole = not self.split and element != "w8"
        dispatch_tiles(
            shader,
            [*bound.tensors, norms.folded] if whole else bound.tensors,
            kernels.MatmulSharedParams(**bound.sizes, **walk, **norms.sizes),
            {
                **bound.spec,
                **norms.spec,
                "BUFFERS": self.tile.buffers(encoder.info),
                "TAIL": self.tile.has_tail(gemm.k),
            },
            encoder,
            tiles=walk["tiles"],
            parts=self.parts,
            part_elements=self.tile.results,
        )


@dataclass(frozen=True, slots=True)
class SharedConv(SharedKernel, ConvKernel):
    """Implicit GEMM convolutions by tiles in shared memory, for any arithmetic."""

    @property
    def panel(self) -> int:
        """The columns of a tile."""
        return self.tile.columns // 4

    def bind(
        self, job: ConvJob, shader: Shader, encoder: VulkanEncoder
    ) -> tuple[list[Tensor], dict[str, Any], dict[str, int | bool]]:
        """Return tensors in binding order, parameters, and specialization constants."""
        problem = job.problem
        bound = bind_convolution(job, self, encoder)
        *inputs, y = bound.tensors
        taps = inputs[0]
        if not _has_one_tap(problem):
            in_block = bound.sizes["in_block"]
            table = tap_table(
                problem.kernel,
                problem.dilation,
                problem.in_size,
                problem.in_blocks,
                in_block,
                problem.phases,
            )
            taps = encoder.literal("taps", table)
        walk = self.walk(problem.gemm()) | {"phases": len(problem.phases)}
        spec = {
            **bound.spec,
            **index_spec(shader, problem.pixels),
            **_shortcuts(job),
            "PHASED": bool(problem.phases),
            "BUFFERS": self.buffers(encoder.info),
            "TAIL": self.tile.has_tail(problem.gemm().k),
        }
        sizes = {"k4": problem.taps * problem.in_blocks, **bound.sizes, **walk}
        return [*inputs, taps, y], sizes, spec


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvShared(SharedConv):
    """Convolutions as implicit GEMM by tiles in shared memory."""

    supports = Trait.INT8_WEIGHTS | Trait.PLAIN_IO | Trait.PHASES

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterable[Bid[ConvKernel]]:
        """Rank by `shared_tiles`, if the tap table is not too long."""
        gemm = problem.gemm()
        if gemm.k > 4 * MAX_TAP_BLOCKS:
            return ()
        padded = target.gpu and problem.padded  # irrelevant elsewhere, and slow
        return _timed(cls, gemm, target, pixels=True, padded=padded)

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the time by `shared_tiles`."""
        gemm = problem.gemm()
        cost = _cost(self, gemm, target, pixels=True, padded=problem.padded)
        return Expected(cost, problem.work, self.tile.done(gemm))

    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        shader = kernels.conv_shared(
            tile=self.tile.name,
            split=self.split,
            element=conv_element(job, encoder),
        )
        tensors, sizes, spec = self.bind(job, shader, encoder)
        dispatch_tiles(
            shader,
            tensors,
            kernels.ConvSharedParams(**sizes),
            spec,
            encoder,
            tiles=sizes["tiles"],
            parts=self.parts,
            part_elements=self.tile.results,
        )


def _has_one_tap(problem: ConvProblem) -> bool:
    return problem.kernel == (1, 1, 1) and not problem.phases


def _shortcuts(job: ConvJob) -> dict[str, bool]:
    """Return the parts that the kernel can skip: taps, padding, pixel positions."""
    problem, several = job.problem, job.problem.batch > 1
    one_tap = _has_one_tap(problem)
    still = problem.stride == (1, 1, 1) and problem.in_size == problem.out_size
    _, height, width = problem.out_size
    rows = (prod(problem.out_size), height * width, width, 1)
    whole = problem.out_offset == 0 and problem.out_block == problem.pixels
    return {
        "PADDED": problem.padded and not job.pooled,
        "ONE_TAP": one_tap,
        "SAME": one_tap and still and problem.pad == (0, 0, 0) and not (job.plain_x and several),
        "PLAIN": problem.out_strides == rows
        and whole
        and not (job.plain_y and several)
        and job.spread is None,
        **({"POOLED": True} if job.pooled else {}),
    }


@lru_cache(maxsize=256)
def tap_table(
    kernel: Triple,
    dilation: Triple,
    in_size: Triple,
    blocks: int,
    in_block: int,
    phases: tuple[tuple[Triple, int], ...] = (),
) -> Array:
    """Return (depth, height, width, distance in texels) of each channel block of each tap.

    Phases have one table each, followed by each phase's distance from the first texel. Cached,
    since plans share uploads by the array's identity.
    """
    if phases:
        alone = (kernel, dilation, in_size, blocks, in_block)
        return np.concatenate([*(_blocks(*alone, lack) for lack, _ in phases), places(phases)])
    return _blocks(kernel, dilation, in_size, blocks, in_block, (0, 0, 0))


def _blocks(
    kernel: Triple, dilation: Triple, in_size: Triple, blocks: int, in_block: int, lack: Triple
) -> Array:
    positions = np.indices(kernel).reshape(3, -1).T * np.array(dilation) + lack
    _, height, width = in_size
    distance = positions @ np.array([height * width, width, 1])
    table = np.empty((len(positions), blocks, 4), np.int32)
    table[:, :, :3] = positions[:, None]
    table[:, :, 3] = distance[:, None] + np.arange(blocks) * in_block
    return table.reshape(-1, 4)
