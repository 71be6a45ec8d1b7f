"""Pairs of a normalisation and the first product that reads it.

If others read the normalised rows as well, the product also stores them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vkmnn.base.elements import FLOATS
from vkmnn.core.execution import Command
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.ir import Layout
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.executions.layer_norm import LayerNormExecution
from vkmnn.vulkan.executions.matmul import MatMulExecution
from vkmnn.vulkan.fusion.pairs import Pair, PairRule, Segments, bound
from vkmnn.vulkan.gemm.coop_tiles import matrix_of
from vkmnn.vulkan.gemm.job import RowNorms
from vkmnn.vulkan.gemm.normed import Candidate, NormedKernel, NormedProblem, candidates_of
from vkmnn.vulkan.gemm.target import Target


class NormedPairs(PairRule[NormedProblem, NormedKernel]):
    """A product whose epilogue applies the normalisation."""

    what = "normed"

    def is_offered(self, encoder: VulkanEncoder) -> bool:
        """Return whether shared memory is fast, or the device has cooperative matrices."""
        info = encoder.info
        return is_gpu(info) or matrix_of(info) is not None or encoder.offers_all

    def find(self, segments: Segments, encoder: VulkanEncoder) -> Iterator[Pair]:
        """Yield normalisations with the first command that reads them, if it is a product."""
        for commands in segments:
            norms = {c.outputs[0].name: c for c in commands if _is_norm(c)}
            readers: dict[str, list[Command]] = {name: [] for name in norms}
            for command in commands if norms else ():
                for tensor in command.inputs:
                    if tensor is not None and tensor.name in readers:
                        readers[tensor.name].append(command)
            for name, reading in readers.items():
                norm = norms[name]
                if reading and _follows(reading[0], norm) and _fits(reading[0], norm, encoder):
                    # The host does not read float16: another kernel converts it there.
                    output = norm.outputs[0]
                    keeps = len(reading) > 1 or output.usage is Usage.OUTPUT
                    yield Pair(norm, reading[0], keeps)

    def problem(self, pair: Pair, encoder: VulkanEncoder) -> NormedProblem:
        """Return the product, and the normalised tensor."""
        product = bound(pair.second, MatMulExecution).job(encoder).problem
        centered = not bound(pair.first, LayerNormExecution).attrs.rms
        return NormedProblem(product, centered, pair.keeps)

    def candidates(
        self, problem: NormedProblem, target: Target, encoder: VulkanEncoder
    ) -> list[Candidate]:
        """Return the ways to compute both."""
        return candidates_of(problem, target, encoder)

    def record(
        self, pair: Pair, kernel: NormedKernel, problem: NormedProblem, encoder: VulkanEncoder
    ) -> None:
        """Record a product that reads the tensor before its normalisation."""
        norm = bound(pair.first, LayerNormExecution)
        norms = RowNorms(
            norm.attrs.epsilon,
            problem.centered,
            norm.optional(1),
            norm.optional(2),
            norm.output if problem.keeps else None,
        )
        job = bound(pair.second, MatMulExecution).job(encoder)
        kernel.record(replace(job, a=norm.operand(0), norms=norms), encoder)


def _fits(command: Command, first: Command, encoder: VulkanEncoder) -> bool:
    """Return whether the element can hold weights multiplied by the gain, if that is needed."""
    weights, gain = command.inputs[1], first.inputs[1] if len(first.inputs) > 1 else None
    if gain is None or first.outputs[0].element == "f32":
        return True
    assert weights is not None
    return (
        _largest(weights, encoder) * _largest(gain, encoder)
        <= FLOATS[first.outputs[0].element].largest
    )


def _largest(tensor: Tensor, encoder: VulkanEncoder) -> float:
    value = tensor.value
    assert value is not None
    return encoder.once(
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
        and x.element == y.element
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
