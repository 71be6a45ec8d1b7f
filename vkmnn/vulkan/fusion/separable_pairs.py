"""Pairs of a depthwise convolution and the projection after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from vkmnn.core.execution import Command
from vkmnn.core.tensor import Usage
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.executions.convolution import ConvolutionExecution
from vkmnn.vulkan.fusion.pairs import Pair, PairRule, Segments, bound, is_blocked, readers_of
from vkmnn.vulkan.gemm.separable import Candidate, SeparableKernel, SeparableProblem, candidates_of
from vkmnn.vulkan.gemm.target import Target


class SeparablePairs(PairRule[SeparableProblem, SeparableKernel]):
    """A convolution that computes its depthwise predecessor in shared memory."""

    what = "separable"

    def is_offered(self, encoder: VulkanEncoder) -> bool:
        """Return True: every device has kernels."""
        return True

    def find(self, segments: Segments, encoder: VulkanEncoder) -> Iterator[Pair]:
        """Yield depthwise convolutions whose only reader is a projection."""
        readers: Counter[str] | None = None
        for commands in segments:
            made: dict[str, Command] = {}
            for command in commands:
                execution = command.execution
                if not isinstance(execution, ConvolutionExecution) or not is_blocked(command):
                    continue
                x, w, group = execution.operand(0), execution.operand(1), execution.attrs.group
                if group == w.shape[0] == x.shape[1] and execution.optional(3) is None:
                    made[command.outputs[0].name] = command
                elif group == 1 and x.name in made and max(w.shape[2:]) == 1:
                    readers = readers or readers_of(segments)
                    if readers[x.name] == 1 and x.usage is Usage.NORMAL:
                        yield Pair(made[x.name], command)

    def problem(self, pair: Pair, encoder: VulkanEncoder) -> SeparableProblem:
        """Return both problems."""
        first, second = (
            bound(command, ConvolutionExecution).job(encoder).problem
            for command in (pair.first, pair.second)
        )
        return SeparableProblem(first, second)

    def candidates(
        self, problem: SeparableProblem, target: Target, encoder: VulkanEncoder
    ) -> list[Candidate]:
        """Return the ways to compute both."""
        return candidates_of(problem, target, encoder)

    def record(
        self,
        pair: Pair,
        kernel: SeparableKernel,
        problem: SeparableProblem,
        encoder: VulkanEncoder,
    ) -> None:
        """Record the dispatch."""
        first = bound(pair.first, ConvolutionExecution).job(encoder)
        kernel.record(first, bound(pair.second, ConvolutionExecution).job(encoder), encoder)
