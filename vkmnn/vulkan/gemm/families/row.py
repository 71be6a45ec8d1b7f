"""Winograd's F(4, 3) along rows of quantised values, in registers, for CPU devices.

A window of width three takes half the products, and only sums are stored: weights stay bytes,
without additional dispatches or memory. 32-bit integer sums make it exact
(`docs/decisions/quantized-graphs.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vkmnn.base.records import dataclass
from vkmnn.ir import Array
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.terms import Cost, Expected
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.gemm.binding import bind_convolution
from vkmnn.vulkan.gemm.family import Bid, ConvKernel, Place, kernel_family, kernel_of
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import pack_panels, packed_elements

TAPS, PIXELS = 3, 4
"""Pixels and taps of F(4, 3)."""
READ = PIXELS + TAPS - 1
# Nanoseconds on one core, on the scale of `CPU_TILES`: one loop iteration, and the epilogue.
ROUND_NS, STORE_NS = 175.0, 600.0


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvRow(ConvKernel):
    """A workgroup is a subgroup of `lanes`: as many channel blocks of half as many tiles."""

    lanes: kernels.ConvRowLanes
    family = "row"
    supports = Trait.INT8_WEIGHTS | Trait.INT32_SUM
    requires = Trait.INT8_DOT

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by time for windows three wide with byte weights and activations."""
        if target.load != "texel" or not in_rows(problem):
            return
        kernel = kernel_of(cls, 8)
        if kernel.lanes not in rotate_lanes(target.info):
            return
        own = not target.gpu and target.info.subgroup_size == kernel.lanes
        cost = kernel.cost(problem, target).total
        yield Bid(kernel, Place.TIMED if own else Place.SPARE, cost)

    def predict(self, problem: ConvProblem, target: Target) -> Expected | None:
        """Return the time as measured on CPU devices."""
        if target.gpu:
            return None
        return Expected(self.cost(problem, target), problem.work, problem.work)

    def cost(self, problem: ConvProblem, target: Target) -> Cost:
        """Return the time on CPU devices."""
        info = target.info
        loops, stores = (part / 1000 / cores_of(info) for part in self.nanoseconds(problem))
        return Cost(class_of(info).start_us, arithmetic=loops, stores=stores)

    def nanoseconds(self, problem: ConvProblem) -> tuple[float, float]:
        """Return the nanoseconds on one core: loops and epilogue."""
        tiles = ceil_div(tiled(problem).pixels, self.tiles)
        panels = problem.group * ceil_div(problem.outputs, 4 * self.panel)
        rounds = tiles * panels * rounds_of(problem)
        return rounds * ROUND_NS, tiles * panels * STORE_NS

    @property
    def tiles(self) -> int:
        """Half as many tiles as channel blocks: longer loops exceed the decode cache."""
        return self.lanes // 2

    @property
    def panel(self) -> int:
        """One channel block per invocation."""
        return self.lanes

    @property
    def form(self) -> str:
        """Words with the three adjacent taps of a row."""
        return f"row:{self.lanes}"

    def pack(self, w: Array, group: int) -> Array:
        """Return weights [group][panels][row of taps][C / 4][tap][lanes][4 of C][4]."""
        panels = pack_panels(w, self.panel, group)
        groups, count, taps, depth, width = panels.shape
        split = panels.reshape(groups, count, taps // TAPS, TAPS, depth // 4, 4, width // 4, 4)
        ordered: Array = split.transpose(0, 1, 2, 4, 3, 6, 5, 7)
        return ordered

    def elements(self, problem: ConvProblem) -> int:
        """Return the number of packed elements: the same as for other kernels."""
        depth, taps = problem.in_blocks * 4, problem.kernel[0] * problem.kernel[1] * TAPS
        return packed_elements(problem.group, problem.outputs, depth, taps, self.panel)

    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""
        problem = job.problem
        tiles = tiled(problem)
        bound = bind_convolution(replace(job, problem=tiles), self, encoder)
        shader = kernels.conv_row(lanes=self.lanes)
        params = kernels.ConvRowParams(
            kernel=problem.kernel[:2],
            dilation=problem.dilation[:2],
            width=problem.out_size[2],
            row=problem.out_strides[3],
            **bound.sizes,
        )
        spec = {
            **bound.spec,
            **index_spec(shader, tiles.pixels),
            "PADDED": tiles.padded,
            "ONE_BLOCK": problem.inputs <= 4,
        }
        count = ceil_div(tiles.pixels, self.tiles)
        folds = ceil_div(count, encoder.info.limits.max_workgroup_count[0])
        panels = problem.group * bound.sizes["group_panels"]
        encoder.dispatch(
            shader, bound.tensors, params, (ceil_div(count, folds), panels, folds), spec
        )


def in_rows(problem: ConvProblem) -> bool:
    """Return whether windows have width three and stride one, and loops are short enough."""
    step = problem.kernel[2], problem.stride[2], problem.dilation[2]
    return step == (TAPS, 1, 1) and rounds_of(problem) <= MAX_LOOP_ROUNDS


def rounds_of(problem: ConvProblem) -> int:
    """Return the loop iterations, including the terminating one of each loop."""
    return problem.kernel[0] * problem.kernel[1] * (problem.in_blocks + 1)


def tiled(problem: ConvProblem) -> ConvProblem:
    """Return the problem with tiles instead of pixels: each reads one window."""
    depth, height, width = problem.out_size
    return replace(
        problem,
        out_size=(depth, height, ceil_div(width, PIXELS)),
        kernel=(*problem.kernel[:2], READ),
        stride=(*problem.stride[:2], PIXELS),
        out_strides=(*problem.out_strides[:3], PIXELS * problem.out_strides[3]),
    )
