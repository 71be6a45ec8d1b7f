"""Pairs of commands that one dispatch may do: a depthwise convolution and its projection.

Graph and commands stay what they are, so nothing else has to know of the pair: only which
dispatches are recorded differs, which the encoder chooses as it chooses between kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from vkmnn.core.execution import Command
from vkmnn.core.tensor import Usage
from vkmnn.ir import Layout
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.executions.convolution import ConvolutionExecution
from vkmnn.vulkan.gemm.family import Apart
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.separable import SeparableKernel, SeparableProblem, candidates_of
from vkmnn.vulkan.gemm.target import Target


class Pairs:
    """Encodes the pairs of a plan; what it leaves alone is encoded command by command.

    Args:
        segments: the commands in running order, whose tensors have their final forms.
        encoder: takes the dispatches.
    """

    def __init__(self, segments: Sequence[Sequence[Command]], encoder: VulkanEncoder) -> None:
        self._encoder = encoder
        self._following = dict(_found(segments))
        self._fused: dict[str, tuple[Command, SeparableKernel]] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._following)

    def encode(self, command: Command) -> bool:
        """Return whether a command is recorded, or will be with the other of its pair."""
        fused = self._fused.pop(command.op.name, None)
        if fused is not None:
            first, kernel = fused
            self._begin(command)
            kernel.record(self._job(first), self._job(command), self._encoder)
            return True
        second = self._following.get(command.op.name)
        if second is None:
            return False
        self._begin(second)
        problem = SeparableProblem(self._job(command).problem, self._job(second).problem)
        candidates = candidates_of(problem, Target.of(self._encoder), self._encoder)
        if not candidates:
            return False
        taken = self._encoder.choose("separable", problem, candidates, beside=command.op.name)
        if isinstance(taken, Apart):
            return False
        self._fused[second.op.name] = command, taken
        return True

    def _begin(self, command: Command) -> None:
        self._encoder.begin(command.op.name, (*command.inputs, *command.outputs))

    def _job(self, command: Command) -> ConvJob:
        """Return what a convolution is to record."""
        execution = command.execution
        assert isinstance(execution, ConvolutionExecution)
        execution.bind(command.inputs, command.outputs)
        return execution.job(self._encoder)


def _found(segments: Sequence[Sequence[Command]]) -> Iterator[tuple[str, Command]]:
    """Yield the depthwise convolutions whose results one projection reads, and nothing else."""
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
                    yield made[x.name].op.name, command


def is_blocked(command: Command) -> bool:
    """Return whether a command reads and writes buffers in channel-blocked order."""
    return all(
        tensor is not None and tensor.layout is Layout.NC4HW4
        for tensor in (command.inputs[0], *command.outputs)
    )


def readers_of(segments: Sequence[Sequence[Command]]) -> Counter[str]:
    """Return how often each tensor is read."""
    tensors = (t for commands in segments for command in commands for t in command.inputs)
    return Counter(tensor.name for tensor in tensors if tensor is not None)
