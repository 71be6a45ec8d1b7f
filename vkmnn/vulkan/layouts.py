"""Give every tensor a layout and insert ConvertTensor where producer and consumer differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vkmnn.core.execution import Command, Execution
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, Op, TensorInfo
from vkmnn.ir.ops import ConvertTensorAttrs

MakeExecution = Callable[[Op, Sequence[Tensor | None], Sequence[Tensor]], Execution]


def assign_layouts(
    commands: Sequence[Command], backend: str, outputs: frozenset[str], make: MakeExecution
) -> list[Command]:
    """Return the commands with layouts assigned, conversions inserted once per tensor and layout.

    Commands of other backends, and tensors named in `outputs`, get plain order.

    Args:
        commands: the plan, in running order.
        backend: the type of the backend that negotiates.
        outputs: tensors that the host reads.
        make: creates the execution of a ConvertTensor op.
    """
    converted: dict[tuple[str, Layout], Tensor] = {}
    result: list[Command] = []

    def convert(tensor: Tensor, layout: Layout, into: Tensor | None = None) -> Tensor:
        key = (tensor.name, layout)
        if key not in converted or into is not None:
            info = TensorInfo(f"{tensor.name}:{layout.value}", tensor.dtype, tensor.info.shape)
            copy = into or replace(tensor, info=info, layout=layout)
            attrs = ConvertTensorAttrs(tensor.layout.value, layout.value)
            op = Op("ConvertTensor", f"{copy.name}:convert", [tensor.name], [copy.name], attrs)
            result.append(Command(op, [tensor], [copy], make(op, [tensor], [copy]), backend))
            converted[key] = copy
        return converted[key]

    current: dict[str, Tensor] = {}
    for command in commands:
        inputs = [None if t is None else current.get(t.name, t) for t in command.inputs]
        if command.backend != backend:
            command.inputs = [
                t if t is None or t.layout is Layout.NCHW else convert(t, Layout.NCHW)
                for t in inputs
            ]
            result.append(command)
            continue
        wanted, made = command.execution.layouts(inputs, command.outputs)
        command.inputs = [
            t if t is None or t.value is not None or t.layout is layout else convert(t, layout)
            for t, layout in zip(inputs, wanted, strict=True)
        ]
        plain = []
        for index, (out, layout) in enumerate(zip(command.outputs, made, strict=True)):
            if layout is Layout.NCHW:
                continue
            if out.name in outputs:
                # The host reads this name in plain order: compute beside it and convert into it.
                blocked = replace(
                    out, info=replace(out.info, name=f"{out.name}:{layout.value}"), layout=layout
                )
                command.outputs[index] = blocked
                plain.append((blocked, out))
                converted[out.name, layout] = blocked
            else:
                out.layout = layout
        result.append(command)
        for blocked, out in plain:
            convert(blocked, Layout.NCHW, into=out)
            current[out.name] = blocked
            converted[blocked.name, Layout.NCHW] = out
    return result
