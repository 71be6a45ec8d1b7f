"""Fused pairs: two commands of a plan in one dispatch.

Graph and commands do not change, so nothing else has to know of the pairs: only the recorded
dispatches differ, chosen by the encoder like kernels. A `PairRule` says which commands are pairs,
and how they are recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from vkmnn.base.records import dataclass
from vkmnn.core.execution import Command
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.gemm.family import Apart
from vkmnn.vulkan.gemm.target import Target

P = TypeVar("P", bound=Hashable)
P_in = TypeVar("P_in", contravariant=True)
E = TypeVar("E", bound=VulkanExecution[Any])


class PairKernel(Protocol[P_in]):
    """A kernel for both commands."""

    def predict(self, problem: P_in, target: Target) -> Expected:
        """Return the predicted time."""
        ...


K = TypeVar("K", bound=PairKernel[Any])


@dataclass(frozen=True, slots=True)
class Pair:
    """Two commands; `keeps`: the first result has other readers."""

    first: Command
    second: Command
    keeps: bool = False


Segments = Sequence[Sequence[Command]]


class PairRule(ABC, Generic[P, K]):
    """Which commands are pairs, and how one dispatch computes both."""

    what: ClassVar[str]
    """The kind of choice between the kernels."""

    @abstractmethod
    def is_offered(self, encoder: VulkanEncoder) -> bool:
        """Return whether the device may have kernels."""

    @abstractmethod
    def find(self, segments: Segments, encoder: VulkanEncoder) -> Iterator[Pair]:
        """Yield the pairs among commands in running order, whose tensors have their final forms."""

    @abstractmethod
    def problem(self, pair: Pair, encoder: VulkanEncoder) -> P | None:
        """Return the problem for ranking kernels; None if none fits."""

    @abstractmethod
    def candidates(self, problem: P, target: Target, encoder: VulkanEncoder) -> Sequence[K | Apart]:
        """Return the ways to compute both, the likely fastest first; empty if there are none."""

    @abstractmethod
    def record(self, pair: Pair, kernel: K, problem: P, encoder: VulkanEncoder) -> None:
        """Record the dispatch."""


class FusedPairs:
    """Encodes the pairs of a plan; other commands are encoded one by one.

    Args:
        rules: find the pairs.
        segments: the commands in running order, whose tensors have their final forms.
        encoder: records the dispatches.
    """

    def __init__(
        self, rules: Iterable[PairRule[Any, Any]], segments: Segments, encoder: VulkanEncoder
    ) -> None:
        self._encoder = encoder
        self._following: dict[str, tuple[PairRule[Any, Any], Pair]] = {
            pair.first.op.name: (rule, pair)
            for rule in rules
            if rule.is_offered(encoder)
            for pair in rule.find(segments, encoder)
        }
        self._fused: dict[str, Callable[[], None]] = {}

    def encode(self, command: Command) -> bool:
        """Return whether a command is recorded, or will be with the other of its pair."""
        if not self._following:
            return False
        record = self._fused.pop(command.op.name, None)
        if record is not None:
            record()
            return True
        rule, pair = self._following.get(command.op.name, (None, None))
        return rule is not None and pair is not None and self._fuses(rule, pair)

    def _fuses(self, rule: PairRule[P, K], pair: Pair) -> bool:
        """Return whether to fuse the pair; the dispatch is recorded in place of the second."""
        encoder, second = self._encoder, pair.second
        self._begin(second)
        problem = rule.problem(pair, encoder)
        if problem is None:
            return False
        target = Target.of(encoder)
        candidates = rule.candidates(problem, target, encoder)
        if not candidates:
            return False
        kernel = encoder.choose(rule.what, problem, candidates, beside=pair.first.op.name)
        if isinstance(kernel, Apart):
            return False

        def record() -> None:
            self._begin(second)
            rule.record(pair, kernel, problem, encoder)
            encoder.expect(lambda: kernel.predict(problem, target))

        self._fused[second.op.name] = record
        return True

    def _begin(self, command: Command) -> None:
        self._encoder.begin(command.op.name, (*command.inputs, *command.outputs))


def bound(command: Command, kind: type[E]) -> E:
    """Return the execution of a command of a known kind, with the command's tensors."""
    execution = command.execution
    assert isinstance(execution, kind)
    execution.bind(command.inputs, command.outputs)
    return execution


def is_blocked(command: Command) -> bool:
    """Return whether a command reads and writes buffers in channel-blocked order."""
    return all(
        tensor is not None and tensor.layout is Layout.NC4HW4
        for tensor in (command.inputs[0], *command.outputs)
    )


def readers_of(segments: Segments) -> Counter[str]:
    """Return how often each tensor is read."""
    tensors: Iterator[Tensor | None]
    tensors = (t for commands in segments for command in commands for t in command.inputs)
    return Counter(tensor.name for tensor in tensors if tensor is not None)
