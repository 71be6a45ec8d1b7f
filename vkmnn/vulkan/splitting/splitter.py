"""Splits ops on tensors that the device cannot bind as a whole, before layouts are assigned.

Vulkan promises no more than 128 MiB for a storage buffer (maxStorageBufferRange). A part reads
slices of the operands, which are views if they are contiguous, and a Raster joins the results,
without a copy if the parts can write into it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import partial
from math import gcd, lcm, prod

from vkmnn.base.elements import FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Command, Execution, Rejection
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.geometry.regions import row_major, simplify
from vkmnn.ir import Array, Layout, Op, Region, TensorInfo, View
from vkmnn.ir.dtype import DType
from vkmnn.ir.ops import RasterAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.bindable import Fault, find_faults, packed_bytes
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.executions.raster import PartRasterExecution
from vkmnn.vulkan.recording import Recording
from vkmnn.vulkan.splitting.cuts import find_cuts
from vkmnn.vulkan.splitting.pieces import Cut, Piece, along
from vkmnn.vulkan.storage import ELEMENT_BYTES, FLOAT_BYTES, VECTOR_BYTES, storage_bytes

CreateExecution = Callable[
    [Op, Sequence["Tensor | None"], Sequence[Tensor]], "Execution | Rejection"
]

# Ops below 1/SUSPECT of the range are not examined: the additional memory of kernels is never this
# many times as large.
SUSPECT = 8
# An op in more parts than this would take longer to plan than to run on the CPU.
MAX_PARTS = 4096
# Parts that begin at multiples of this many bytes can be bound in place.
GRANULE_BYTES = 256

# Slices by their source memory, so that every plan gets the same object and uploads nothing twice.
_slices: weakref.WeakValueDictionary[tuple[object, ...], Array] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class _Excess:
    """The number of an oversized operand, inputs first; None for anything else.

    `share` is the fraction that would fit.
    """

    number: int | None
    share: float


@dataclass(slots=True)
class Divider:
    """Splits the commands of one plan.

    Args:
        backend: the type of the backend whose commands are split.
        create: creates the executions of parts, or refuses.
        info: the device.
        new_encoder: creates an encoder to record a command into, to see its bindings.
    """

    backend: str
    create: CreateExecution
    info: DeviceInfo
    new_encoder: Callable[[], VulkanEncoder]
    _made: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def is_small(self, tensors: Iterable[Tensor | None]) -> bool:
        """Return whether no tensor, in any form, is large enough to need a split."""
        limit = self.info.limits.max_storage_buffer_range // SUSPECT
        # An element takes at most a whole vector: as the only channel of a block. Constants are in
        # plain order until kernels pack them.
        for tensor in tensors:  # a loop is faster than all() and a generator, as in `are_plain`
            if tensor is None:
                continue
            each = VECTOR_BYTES if tensor.value is None else ELEMENT_BYTES
            if prod(tensor.shape) * each > limit:
                return False
        return True

    def divide(
        self, command: Command, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> list[Command]:
        """Return the replacement of a command; empty if it can stay or cannot be split.

        Args:
            command: the op with its operands.
            inputs: its operands in the required forms.
            outputs: its results in the forms that it produces.
        """
        limit = self.info.limits.max_storage_buffer_range // SUSPECT
        tensors = [*inputs, *outputs]
        if not any(t is not None and storage_bytes(t) > limit for t in tensors):
            return []
        cuts = find_cuts(command.op, inputs, outputs)
        if not cuts:
            return []
        assert isinstance(command.execution, VulkanExecution)
        encoder = self.new_encoder()
        encoder.begin(command.op.name, tensors)
        command.execution.bind(inputs, outputs)
        command.execution.on_encode(encoder)
        recording = encoder.recording
        size_of = partial(packed_bytes, recording)
        faults = list(find_faults(recording.dispatches, self.info, size_of))
        if not faults or any(fault.share >= 1 for fault in faults):
            return []
        excesses = [_excess(fault, tensors, recording) for fault in faults]
        blocked = any(t is not None and t.layout is Layout.NC4HW4 for t in tensors)
        chosen = _choose(cuts, excesses, outputs[0], blocked)
        if chosen is None:
            return []
        before = dict(self._made)
        commands = self._parts(command, *chosen)
        if not commands:
            self._made = before
        return commands

    def _parts(self, command: Command, cut: Cut, step: int) -> list[Command]:
        """Return the slices, the parts, and the ops that join their results.

        Empty if the backend rejects a part.
        """
        commands: list[Command] = []
        made: list[list[Tensor]] = []
        parts = []
        for number, begin in enumerate(range(0, cut.size, step)):
            part = cut.part(begin, min(begin + step, cut.size))
            inputs = [
                self._operand(command, tensor, taken, commands)
                for tensor, taken in zip(command.inputs, part.inputs, strict=True)
            ]
            outputs = [
                Tensor(replace(out.info, name=f"{out.name}:part{number}", shape=piece.shape))
                for out, piece in zip(command.outputs, part.outputs, strict=True)
            ]
            op = replace(
                command.op,
                name=f"{command.op.name}:part{number}",
                inputs=[tensor.name if tensor is not None else "" for tensor in inputs],
                outputs=[tensor.name for tensor in outputs],
                attrs=part.attrs,
            )
            execution = self.create(op, inputs, outputs)
            if isinstance(execution, Rejection):
                return []
            commands.append(self._command(command, op, inputs, outputs, execution))
            made.append(outputs)
            parts.append(part)
        if cut.again is not None:
            last = self._stack(command, cut, [outputs[0] for outputs in made])
            return [*commands, *last] if last else []
        for index, out in enumerate(command.outputs):
            pieces = [part.outputs[index] for part in parts]
            commands.append(self._join(command, out, [m[index] for m in made], pieces))
        return commands

    def _stack(self, command: Command, cut: Cut, parts: list[Tensor]) -> list[Command]:
        """Return the stack of the parts' results, and the op that reads it."""
        assert cut.again is not None
        shape = list(parts[0].shape)
        shape[cut.axis] = len(parts)
        pieces = [along(shape, cut.axis, number, number + 1) for number in range(len(parts))]
        name = f"{command.op.name}:stack"
        stack = Tensor(replace(parts[0].info, name=name, shape=tuple(shape)))
        inputs = [stack, *command.inputs[1:]]
        op = replace(
            command.op,
            name=f"{command.op.name}:last",
            inputs=[name, *command.op.inputs[1:]],
            attrs=cut.again,
        )
        execution = self.create(op, inputs, command.outputs)
        if isinstance(execution, Rejection):
            return []
        return [
            self._join(command, stack, parts, pieces),
            self._command(command, op, inputs, command.outputs, execution),
        ]

    def _operand(
        self,
        command: Command,
        tensor: Tensor | None,
        taken: Piece | Array | None,
        commands: list[Command],
    ) -> Tensor | None:
        """Return a part's operand; slices are added to `commands`."""
        if tensor is None or taken is None:
            return tensor
        if not isinstance(taken, Piece):
            info = TensorInfo(
                f"{tensor.name}={taken.tolist()}", DType.from_numpy(taken.dtype), taken.shape
            )
            return Tensor(info, Usage.CONSTANT, value=taken)
        if taken.shape == tensor.shape and taken.axis >= 0:
            return tensor
        if tensor.value is not None and taken.axis >= 0:
            return _slice(tensor, taken)
        key = (tensor.name, taken)
        if key not in self._made:
            name = f"{tensor.name}:slice{len(self._made)}"
            part = Tensor(replace(tensor.info, name=name, shape=taken.shape))
            target = View(0, row_major(taken.size))
            attrs = RasterAttrs((simplify(Region(taken.view, target, taken.size)),))
            op = Op("Raster", f"{name}:cut", [tensor.name], [name], attrs, command.op.source)
            execution = PartRasterExecution(op, [tensor], [part], self.info, [taken], gathers=True)
            commands.append(self._command(command, op, [tensor], [part], execution))
            self._made[key] = part
        return self._made[key]

    def _join(
        self, command: Command, output: Tensor, parts: list[Tensor], pieces: Sequence[Piece]
    ) -> Command:
        regions = tuple(
            simplify(Region(View(0, row_major(piece.size)), piece.view, piece.size, number))
            for number, piece in enumerate(pieces)
        )
        names = [part.name for part in parts]
        name = f"{command.op.name}:join {output.name}"
        op = Op("Raster", name, names, [output.name], RasterAttrs(regions), command.op.source)
        execution = PartRasterExecution(op, parts, [output], self.info, pieces, gathers=False)
        return self._command(command, op, parts, [output], execution)

    def _command(
        self,
        whole: Command,
        op: Op,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        execution: Execution,
    ) -> Command:
        owner = whole.owner or whole.op.name
        return Command(op, list(inputs), list(outputs), execution, self.backend, owner=owner)


def _excess(fault: Fault, tensors: Sequence[Tensor | None], recording: Recording) -> _Excess:
    """Return the operand that a violated limit concerns."""
    packed = recording.packed.get(fault.tensor) if fault.tensor is not None else None
    for number, tensor in enumerate(tensors):
        if tensor is None:
            continue
        if tensor is fault.tensor or (packed is not None and tensor.value is packed.source):
            return _Excess(number, fault.share)
    return _Excess(None, fault.share)


def _choose(
    cuts: Iterable[Cut], excesses: Sequence[_Excess], result: Tensor, blocked: bool
) -> tuple[Cut, int] | None:
    """Return the cut and the steps per part; None if no cut helps.

    A cut that brings everything into range is preferred, else the one that helps most; then one
    whose parts are contiguous.
    """
    best: tuple[tuple[int, int, int], Cut, int] | None = None
    rank = len(result.shape)
    for cut in cuts:
        helped = [e for e in excesses if e.number is None or e.number in cut.touched]
        in_blocks = blocked and rank > 2 and cut.axis == 1 and cut.size == result.shape[1]
        unit = lcm(cut.unit, 4) if in_blocks else cut.unit
        if not helped or cut.size <= unit:
            continue
        fitting = int(cut.size * min(e.share for e in helped)) // unit * unit
        step = _even(cut, max(fitting, unit), unit, result)
        if cut.equal:
            step = max(n for n in range(1, max(fitting, 1) + 1) if cut.size % n == 0)
        if ceil_div(cut.size, step) > MAX_PARTS:
            continue
        lacking = len(excesses) - (len(helped) if fitting else 0)
        place = {1: -1}.get(cut.axis, cut.axis) if blocked else cut.axis
        ranked = (lacking, place, ceil_div(cut.size, step))
        if best is None or ranked < best[0]:
            best = ranked, cut, step
    return best[1:] if best else None


def _even(cut: Cut, most: int, unit: int, result: Tensor) -> int:
    """Return the steps of parts of similar size at bindable offsets."""
    bytes_each = max(1, prod(result.shape) // cut.size * min(FLOAT_BYTES.values()))
    unit = lcm(unit, GRANULE_BYTES // gcd(GRANULE_BYTES, bytes_each))
    if unit > most:
        return most
    even = ceil_div(cut.size, ceil_div(cut.size, most // unit * unit))
    return ceil_div(even, unit) * unit


def _slice(tensor: Tensor, piece: Piece) -> Tensor:
    """Return a part of a constant, as the same array for every request."""
    assert tensor.value is not None
    index: list[slice] = [slice(None)] * tensor.value.ndim
    index[piece.axis] = slice(piece.begin, piece.end)
    part = tensor.value[tuple(index)]
    place = part.__array_interface__
    part = _slices.setdefault((place["data"], place["shape"], place["strides"], part.dtype), part)
    name = f"{tensor.name}:{piece.axis}:{piece.begin}-{piece.end}"
    info = replace(tensor.info, name=name, shape=part.shape)
    return Tensor(info, Usage.CONSTANT, value=part)


def in_form(tensor: Tensor, layout: Layout, element: FloatElement) -> Tensor:
    """Return a stand-in for a tensor in some form, to compute its bound size."""
    if tensor.value is not None and element == tensor.element:
        return tensor
    return replace(
        tensor, layout=layout if tensor.value is None else tensor.layout, element=element
    )
