"""Convolutions in registers: each invocation loops over the taps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

from vkmnn.base.records import dataclass
from vkmnn.ir.ops import NO_ACTIVATION
from vkmnn.vulkan.encoder import ShaderCall, VulkanEncoder, ceil_div, index_spec
from vkmnn.vulkan.gemm.binding import bind_convolution
from vkmnn.vulkan.gemm.family import ConvKernel
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.taps import split_taps
from vkmnn.vulkan.gemm.traits import Trait

GPU_LOCAL = 64
"""Invocations of a workgroup on GPUs."""


@dataclass(frozen=True, slots=True)
class LoopKernel(ConvKernel):
    """Records one dispatch, or several accumulating ones if loops would be too long.

    Attributes:
        pixels: per invocation; for rotations, per workgroup.
        local: invocations per workgroup.
    """

    pixels: int
    local: int

    supports = Trait.INT8_WEIGHTS
    sized: ClassVar[bool] = True
    """Whether the size of a workgroup is a specialization constant."""

    @abstractmethod
    def inner_rounds(self, problem: ConvProblem) -> int:
        """Return the iterations of an invocation's loop inside the taps; 0 without one."""

    @abstractmethod
    def call(self, job: ConvJob, encoder: VulkanEncoder) -> ShaderCall:
        """Return the shader call of the dispatch."""

    def across(self) -> int:
        """Return the number of adjacent pixels computed across a workgroup's invocations."""
        return self.local

    def tiles(self, problem: ConvProblem) -> int:
        """Return the number of workgroups for the pixels."""
        return ceil_div(problem.pixels, self.pixels * self.across())

    def record(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        """Record the dispatches; if there are several, the first adds the residual."""
        problem = job.problem
        *parts, last = split_taps(problem.kernel, self.inner_rounds(problem))
        assert not parts or job.epilogue.mode == "ADD_BEFORE"
        texels = ceil_div(problem.channels, 4) * problem.out_block
        for part in parts:
            before = replace(
                job,
                problem=part.problem(problem),
                weights=part.weights(job.weights, problem.kernel),
                y=encoder.scratch(texels * 4),
                epilogue=replace(job.epilogue, ending=NO_ACTIVATION),
            )
            self._dispatch(before, encoder)
            rest = replace(job.epilogue, bias=None, residual=before.y)
            job = replace(job, epilogue=rest)
        if parts:
            weights = last.weights(job.weights, problem.kernel)
            job = replace(job, problem=last.problem(problem), weights=weights)
        self._dispatch(job, encoder)

    def _dispatch(self, job: ConvJob, encoder: VulkanEncoder) -> None:
        problem = job.problem
        bound = bind_convolution(job, self, encoder)
        shader, params = self.call(job, encoder)
        tiles = self.tiles(problem)
        folds = ceil_div(tiles, encoder.info.limits.max_workgroup_count[0])
        single = problem.grouping != "blocks"
        panels = problem.group * bound.sizes["group_panels"]
        rows = ceil_div(problem.channels, 4) if single else panels
        spec = bound.spec | {
            "PADDED": problem.padded,
            **index_spec(shader, problem.pixels),
            "ONE_TAP": problem.kernel == (1, 1, 1),
            "ONE_BLOCK": problem.inputs <= 4,
        }
        if self.sized:
            spec["local_size_x"] = self.local
        encoder.dispatch(
            shader,
            bound.tensors,
            params(kernel=problem.kernel, dilation=problem.dilation, **bound.sizes),
            (ceil_div(tiles, folds), rows, folds),
            spec,
        )
