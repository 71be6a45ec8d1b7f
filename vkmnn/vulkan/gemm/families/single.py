"""Convolutions of single channels: depthwise, or groups that start inside a block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from vkmnn.base.records import dataclass
from vkmnn.ir import Array
from vkmnn.shaders import kernels
from vkmnn.vulkan.cost.passes import Loop, loop_cost
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.device_rules import cpu_lanes
from vkmnn.vulkan.encoder import ShaderCall, VulkanEncoder, ceil_div
from vkmnn.vulkan.gemm.family import Bid, ConvKernel, Place, kernel_family, kernel_of
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.loops import GPU_LOCAL, LoopKernel
from vkmnn.vulkan.gemm.operands import conv_element
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.gemm.weights import pack_channels, packed_elements

# Taps whose loads are issued together.
TAPS_A_WAIT = 4
# Pixels per invocation, fastest first on CPU devices.
DEPTHWISE_PIXELS: tuple[kernels.ConvDepthwisePixels, ...] = (4, 1)
STRIPS: tuple[kernels.ConvStripPixels, ...] = (4, 2, 1)


@dataclass(frozen=True, slots=True)
class SingleKernel(LoopKernel):
    """Computes all groups at once; weights are stored channel by channel."""

    supports = Trait.INT8_WEIGHTS | Trait.DEPTHWISE
    requires = Trait.DEPTHWISE

    @property
    def panel(self) -> int:
        """Always one."""
        return 1

    @property
    def form(self) -> str:
        """All families of this module share the packed weights."""
        return "single"

    def pack(self, w: Array, group: int) -> Array:
        """Return the weights, with all groups as one."""
        return pack_channels(w)

    def elements(self, problem: ConvProblem) -> int:
        """Return the number of weights, with all groups as one."""
        outputs = problem.weight_groups * problem.outputs
        return packed_elements(1, outputs, problem.inputs, problem.taps, 1)

    def inner_rounds(self, problem: ConvProblem) -> int:
        """Return 0: there is no loop inside the taps."""
        return 0

    def waits(self, problem: ConvProblem) -> int:
        """Return the number of load stalls of an invocation."""
        return max(2, problem.taps * problem.inputs // TAPS_A_WAIT)

    def cost(self, problem: ConvProblem, target: Target, elsewhere: float) -> float:
        """Return the predicted microseconds on GPUs, measured ones elsewhere."""
        return self.predict(problem, target).cost.total if target.gpu else elsewhere

    def predict(self, problem: ConvProblem, target: Target) -> Expected:
        """Return the predicted time: all channels of a block at once, tap by tap."""
        blocks = ceil_div(problem.channels, 4)
        taps = problem.taps * problem.inputs
        waits = self.waits(problem)
        loop = Loop(
            workgroups=self.tiles(problem) * blocks,
            invocations=self.local,
            rounds=waits,
            round_bytes=4
            * target.element_bytes
            * self.local
            * (self.pixels + 2)
            * taps
            / 3
            / waits,
            round_flops=2 * 4 * self.local * self.pixels * taps / waits,
            results=4 * self.pixels * self.local,
        )
        return Expected(loop_cost(loop, target.info, target.cold), problem.work, problem.work)


def _local(target: Target) -> int:
    return GPU_LOCAL if target.gpu else cpu_lanes(target.info)


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvDepthwise(SingleKernel):
    """Every channel is a group; an invocation computes `pixels` pixels of a channel block."""

    pixels: kernels.ConvDepthwisePixels
    family = "depthwise"

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Rank by time on GPUs; elsewhere, more pixels per invocation rank first."""
        for number, pixels in enumerate(DEPTHWISE_PIXELS):
            kernel = kernel_of(cls, pixels, _local(target))
            yield Bid(kernel, Place.TIMED, kernel.cost(problem, target, 1.0 + number))

    def call(self, job: ConvJob, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.conv_depthwise(
            pixels=self.pixels, element=conv_element(job, encoder), load=encoder.load
        )
        return shader, kernels.ConvDepthwiseParams


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvStrip(SingleKernel):
    """Unrolled kernels for common windows: an invocation computes a strip of a row."""

    pixels: kernels.ConvStripPixels
    family = "strip"

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Accept windows of 3 x 3 and 5 x 5; first except on GPUs."""
        if not _is_usual(problem):
            return
        for pixels in (8,) if target.load == "texel" else STRIPS:
            kernel = kernel_of(cls, pixels, _local(target))
            yield Bid(kernel, Place.TIMED, kernel.cost(problem, target, 0.0))

    def waits(self, problem: ConvProblem) -> int:
        """Return 1: the loads are unrolled."""
        return 1

    def tiles(self, problem: ConvProblem) -> int:
        """Return the workgroups; strips do not cross rows."""
        width = problem.out_size[2]
        strips = problem.pixels // width * ceil_div(width, self.pixels)
        return ceil_div(strips, self.local)

    def call(self, job: ConvJob, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        shader = kernels.conv_strip(
            size=cast(kernels.ConvStripSize, job.problem.kernel[2]),
            stride=cast(kernels.ConvStripStride, job.problem.stride[2]),
            pixels=self.pixels,
            element=conv_element(job, encoder),
        )
        return shader, kernels.ConvStripParams


def _is_usual(problem: ConvProblem) -> bool:
    depth, height, width = problem.kernel
    flat = depth == problem.in_size[0] == problem.out_size[0] == 1 and problem.pad[0] == 0
    square = height == width in (3, 5) and problem.stride[1] == problem.stride[2] in (1, 2)
    return flat and square and problem.dilation[1:] == (1, 1) and 0 not in problem.in_size


@kernel_family
@dataclass(frozen=True, slots=True)
class ConvGather(SingleKernel):
    """Groups that start inside channel blocks: channels are gathered one by one."""

    family = "gather"
    supports = Trait.INT8_WEIGHTS | Trait.ODD_GROUPS
    requires = Trait.ODD_GROUPS

    @classmethod
    def rank(cls, problem: ConvProblem, target: Target) -> Iterator[Bid[ConvKernel]]:
        """Offer the only kernel."""
        yield Bid(kernel_of(cls, 1, _local(target)), Place.MADE_FOR_IT)

    def inner_rounds(self, problem: ConvProblem) -> int:
        """Return the input channels of a group."""
        return problem.inputs

    def call(self, job: ConvJob, encoder: VulkanEncoder) -> ShaderCall:
        """Return the dispatch."""
        return kernels.conv_gather(
            element=conv_element(job, encoder), load=encoder.load
        ), kernels.ConvGatherParams
