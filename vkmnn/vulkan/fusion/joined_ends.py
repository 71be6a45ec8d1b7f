"""Folds layout and dtype conversions at the ends of a network into the adjacent kernel.

Hosts have plain float32. The first kernel may read it, and the last store it, so that no dispatch
only changes order and width. A last convolution also stores its channels as squares of pixels, as
DepthToSpace does. As with `pairs.py`, graph and plan do not change, only the recorded commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from vkmnn.core.execution import Command
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.geometry.movement import depth_to_space
from vkmnn.geometry.regions import simplify
from vkmnn.ir import Layout
from vkmnn.ir.ops import RasterAttrs
from vkmnn.runtime.device_info import MemoryFlag
from vkmnn.vulkan.copies.layout_change import same_order
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.cost.passes import pass_cost
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.executions.convolution import ConvolutionExecution
from vkmnn.vulkan.float_rules import is_float
from vkmnn.vulkan.gemm.job import Spread
from vkmnn.vulkan.storage import storage_bytes

_MOVING = {"ConvertTensor", "Raster"}
IMAGE_RANK = 4


def join_ends(
    segments: Sequence[Sequence[Command]], encoder: VulkanEncoder
) -> Sequence[Sequence[Command]]:
    """Return the commands without the conversions that other kernels perform.

    Args:
        segments: the commands in running order, whose tensors have their final forms.
        encoder: makes the choice.
    """
    if not _MOVING & {command.op.type for commands in segments for command in commands}:
        return segments
    readers = Counter(
        t.name
        for commands in segments
        for command in commands
        for t in command.inputs
        if t is not None
    )
    return [_Ends(commands, readers, encoder).joined() for commands in segments]


class _Ends:
    """Joins the commands of one segment."""

    def __init__(
        self, commands: Sequence[Command], readers: Counter[str], encoder: VulkanEncoder
    ) -> None:
        self._commands = commands
        self._readers = readers
        self._encoder = encoder
        self._makers = {out.name: at for at, c in enumerate(commands) for out in c.outputs}
        self._converted = {c.outputs[0].name for c in commands if _converts(c)}
        self._instead: dict[int, Command | None] = {}

    def joined(self) -> list[Command]:
        """Return the commands that remain."""
        for at, command in enumerate(self._commands):
            x = command.inputs[0] if command.inputs else None
            if _converts(command) or _spread_of(command):
                self._join_last(at)
            elif x is not None and x.name in self._converted:
                self._join_first(at, x)
        kept = (self._instead.get(at, command) for at, command in enumerate(self._commands))
        return [command for command in kept if command is not None]

    def _join_first(self, at: int, inner: Tensor) -> None:
        """Let a kernel read the input of the conversion before it, if that pays."""
        command, dropped = self._now(at), []
        x: Tensor | None = inner
        while x is not None and x.name in self._converted and (maker := self._alone(x)) is not None:
            dropped.append(maker[0])
            x = maker[1].inputs[0]
        if x is None or not dropped or not _is_plain(x) or not self._near(x):
            return
        joined = replace(command, inputs=[x, *command.inputs[1:]])
        beside = self._commands[dropped[0]].op.name
        if self._pays(joined, 0, inner, x, beside):
            self._instead |= {at: joined, **dict.fromkeys(dropped)}

    def _join_last(self, at: int) -> None:
        """Let a kernel store the output of the conversion after it, if that pays."""
        last, out = self._commands[at], self._commands[at].outputs[0]
        dropped, spread = [at], _spread_of(last)
        source, maker = self._before(last) if _is_plain(out) else (None, None)
        if maker is not None and not spread and (spread := _spread_of(maker[1])):
            dropped.append(maker[0])
            source, maker = self._before(maker[1])
        if source is None or maker is None or _converts(maker[1]) or len(maker[1].outputs) > 1:
            return
        joined = replace(maker[1], outputs=[out])
        if spread:
            if not isinstance(joined.execution, ConvolutionExecution):
                return
            joined = replace(joined, execution=joined.execution.spread_by(spread))
        if self._pays(joined, 1, source, out, last.op.name):
            self._instead |= {maker[0]: joined, **dict.fromkeys(dropped)}

    def _before(self, command: Command) -> tuple[Tensor | None, tuple[int, Command] | None]:
        """Return a command's first operand, and its producer if nothing else reads it."""
        source = command.inputs[0]
        return source, self._alone(source) if source is not None else None

    def _now(self, at: int) -> Command:
        return self._instead.get(at) or self._commands[at]

    def _alone(self, tensor: Tensor) -> tuple[int, Command] | None:
        """Return the producer of a tensor with a single reader."""
        at = self._makers.get(tensor.name)
        read_by_host = tensor.usage is Usage.OUTPUT and _is_plain(tensor)
        alone = self._readers[tensor.name] == 1 and not read_by_host
        return (at, self._now(at)) if at is not None and alone else None

    def _near(self, x: Tensor) -> bool:
        """Return whether a kernel may read a tensor any number of times.

        Not if the host writes it into its own memory, beyond a bus.
        """
        types = self._encoder.info.memory_types
        both = MemoryFlag.DEVICE_LOCAL | MemoryFlag.HOST_VISIBLE
        mapped = not types or any(item.flags & both == both for item in types)
        return x.usage is not Usage.INPUT or mapped

    def _pays(
        self, joined: Command, end: int, inner: Tensor | None, plain: Tensor, beside: str
    ) -> bool:
        """Return whether the fused dispatch is likely faster than two."""
        execution, encoder = joined.execution, self._encoder
        limit = encoder.info.limits.max_storage_buffer_range
        if not isinstance(execution, VulkanExecution) or inner is None:
            return False
        if any(
            t is not None and t.layout is Layout.IMAGE
            for t in (inner, *joined.inputs, *joined.outputs)
        ):
            return False
        if storage_bytes(plain) > limit or _is_view(inner, plain):
            return False
        execution.bind(joined.inputs, joined.outputs)
        encoder.begin(joined.op.name, (*joined.inputs, *joined.outputs))
        more = execution.plain_end_us(end, encoder)
        if more is None:
            return False
        moved = storage_bytes(inner) + storage_bytes(plain)
        apart = pass_cost(moved, encoder.info).total + class_of(encoder.info).gap_us
        pays = is_gpu(encoder.info) and more < apart
        shapes = tuple(t and t.shape for t in (*joined.inputs, *joined.outputs))
        problem = joined.op.type, end, shapes
        return encoder.choose("plain end", problem, (pays, not pays), beside=beside)


def _converts(command: Command) -> bool:
    return command.op.type == "ConvertTensor"


def _spread_of(command: Command) -> Spread | None:
    """Return the parameters of DepthToSpace if a command only moves numbers as that does."""
    attrs = command.op.attrs
    if not isinstance(attrs, RasterAttrs) or len(attrs.regions) != 1 or attrs.ordered:
        return None
    source, out = command.inputs[0], command.outputs[0]
    if source is None or len(source.shape) != IMAGE_RANK or len(out.shape) != IMAGE_RANK:
        return None
    if 0 in out.shape or source.layout is Layout.NCHW or source.value is not None:
        return None
    side = out.shape[2] // source.shape[2]
    n, c, h, w = source.shape
    if side < 2 or out.shape != (n, c // side**2, h * side, w * side):
        return None
    region = simplify(attrs.regions[0])
    for depth_first in (False, True):
        if region == simplify(depth_to_space(source.shape, side, depth_first)):
            return Spread(side, depth_first)
    return None


def _is_plain(tensor: Tensor) -> bool:
    wide = tensor.layout is Layout.NCHW and tensor.element == "f32" and tensor.codes is None
    return wide and is_float(tensor) and tensor.value is None and 0 not in tensor.shape


def _is_view(inner: Tensor, plain: Tensor) -> bool:
    """Return whether the conversion needs no dispatch."""
    return inner.element == plain.element and (
        inner.layout is plain.layout or same_order(plain.shape)
    )
