"""Limits the memory that the ops of a plan hold on the numpy backend."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.base.budget import Meter
from vkmnn.core.execution import Command
from vkmnn.shape import info_bytes, is_view, working_bytes


def check_host_memory(
    commands: Sequence[Command], backend: str, outputs: set[str], meter: Meter
) -> None:
    """Refuse a plan whose ops on the numpy backend hold too much memory at one time.

    Args:
        commands: the plan, in running order.
        backend: the type of the numpy backend.
        outputs: tensors that stay until the run is over.
        meter: the limit.

    Raises:
        BudgetError: names the op that exceeds the limit.
    """
    if backend not in {command.backend for command in commands}:
        return
    last: dict[str, int] = {}
    for step, command in enumerate(commands):
        for tensor in command.inputs:
            if tensor is not None:
                last[tensor.name] = step
    held = 0
    dying: dict[int, int] = {}
    for step, command in enumerate(commands):
        op = command.op
        if command.backend == backend and not is_view(op):
            outs = [out.info for out in command.outputs]
            ins = [None if tensor is None else tensor.info for tensor in command.inputs]
            working = working_bytes(op, ins, outs)
            before, held = held, held + info_bytes(outs)
            meter.check_host(held, before + working, op.type, op.source or op.name)
            for out in command.outputs:
                if out.name not in outputs:
                    end = last.get(out.name, step)
                    dying[end] = dying.get(end, 0) + info_bytes([out.info])
        held -= dying.pop(step, 0)
