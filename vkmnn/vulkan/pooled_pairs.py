"""Pairs of commands that one dispatch may do: maximum pooling, and the 1 x 1 convolution after it.

As with `pairs.py`, graph and commands stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vkmnn.core.execution import Command
from vkmnn.core.tensor import Usage
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.executions.convolution import ConvolutionExecution
from vkmnn.vulkan.executions.pooling import PoolingExecution
from vkmnn.vulkan.gemm.family import Apart
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.pooled import PooledProblem, PooledShared, candidates_of
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.pairs import is_blocked, readers_of


class PooledPairs:
    """Encodes the pairs of a plan; what it leaves alone is encoded command by command.

    Args:
        segments: the commands in running order, whose tensors have their final forms.
        encoder: takes the dispatches.
    """

    def __init__(self, segments: Sequence[Sequence[Command]], encoder: VulkanEncoder) -> None:
        self._encoder = encoder
        has_kernels = is_gpu(encoder.info) or encoder.offers_all
        self._following = dict(_found(segments)) if has_kernels else {}
        self._fused: dict[str, tuple[Command, PooledShared, PooledProblem]] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._following)

    def encode(self, command: Command) -> bool:
        """Return whether a command is recorded, or will be with the other of its pair."""
        fused = self._fused.pop(command.op.name, None)
        if fused is not None:
            self._record(command, *fused)
            return True
        second = self._following.get(command.op.name)
        if second is None:
            return False
        self._begin(second)
        job, pooling = self._job(second), command.execution
        assert isinstance(pooling, PoolingExecution)
        window = pooling.window3
        if window is None or job.int8_weights:
            return False
        problem = PooledProblem(job.problem, window.in_size, window.stride, window.begin)
        candidates = candidates_of(problem, Target.of(self._encoder), self._encoder)
        if not candidates:
            return False
        taken = self._encoder.choose("pooled", problem, candidates, beside=command.op.name)
        if isinstance(taken, Apart):
            return False
        self._fused[second.op.name] = command, taken, problem
        return True

    def _record(
        self, second: Command, first: Command, kernel: PooledShared, problem: PooledProblem
    ) -> None:
        x = first.inputs[0]
        assert x is not None
        self._begin(second)
        kernel.record(problem, replace(self._job(second), x=x), self._encoder)
        target = Target.of(self._encoder)
        self._encoder.expect(lambda: kernel.predict(problem, target))

    def _begin(self, command: Command) -> None:
        self._encoder.begin(command.op.name, (*command.inputs, *command.outputs))

    def _job(self, command: Command) -> ConvJob:
        """Return what a convolution is to record."""
        execution = command.execution
        assert isinstance(execution, ConvolutionExecution)
        execution.bind(command.inputs, command.outputs)
        return execution.job(self._encoder)


def _found(segments: Sequence[Sequence[Command]]) -> Iterator[tuple[str, Command]]:
    """Yield the maxima that one convolution of one tap reads, and nothing else."""
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
                    yield made[x.name].op.name, command


def _is_plain(command: Command) -> bool:
    """Return whether a command reads and writes floats of one width in channel-blocked order."""
    x, y = command.inputs[0], command.outputs[0]
    assert x is not None
    return is_blocked(command) and x.codes is y.codes is None and x.fp16 is y.fp16
