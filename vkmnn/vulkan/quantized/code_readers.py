"""Plans which tensors are stored as bytes, and with which shift, before layouts are assigned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vkmnn.base.elements import FloatElement
from vkmnn.core.execution import Command
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout
from vkmnn.vulkan.copies.layout_change import is_reordered
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.float_rules import is_float
from vkmnn.vulkan.splitting.splitter import Divider

CodeReaders = dict[str, "int | None"]
"""Tensor names with the shift preferred by their readers, if any."""


def code_readers(
    commands: Sequence[Command],
    backend: str,
    outputs: frozenset[str],
    divider: Divider | None,
    *,
    element: FloatElement = "f32",
) -> CodeReaders:
    """Return the tensors whose readers all accept bytes.

    Args:
        commands: the plan, in running order.
        backend: the type of the backend whose ops support quantised values.
        outputs: tensors that the host reads.
        divider: tells which ops may have to be split: they read no quantised values.
        element: how floats may be stored; ops that read narrow ones produce no quantised values.
    """
    if not _begin_codes(commands):
        return {}
    takers: dict[int, VulkanExecution[Any]] = {}
    for number, command in enumerate(commands):
        execution = command.execution
        small = divider is None or divider.is_small([*command.inputs, *command.outputs])
        if command.backend == backend and isinstance(execution, VulkanExecution) and small:
            takers[number] = execution
    while True:
        found = _wishes(commands, takers, _only_read_as_codes(commands, takers, outputs))
        without = _without_codes(commands, takers, found, element=element)
        if not without:
            return found
        for number in without:
            del takers[number]


def _only_read_as_codes(
    commands: Sequence[Command], takers: Mapping[int, VulkanExecution[Any]], outputs: frozenset[str]
) -> frozenset[str]:
    found: dict[str, set[Layout]] = {}
    others = set(outputs)
    for number, command in enumerate(commands):
        numbers = takers[number].code_inputs() if number in takers else {}
        for place, tensor in enumerate(command.inputs):
            if tensor is None:
                continue
            if place in numbers:
                found.setdefault(tensor.name, set()).add(takers[number].code_layout)
            else:
                others.add(tensor.name)
    orders = _orders_of_makers(commands, takers)
    for name, order in orders.items():
        found.get(name, set()).add(order)
    return frozenset(name for name, read in found.items() if len(read) == 1) - others


def _orders_of_makers(
    commands: Sequence[Command], takers: Mapping[int, VulkanExecution[Any]]
) -> dict[str, Layout]:
    """Return the layout in which each result could be bytes, if any."""
    return {
        commands[number].outputs[0].name: execution.code_layout
        for number, execution in takers.items()
        if commands[number].outputs
    }


def _wishes(
    commands: Sequence[Command], takers: Mapping[int, VulkanExecution[Any]], names: frozenset[str]
) -> CodeReaders:
    """Return the shifts that readers prefer: joined tensors need equal ones."""
    wishes: CodeReaders = dict.fromkeys(names)
    joined: set[str] = set()
    for number in sorted(takers, reverse=True):
        command, execution = commands[number], takers[number]
        after = wishes.get(command.outputs[0].name) if execution.keeps_codes() else None
        for place, shift in execution.code_inputs().items():
            tensor = command.inputs[place] if place < len(command.inputs) else None
            wish = after if shift is None else shift
            if tensor is None or tensor.name not in names or wish is None:
                continue
            if shift is None:
                joined.add(tensor.name)
            elif tensor.name in joined:
                continue
            wishes[tensor.name] = wish
    return wishes


def _without_codes(
    commands: Sequence[Command],
    takers: Mapping[int, VulkanExecution[Any]],
    readers: CodeReaders,
    *,
    element: FloatElement,
) -> list[int]:
    """Return the ops that read bytes only if they also write bytes, but may not.

    A prediction for an op never exceeds what it will produce.
    """
    made: dict[str, int] = {}
    without = []
    for number, execution in takers.items():
        command = commands[number]
        (output, *_), inputs = command.outputs, list(command.inputs)
        for place, shift in execution.code_inputs().items():
            tensor = inputs[place] if place < len(inputs) else None
            if tensor is not None and tensor.name in readers:
                known = made.get(tensor.name)
                inputs[place] = _as_codes(tensor, known, shift, execution.code_layout)
        codes = None
        if output.name in readers:
            if element != "f32":
                inputs = [_maybe_narrow(tensor, element) for tensor in inputs]
            execution.bind(inputs, command.outputs)
            codes = execution.made_codes(readers[output.name])
            execution.bind(command.inputs, command.outputs)
        if codes is not None:
            made[output.name] = codes
        elif execution.needs_codes():
            without.append(number)
    return without


def _as_codes(tensor: Tensor, made: int | None, shift: int | None, order: Layout) -> Tensor:
    """Return a tensor in its future form; moved floats may be quantised values."""
    moved = order is Layout.NC4HW4 and is_reordered(tensor)
    if made is None and (shift is None or not moved):
        return tensor
    return replace(tensor, layout=order, codes=shift if made is None else made)


def _maybe_narrow(tensor: Tensor | None, element: FloatElement) -> Tensor | None:
    """Return a tensor in its possible form where floats may be narrow."""
    if tensor is None or tensor.value is not None or tensor.codes is not None:
        return tensor
    return replace(tensor, element=element) if is_float(tensor) else tensor


def _begin_codes(commands: Sequence[Command]) -> bool:
    """Return whether an op may quantise float inputs; most classes never do."""
    classes = {
        kind
        for kind in {type(command.execution) for command in commands}
        if issubclass(kind, VulkanExecution)
        and kind.begins_codes is not VulkanExecution.begins_codes
    }
    asked = (command.execution for command in commands if type(command.execution) in classes)
    return any(isinstance(one, VulkanExecution) and one.begins_codes() for one in asked)
