"""Pairs of maximum pooling and the 1 x 1 convolution after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vkmnn.core.execution import Command
from vkmnn.core.tensor import Usage
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.executions.convolution import ConvolutionExecution
from vkmnn.vulkan.executions.pooling import PoolingExecution
from vkmnn.vulkan.fusion.pairs import Pair, PairRule, Segments, bound, is_blocked, readers_of
from vkmnn.vulkan.gemm.pooled import Candidate, PooledProblem, PooledShared, candidates_of
from vkmnn.vulkan.gemm.target import Target


class PooledPairs(PairRule[PooledProblem, PooledShared]):
    """A convolution that stages the maximum of each window."""

    what = "pooled"

    def is_offered(self, encoder: VulkanEncoder) -> bool:
        """Return whether shared memory is fast."""
        return is_gpu(encoder.info) or encoder.offers_all

    def find(self, segments: Segments, encoder: VulkanEncoder) -> Iterator[Pair]:
        """Yield max poolings whose only reader is a 1 x 1 convolution."""
        readers = None
        for commands in segments:
            made: dict[str, Command] = {}
            for command in commands:
                execution = command.execution
                if isinstance(execution, PoolingExecution) and _is_plain(command):
                    made[command.outputs[0].name] = command
                    continue
                if not isinstance(execution, ConvolutionExecution) or not _is_plain(command):
                    continue
                x, w = execution.operand(0), execution.operand(1)
                if x.name in made and max(w.shape[2:]) == 1:
                    readers = readers or readers_of(segments)
                    if readers[x.name] == 1 and x.usage is Usage.NORMAL:
                        yield Pair(made[x.name], command)

    def problem(self, pair: Pair, encoder: VulkanEncoder) -> PooledProblem | None:
        """Return the convolution and the windows, None if they are not 3 x 3."""
        job, pooling = bound(pair.second, ConvolutionExecution).job(encoder), pair.first.execution
        assert isinstance(pooling, PoolingExecution)
        window = pooling.window3
        if window is None or job.int8_weights:
            return None
        return PooledProblem(job.problem, window.in_size, window.stride, window.begin)

    def candidates(
        self, problem: PooledProblem, target: Target, encoder: VulkanEncoder
    ) -> list[Candidate]:
        """Return the ways to compute both."""
        return candidates_of(problem, target, encoder)

    def record(
        self, pair: Pair, kernel: PooledShared, problem: PooledProblem, encoder: VulkanEncoder
    ) -> None:
        """Record a convolution that reads the tensor before its pooling."""
        x = pair.first.inputs[0]
        assert x is not None
        job = bound(pair.second, ConvolutionExecution).job(encoder)
        kernel.record(problem, replace(job, x=x), encoder)


def _is_plain(command: Command) -> bool:
    """Return whether a command reads and writes floats of one width in channel-blocked order."""
    x, y = command.inputs[0], command.outputs[0]
    assert x is not None
    return is_blocked(command) and x.codes is y.codes is None and x.element == y.element
