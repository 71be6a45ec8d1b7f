"""A depthwise convolution fused with the projection after it, in one dispatch.

MobileNets consist of these (Howard et al. 2017, Sandler et al. 2018). A workgroup computes the
depthwise part of its pixels into shared memory, one chunk of channels at a time, and multiplies.
docs/decisions/separable.md explains when it is used, and the expected gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from math import prod
from typing import ClassVar

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.chunks import Chunks, chunks_cost
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.cost.tiles import weighed_us
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.gemm.encode import kernels_for
from vkmnn.vulkan.gemm.family import MARGIN, Apart
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.split import dispatch_tiles
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.weights import bias_tensor, pack_channels, pack_panels, packed_elements

VEC4_BYTES = 16
# Taps of a window, whose loop is unrolled, and taps whose loads are issued together.
MAX_TAPS = 49
TAPS_A_WAIT = 9
# Channel blocks that an invocation computes at once, and unrolled iterations of the product.
BLOCKS, LINES = 2, 4
# Estimated registers per invocation besides its sums.
REGISTERS = 64
# Limit of shared memory per workgroup, so that several are resident.
MAX_SHARED = 49_152
# Number of kernels offered besides the fastest one for each number of rows.
OFFERED = 3

# Fraction of the device's peak rate that the product reaches, by pixels per invocation.
EFFICIENCY = {8: 0.93, 4: 0.65}
ROWS: tuple[kernels.ConvSeparableRows, ...] = (8, 4)
PIXELS = (4, 8, 16, 32)
COLUMNS = (4, 8, 16, 32)
LOCALS = (128, 256)


@dataclass(frozen=True, slots=True)
class SeparableProblem:
    """A depthwise convolution, and a product over its channels for every pixel."""

    depthwise: ConvProblem
    projection: ConvProblem

    @property
    def inner(self) -> int:
        """Channels between the two."""
        return self.depthwise.channels

    @property
    def inner_blocks(self) -> int:
        """Blocks of four inner channels."""
        return ceil_div(self.inner, 4)

    @property
    def fits(self) -> bool:
        """Return whether a kernel exists: planar, a small window, and a projection of one tap."""
        first, second = self.depthwise, self.projection
        flat = first.kernel[0] == first.in_size[0] == first.out_size[0] == 1 and first.pad[0] == 0
        one_tap = second.kernel == second.stride == (1, 1, 1) and second.pad == (0, 0, 0)
        return (
            (first.grouping, second.group) == ("depthwise", 1)
            and flat
            and one_tap
            and second.in_size == second.out_size == first.out_size
            and second.inputs == first.channels
            and first.taps <= MAX_TAPS
            and 0 not in (first.taps, first.pixels, first.channels, second.channels)
            and 0 not in first.in_size
        )


@dataclass(frozen=True, slots=True)
class SeparableKernel:
    """One dispatch.

    Attributes:
        rows: pixels per invocation, with four columns each.
        pixels: per tile.
        columns: blocks of four per tile.
        local: invocations per workgroup.
        chunk: channel blocks in shared memory at once.
    """

    rows: kernels.ConvSeparableRows
    pixels: int
    columns: int
    local: int
    chunk: int
    family: ClassVar[str] = "separable"

    @property
    def groups(self) -> int:
        """Groups of invocations that share the channels of a chunk."""
        return self.local // (self.pixels // self.rows * self.columns)

    @property
    def room(self) -> int:
        """Shared memory in vec4s."""
        return max(self.chunk * self.pixels, self.local * self.rows)

    def workgroups(self, problem: SeparableProblem) -> int:
        """Return the number of tiles."""
        blocks = ceil_div(problem.projection.channels, 4)
        return ceil_div(problem.depthwise.pixels, self.pixels) * ceil_div(blocks, self.columns)

    def chunks(self, problem: SeparableProblem) -> int:
        """Return the number of chunks."""
        return ceil_div(problem.inner_blocks, self.chunk)

    def waits(self, problem: SeparableProblem) -> int:
        """Return the number of load stalls of an invocation per chunk."""
        items = ceil_div(self.chunk * self.pixels, BLOCKS * self.local)
        return items * ceil_div(problem.depthwise.taps, TAPS_A_WAIT)

    def rounds(self, problem: SeparableProblem) -> int:
        """Return the loop iterations of an invocation.

        On lavapipe, a loop's terminating iteration counts.
        """
        made = ceil_div(self.chunk * self.pixels, BLOCKS * self.local)
        made *= 2 + problem.depthwise.taps + problem.depthwise.kernel[1]
        a_chunk = made + self.chunk // self.groups + 3
        results = ceil_div(self.columns * self.pixels, self.local) * (self.groups + 2)
        return self.chunks(problem) * a_chunk + results + 2

    def predict(self, problem: SeparableProblem, target: Target) -> Expected:
        """Return the predicted time."""
        taps, lines = problem.depthwise.taps, LINES * self.chunk
        workgroups, chunks = self.workgroups(problem), self.chunks(problem)
        made, sums = self.pixels * lines * taps, self.pixels * lines * 4 * self.columns
        members = self.pixels // self.rows * self.columns
        weights = problem.inner * (taps + problem.projection.channels)
        work = Chunks(
            workgroups=workgroups,
            invocations=self.local,
            chunks=chunks,
            waits=self.waits(problem),
            rounds=self.chunk // self.groups,
            made_bytes=target.element_bytes * (made + lines * taps),
            made_flops=2 * made,
            right_bytes=target.element_bytes * lines * 4 * self.columns,
            flops=2 * sums,
            staged_bytes=4 * lines * (members * self.rows + self.pixels),
            results=4 * self.columns * self.pixels,
            groups=self.groups,
            registers=4 * self.rows + REGISTERS,
            shared=self.room * VEC4_BYTES,
            weight_bytes=target.element_bytes * weights,
            efficiency=EFFICIENCY[self.rows],
        )
        cost = chunks_cost(work, target.info, target.cold)
        needed = problem.depthwise.work + problem.projection.work
        return Expected(cost, needed, workgroups * chunks * (made + sums))

    def record(self, first: ConvJob, second: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatch of a depthwise convolution and its projection."""
        one, two = first.problem, second.problem
        problem = SeparableProblem(one, two)
        shader = kernels.conv_separable(rows=self.rows, element=encoder.element)
        inner, outer = first.epilogue.call, second.epilogue.call
        tiles = self.workgroups(problem)
        params = kernels.ConvSeparableParams(
            pixels=one.pixels,
            tiles=tiles,
            in_size=one.in_size[1:],
            out_size=one.out_size[1:],
            stride=one.stride[1:],
            pad=one.pad[1:],
            dilation=one.dilation[1:],
            in_block=one.batch * prod(one.in_size),
            out_block=two.out_block,
            inner=problem.inner,
            channels=two.channels,
            act_alpha=outer.alpha,
            act_beta=outer.beta,
            inner_alpha=inner.alpha,
            inner_beta=inner.beta,
        )
        spec = {
            **outer.spec,
            **second.epilogue.spec,
            **index_spec(shader, one.pixels),
            **self._sizes(one),
            "INNER": inner.spec["ACTIVATION"],
        }
        tensors = self._tensors(first, second, encoder)
        dispatch_tiles(
            shader, tensors, params, spec, encoder, tiles=tiles, parts=1, part_elements=0
        )

    def _sizes(self, problem: ConvProblem) -> dict[str, int | bool]:
        """Return the constants of the window and of the tiles."""
        return {
            "PADDED": problem.padded,
            "KERNEL_H": problem.kernel[1],
            "KERNEL_W": problem.kernel[2],
            "PIXELS": self.pixels,
            "COLUMNS": self.columns,
            "CHUNK": self.chunk,
            "ROOM": self.room,
            "local_size_x": self.local,
        }

    def _tensors(self, first: ConvJob, second: ConvJob, encoder: VulkanEncoder) -> list[Tensor]:
        """Return the bound tensors; both weights use packed forms shared with other kernels."""
        one, two = first.problem, second.problem
        taps = first.weights.packed(
            f"single:{one.weight_groups}",
            pack_channels,
            encoder,
            packed_elements(1, one.channels, 1, one.taps, 1),
        )
        weights = second.weights.packed(
            f"blocked:{self.columns}:1",
            lambda plain: pack_panels(plain, self.columns, 1),
            encoder,
            packed_elements(1, two.outputs, two.in_blocks * 4, 1, self.columns),
        )
        shift = bias_tensor(first.epilogue.bias, one.channels, encoder)
        bias = bias_tensor(second.epilogue.bias, two.channels, encoder)
        return [first.x, taps, shift, weights, bias, second.epilogue.residual or bias, second.y]


Candidate = SeparableKernel | Apart


def separable_kernels(
    problem: SeparableProblem, target: Target, apart_us: float
) -> list[Candidate]:
    """Return the fused candidates and the alternative, fastest prediction first.

    Args:
        problem: the sizes.
        target: the device.
        apart_us: predicted time of two dispatches and the gap between them.
    """
    if not target.gpu:  # shared memory is emulated: for the tuner and the tests
        return [Apart(), *(k for rows in ROWS for k in islice(_kernels(problem, target, rows), 1))]
    timed: list[tuple[float, float, SeparableKernel]] = []
    for kernel in (kernel for rows in ROWS for kernel in _kernels(problem, target, rows)):
        expected = kernel.predict(problem, target)
        us = expected.cost.total
        timed.append((weighed_us(us, expected.done, expected.needed), us, kernel))
    timed.sort(key=lambda one: one[:2])
    offered = _some([kernel for _, _, kernel in timed], OFFERED)
    faster = bool(timed) and MARGIN * timed[0][1] < apart_us
    return [*offered, Apart()] if faster else [Apart(), *offered]


def _some(found: Sequence[SeparableKernel], count: int) -> list[SeparableKernel]:
    """Return the first kernels, and the first for each number of rows."""
    first = {kernel.rows: kernel for kernel in reversed(found)}
    return [k for n, k in enumerate(found) if n < count or k in first.values()]


def _kernels(
    problem: SeparableProblem, target: Target, rows: kernels.ConvSeparableRows
) -> Iterator[SeparableKernel]:
    """Yield kernels that fit the device without remainders, with the largest possible chunks."""
    limits = target.info.limits
    room = min(limits.max_shared_memory, MAX_SHARED) // VEC4_BYTES
    most = min(limits.max_workgroup_invocations, limits.max_workgroup_size[0])
    for pixels, columns, local in product(PIXELS, COLUMNS, LOCALS):
        members = pixels // rows * columns
        if not 0 < members <= local <= min(most, room // rows) or local % pixels:
            continue
        groups = local // members
        largest = room // pixels // groups * groups
        if not largest:
            continue
        chunks = ceil_div(problem.inner_blocks, largest)
        chunk = ceil_div(ceil_div(problem.inner_blocks, chunks), groups) * groups
        kernel = SeparableKernel(rows, pixels, columns, local, chunk)
        if kernel.rounds(problem) <= MAX_LOOP_ROUNDS:
            yield kernel


def candidates_of(
    problem: SeparableProblem, target: Target, encoder: VulkanEncoder
) -> list[Candidate]:
    """Return the candidates; empty if two dispatches are the only one."""

    def find() -> list[Candidate]:
        apart_us = class_of(target.info).gap_us
        for one in (problem.depthwise, problem.projection) if target.gpu else ():
            expected = kernels_for(one, target, encoder)[0].predict(one, target)
            apart_us += expected.cost.total if expected else 0.0
        return separable_kernels(problem, target, apart_us)

    return encoder.once(("separable", problem, target), find) if problem.fits else []
