"""Products of few rows and a matrix, bound by loading the matrix.

Examples are decoder steps, classifiers, and convolutions with a single output pixel, as in
squeeze-and-excitation blocks: the window is a vector, and the weights are a matrix. A pixel in
NC4HW4 has the order of a plain vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.ir import Array
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.shader_files.tiles import VEC4_BYTES
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.chunks import LOADED_RATE
from vkmnn.vulkan.cost.passes import Loop, loop_cost
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.cost.tiles import HUGE_BYTES
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.binding import alignment, bind_convolution, bind_rowwise
from vkmnn.vulkan.gemm.family import (
    Bid,
    ConvKernel,
    MatMulKernel,
    Place,
    kernel_family,
)
from vkmnn.vulkan.gemm.job import ConvJob, MatMulJob
from vkmnn.vulkan.gemm.operands import PANEL, weight_element
from vkmnn.vulkan.gemm.problem import ConvProblem, Gemm, MatMulProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import packed_elements

# The kernels, by their maximum number of rows.
ROWS: tuple[kernels.MatmulGemvRows, ...] = (1, 4, 8)
# Vec4s of a row per workgroup.
WIDTHS = (1, 2, 4, 8)
# Steps along K whose loads an invocation issues together.
STEPS = (1, 2)
# Bytes per cache transfer.
SECTOR = 32


@dataclass(frozen=True, slots=True)
class GemvKernel:
    """`rows` rows; `width` vec4s of a row and `local` invocations per workgroup."""

    rows: kernels.MatmulGemvRows
    width: int
    local: int
    family = "gemv"

    @property
    def spec(self) -> dict[str, int | bool]:
        """The specialization constants of the workgroup."""
        return {"WIDTH": self.width, "local_size_x": self.local}

    def steps(self, gemm: Gemm, encoder: VulkanEncoder) -> int:
        """Return the number of steps along K whose loads an invocation issues together."""
        if _rounds(gemm, self.width, self.local) < 2:
            return STEPS[0]
        ranked = STEPS[::-1] if is_gpu(encoder.info) else STEPS
        return encoder.choose("gemv steps", (gemm, self.width, self.local), ranked)

    def time(self, gemm: Gemm, target: Target) -> Cost:
        """Return the predicted time."""
        sizes = self.rows, self.width, self.local
        return gemv_cost(gemm, sizes, target.info, target.element_bytes, target.cold)


def timed_gemv(
    gemm: Gemm, info: DeviceInfo, element_bytes: int = 4, cold: bool = False
) -> list[tuple[float, tuple[kernels.MatmulGemvRows, int, int]]]:
    """Return the fastest kernel with its predicted microseconds, and the narrowest one."""
    limits = info.limits
    if gemm.rows > ROWS[-1] or gemm.batches > limits.max_workgroup_count[2]:
        return []
    rows = next(count for count in ROWS if gemm.rows <= count)
    room = min(
        limits.max_workgroup_invocations,
        limits.max_workgroup_size[0],
        limits.max_shared_memory // (rows * VEC4_BYTES),
    )
    timed = []
    for width in WIDTHS:
        # At most one invocation per vec4 of K, but at least one per result.
        useful = max(ceil_div(gemm.k, 4), rows) * width
        local = next((n for n in (256, 128) if n <= room and n <= useful), 64)
        cost = gemv_cost(gemm, (rows, width, local), info, element_bytes, cold)
        timed.append((cost.total, (rows, width, local)))
    return list(dict.fromkeys((min(timed, key=lambda pair: pair[0]), timed[0])))


def gemv_cost(
    gemm: Gemm,
    sizes: tuple[kernels.MatmulGemvRows, int, int],
    info: DeviceInfo,
    element_bytes: int,
    cold: bool,
) -> Cost:
    """Return the predicted time of a kernel.

    Args:
        gemm: the sizes.
        sizes: rows, width and local of the kernel.
        info: the device.
        element_bytes: bytes per element in memory.
        cold: whether the network's weights exceed the caches.
    """
    rows, width, local = sizes
    gpu = is_gpu(info)
    steps = STEPS[-1] if gpu else STEPS[0]
    rounds = ceil_div(_rounds(gemm, width, local), steps)
    # Caches transfer whole sectors, so narrow panels load data of other workgroups. With fewer
    # invocations along a row, an instruction accesses more sectors, one after the other.
    row_bytes = max(4 * width * element_bytes, SECTOR) * (1 + 1 / width if gpu else 1)
    loop = Loop(
        workgroups=ceil_div(gemm.columns, 4 * width) * gemm.batches,
        invocations=local,
        rounds=rounds,
        round_bytes=gemm.k * row_bytes / max(rounds, 1),
        round_flops=2 * 16 * rows * local * steps,
        results=4 * width * rows,
        registers=16 + 4 * rows + 16 * steps,
        shared_bytes=2 * rows * local * VEC4_BYTES,
        weight_bytes=gemm.columns * gemm.k * gemm.batches * element_bytes,
        efficiency=LOADED_RATE if gpu else 1.0,
        # The tree reduction handles one row at a time.
        closing=rows if gpu else 0,
    )
    return loop_cost(loop, info, cold or loop.weight_bytes > HUGE_BYTES)


def _rounds(gemm: Gemm, width: int, local: int) -> int:
    """Return the steps of an invocation along K."""
    return ceil_div(ceil_div(gemm.k, 4), local // width)


def _timed(
    gemm: Gemm, target: Target
) -> list[tuple[float, tuple[kernels.MatmulGemvRows, int, int]]]:
    return timed_gemv(gemm, target.info, target.element_bytes, target.cold)


def _place(target: Target) -> Place:
    return Place.TIMED if target.gpu else Place.EMULATED


@kernel_family
@dataclass(frozen=True, slots=True)
class MatMulGemv(GemvKernel, MatMulKernel):
    """Few rows by a matrix: coalesced loads, K split across invocations, tree reduction."""

    supports = Trait.INT8_WEIGHTS | Trait.PLAIN_IO | Trait.NORM_ROWS | Trait.GATED

    @classmethod
    def rank(cls, problem: MatMulProblem, target: Target) -> Iterator[Bid[MatMulKernel]]:
        """Accept products with few rows."""
        for cost, sizes in _timed(problem.gemm, target):
            yield Bid(cls(*sizes), _place(target), cost)

    def predict(self, problem: MatMulProblem, target: Target) -> Expected:
        """Return the predicted time of the loads."""
        gemm = problem.gemm
        return Expected(self.time(gemm, target), gemm.work, gemm.work)

    def record(self, job: MatMulJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        gemm = job.problem.gemm
        bound = bind_rowwise(job, self.pack(job, encoder), encoder)
        shader = kernels.matmul_gemv(
            rows=self.rows,
            aligned=alignment(job),
            element=weight_element(job, encoder),
        )
        groups = (
            ceil_div(gemm.columns, 4 * self.width),
            ceil_div(gemm.rows, self.rows),
            gemm.batches,
        )
        params = kernels.MatmulGemvParams(**bound.sizes)
        spec = {**bound.spec, **self.spec, "STEPS": self.steps(gemm, encoder)}
        encoder.dispatch(shader, bound.tensors, params, groups, spec)


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvGemv(GemvKernel, ConvKernel):
    """A convolution with one output pixel, as a vector by a matrix."""

    supports = Trait.INT8_WEIGHTS

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Accept convolutions whose window covers the whole input."""
        whole = problem.kernel == problem.in_size and problem.pad == (0, 0, 0)
        alone = problem.pixels == problem.out_block == 1 and problem.batch == problem.group == 1
        # The kernel does not mask lanes past the last channel.
        if whole and alone and problem.outputs % 4 == 0:
            for cost, sizes in _timed(problem.gemm(), target):
                yield Bid(cls(*sizes), _place(target), cost)

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the predicted time of the loads."""
        return Expected(self.time(problem.gemm(), target), problem.work, problem.work)

    @property
    def panel(self) -> int:
        """The panel of products."""
        return PANEL

    @property
    def form(self) -> str:
        """The form of products."""
        return "gemv"

    def pack(self, w: Array, group: int) -> Array:
        """Pack weights [O, C, taps] as [panels][K][8][4]; K in the order of the input's blocks."""
        outputs, inputs, taps = w.shape
        width = 4 * PANEL
        panels, blocks = ceil_div(outputs, width), ceil_div(inputs, 4)
        padded = np.zeros((panels * width, blocks * 4, taps), w.dtype)
        padded[:outputs, :inputs] = w
        split: Array = padded.reshape(panels, width, blocks, 4, taps).transpose(0, 2, 4, 3, 1)
        return split

    def elements(self, problem: ConvProblem) -> int:
        """Return the number of elements of the packed weights."""
        outputs, depth = problem.weight_groups * problem.outputs, 4 * problem.in_blocks
        return packed_elements(1, outputs, depth, problem.taps, PANEL)

    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch of the kernel for products."""
        problem = job.problem
        bound = bind_convolution(job, self, encoder)
        k4 = problem.taps * problem.in_blocks
        sizes: dict[str, Any] = {
            "rows": 1,
            "columns": problem.outputs,
            "k4": k4,
            "a_row": k4,
            "a_step": 1,
            "b_panel": 4 * k4 * PANEL,
            "b_row": PANEL,
            "batch_size": (1, 1),
            "a_batch": (0, 0, 0),
            "b_batch": (0, 0, 0),
            "alpha": 1.0,
            "act_alpha": bound.sizes["act_alpha"],
            "act_beta": bound.sizes["act_beta"],
            "epsilon": 0.0,
            "mean": 1.0,
        }
        shader = kernels.matmul_gemv(rows=1, aligned=4, element=weight_element(job, encoder))
        encoder.dispatch(
            shader,
            bound.tensors,
            kernels.MatmulGemvParams(**sizes),
            (ceil_div(problem.outputs, 4 * self.width), 1, 1),
            {
                **bound.spec,
                "HAS_BIAS": True,
                **self.spec,
                "STEPS": self.steps(problem.gemm(), encoder),
            },
        )
