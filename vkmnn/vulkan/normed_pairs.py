"""Pairs of commands that one dispatch may do: a normalisation, and the first product that reads it.

As with `pairs.py`, graph and commands stay what they are. Where others read the normalised rows as
well, the product stores them beside its own result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vkmnn.core.execution import Command
from vkmnn.core.fp16_range import FP16_MAX
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.ir import Layout
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.executions.layer_norm import LayerNormExecution
from vkmnn.vulkan.executions.matmul import MatMulExecution
from vkmnn.vulkan.gemm.coop_tiles import matrix_of
from vkmnn.vulkan.gemm.family import Apart
from vkmnn.vulkan.gemm.job import MatMulJob, RowNorms
from vkmnn.vulkan.gemm.normed import NormedKernel, NormedProblem, candidates_of
from vkmnn.vulkan.gemm.target import Target


class NormedPairs:
    """Encodes the pairs of a plan; what it leaves alone is encoded command by command.

    Args:
        segments: the commands in running order, whose tensors have their final forms.
        encoder: takes the dispatches.
    """

    def __init__(self, segments: Sequence[Sequence[Command]], encoder: VulkanEncoder) -> None:
        self._encoder = encoder
        info = encoder.info
        has_kernels = is_gpu(info) or matrix_of(info) is not None or encoder.offers_all
        self._following = dict(self._found(segments)) if has_kernels else {}
        self._fused: dict[str, tuple[Command, NormedKernel, NormedProblem]] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._following)

    def encode(self, command: Command) -> bool:
        """Return whether a command is recorded, or will be with the other of its pair."""
        fused = self._fused.pop(command.op.name, None)
        if fused is not None:
            self._record(command, *fused)
            return True
        found = self._following.get(command.op.name)
        if found is None:
            return False
        second, keeps = found
        self._begin(second)
        norm = command.execution
        assert isinstance(norm, LayerNormExecution)
        problem = NormedProblem(self._job(second).problem, not norm.attrs.rms, keeps)
        candidates = candidates_of(problem, Target.of(self._encoder), self._encoder)
        if not candidates:
            return False
        taken = self._encoder.choose("normed", problem, candidates, beside=command.op.name)
        if isinstance(taken, Apart):
            return False
        self._fused[second.op.name] = command, taken, problem
        return True

    def _record(
        self, second: Command, first: Command, kernel: NormedKernel, problem: NormedProblem
    ) -> None:
        norm, encoder = first.execution, self._encoder
        assert isinstance(norm, LayerNormExecution)
        norm.bind(first.inputs, first.outputs)
        self._begin(second)
        norms = RowNorms(
            norm.attrs.epsilon,
            problem.centered,
            norm.optional(1),
            norm.optional(2),
            norm.output if problem.keeps else None,
        )
        kernel.record(replace(self._job(second), a=norm.operand(0), norms=norms), encoder)
        target = Target.of(encoder)
        encoder.expect(lambda: kernel.predict(problem, target))

    def _begin(self, command: Command) -> None:
        self._encoder.begin(command.op.name, (*command.inputs, *command.outputs))

    def _job(self, command: Command) -> MatMulJob:
        """Return what a product is to record."""
        execution = command.execution
        assert isinstance(execution, MatMulExecution)
        execution.bind(command.inputs, command.outputs)
        return execution.job(self._encoder)

    def _found(
        self, segments: Sequence[Sequence[Command]]
    ) -> Iterator[tuple[str, tuple[Command, bool]]]:
        """Yield normalisations with the first command that reads them, if it is a product.

        And whether something else reads them.
        """
        for commands in segments:
            norms = {c.outputs[0].name: c for c in commands if _is_norm(c)}
            readers: dict[str, list[Command]] = {name: [] for name in norms}
            for command in commands if norms else ():
                for tensor in command.inputs:
                    if tensor is not None and tensor.name in readers:
                        readers[tensor.name].append(command)
            for name, reading in readers.items():
                norm = norms[name]
                if reading and _follows(reading[0], norm) and self._fits(reading[0], norm):
                    # What the host reads is not in float16: there, something else converts it.
                    output = norm.outputs[0]
                    keeps = len(reading) > 1 or output.usage is Usage.OUTPUT
                    yield norm.op.name, (reading[0], keeps)

    def _fits(self, command: Command, first: Command) -> bool:
        """Return whether float16 holds weights that are multiplied by the gain, if it has to."""
        weights, gain = command.inputs[1], first.inputs[1] if len(first.inputs) > 1 else None
        if gain is None or not first.outputs[0].fp16:
            return True
        assert weights is not None
        return self._largest(weights) * self._largest(gain) <= FP16_MAX

    def _largest(self, tensor: Tensor) -> float:
        value = tensor.value
        assert value is not None
        return self._encoder.once(
            ("largest number", tensor.name, id(value)),
            lambda: max(float(value.max()), -float(value.min())),
        )


def _is_norm(command: Command) -> bool:
    """Return whether a command normalises whole rows of one type, by constants."""
    execution = command.execution
    if not isinstance(execution, LayerNormExecution):
        return False
    x, y = command.inputs[0], command.outputs[0]
    factors = [tensor for tensor in command.inputs[1:] if tensor is not None]
    return (
        x is not None
        and x.fp16 is y.fp16
        and x.layout is y.layout is Layout.NCHW
        and execution.attrs.axis in (-1, len(x.shape) - 1)
        and execution.result(1) is execution.result(2) is None
        and all(f.value is not None and f.value.size == x.shape[-1] for f in factors)
    )


def _follows(command: Command, first: Command) -> bool:
    """Return whether a command is a product of normalised rows by a matrix of constants."""
    execution, rows = command.execution, first.outputs[0].name
    if not isinstance(execution, MatMulExecution):
        return False
    attrs, (a, b) = execution.attrs, command.inputs[:2]
    assert a is not None
    assert b is not None
    return (
        a.name == rows
        and [t.name for t in command.inputs if t is not None].count(rows) == 1
        and b.value is not None
        and b.value.ndim == 2
        and b.value.dtype.kind == "f"
        and not attrs.transpose_a
        and attrs.alpha == 1.0
    )
