"""Dispatches of equal ops, recorded once in a plan."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from vkmnn.base.memo import Memo
from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor, are_plain
from vkmnn.ir import Op
from vkmnn.ir.alike import MAX_ALIKE, attrs_text
from vkmnn.vulkan.choice import Choice
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.recording import Dispatch, PackedConstant, Recording

Operands = Sequence["Tensor | None"]


@dataclass(frozen=True, slots=True)
class Taped:
    """The recorded dispatches of an op, for equal ops.

    Attributes:
        dispatches: each with its tensors by number: those of the op, inputs first, then `beside`.
        writes: numbers of the tensors that they write.
        beside: further tensors of the op. A number is the input from which the constant is packed;
            other constants are shared, and scratch memory is allocated again.
        choices: the op's choices.
    """

    dispatches: list[tuple[Dispatch, tuple[int, ...]]]
    writes: frozenset[int]
    beside: list[tuple[Tensor, PackedConstant | None, int | None]]
    choices: list[Choice]


class AlikeDispatches:
    """Encodes the ops of one plan; equal ops reuse the dispatches of the first.

    Ops are equal if they have the same kernel and attributes, and tensors of the same shapes, types
    and forms, provided that the execution is `repeatable`.
    """

    def __init__(self, encoder: VulkanEncoder) -> None:
        self._encoder = encoder
        self._taped: Memo[Hashable, Taped | None] = Memo(MAX_ALIKE)

    def encode(
        self, execution: VulkanExecution[Any], inputs: Operands, outputs: Sequence[Tensor]
    ) -> None:
        """Record the op that the encoder has begun, on tensors in their final forms."""
        tensors = [*inputs, *outputs]
        if execution.prepared is None:
            execution.bind(inputs, outputs)
            execution.on_encode(self._encoder)
            return
        key: Hashable = execution.prepared
        if not are_plain(tensors):
            key = (key, *[t and (t.layout, t.element, t.codes) for t in tensors])
        taped = self._taped.get(key)
        if taped is not None:
            self._repeat(taped, tensors)
            return
        execution.bind(inputs, outputs)
        if key in self._taped:
            execution.on_encode(self._encoder)
        else:
            self._taped.keep(key, self._tape(execution, tensors))

    def _tape(self, execution: VulkanExecution[Any], tensors: Operands) -> Taped | None:
        """Encode an op and return its dispatches; None if it recorded anything else."""
        recording = self._encoder.recording
        first, chosen, before = len(recording.dispatches), len(recording.choices), _marks(recording)
        execution.on_encode(self._encoder)
        if _marks(recording) != before:
            return None
        numbers = {t: i for i, t in reversed(list(enumerate(tensors))) if t is not None}
        beside: list[tuple[Tensor, PackedConstant | None, int | None]] = []
        dispatches = []
        writes = set()
        for dispatch in recording.dispatches[first:]:
            for tensor in dispatch.tensors:
                if tensor not in numbers:
                    if tensor is recording.status:
                        return None
                    packed, origin = _origin(tensor, tensors, recording)
                    if packed is None and tensor.value is not None:
                        return None
                    numbers[tensor] = len(tensors) + len(beside)
                    beside.append((tensor, packed, origin))
            places = tuple([numbers[t] for t in dispatch.tensors])
            writes.update([places[number] for number in dispatch.shader.written])
            dispatches.append((dispatch, places))
        return Taped(dispatches, frozenset(writes), beside, recording.choices[chosen:])

    def _repeat(self, taped: Taped, given: Operands) -> None:
        """Record the dispatches of an equal op with these operands."""
        encoder = self._encoder
        recording, label = encoder.recording, encoder.label
        tensors: list[Any] = [*given]
        for tensor, packed, number in taped.beside:
            if packed is None:
                tensors.append(encoder.scratch_like(tensor))
            elif number is None:
                tensors.append(tensor)
            else:
                tensors.append(encoder.constant_like(tensors[number], packed))
        for number in taped.writes:
            recording.written.add(recording.root(tensors[number]))
        listed = recording.dispatches
        for like, numbers in taped.dispatches:
            listed.append(
                Dispatch(
                    like.shader,
                    tuple([tensors[i] for i in numbers]),
                    like.params,
                    like.groups,
                    like.spec,
                    label,
                    len(listed),
                    like.pipeline,
                    like.predict,
                    repeated=True,
                )
            )
        for choice in taped.choices:
            recording.choices.append(
                Choice(label, choice.what, choice.problem, choice.candidates, choice.taken)
            )


def op_key(op: Op, inputs: Operands, outputs: Sequence[Tensor]) -> tuple[Hashable, ...]:
    """Return a key that equal ops share."""
    which = None
    if len(inputs) > 1:
        # The tensors that are the same one: x + x binds one tensor twice, and packs a constant
        # once.
        same = [id(t if t is None or t.value is None else t.value) for t in inputs]
        if len(set(same)) < len(same):
            which = tuple([same.index(one) for one in same])
    return (
        op.type,
        attrs_text(op.attrs),
        len(inputs),
        tuple(map(bool, op.outputs)) if len(op.outputs) > 1 else None,
        which,
        *[t and t.kind for t in inputs],
        *[t.kind for t in outputs],
    )


def _origin(
    tensor: Tensor, operands: Operands, recording: Recording
) -> tuple[PackedConstant | None, int | None]:
    """Return a tensor's packing, and its source operand, if any."""
    packed = recording.packed.get(tensor)
    if packed is None:
        return None, None
    for number, operand in enumerate(operands):
        if operand is not None and operand.value is packed.source:
            return packed, number
    return packed, None


def _marks(recording: Recording) -> tuple[object, ...]:
    """Return counters of recorded items other than dispatches, constants and choices."""
    return (
        len(recording.aliases),
        len(recording.checks),
        len(recording.counters),
        sum(map(len, recording.ranges.values())) if recording.ranges else 0,
    )
