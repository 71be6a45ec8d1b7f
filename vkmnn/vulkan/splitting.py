"""What exceeds the largest storage buffer that the device binds: refused, or computed in parts.

Vulkan promises no more than 128 MiB (maxStorageBufferRange); the weights of a fully connected layer
may take more. Such a product is cut along its columns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from vkmnn.core.execution import Command, Execution
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.ir import Array, Op, Region, View
from vkmnn.ir.ops import MatMulAttrs, RasterAttrs
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.encoder import ceil_div, load_storages
from vkmnn.vulkan.executions.matmul import PANEL
from vkmnn.vulkan.storage import ELEMENT_BYTES, storage_bytes

MakeExecution = Callable[[Op, Sequence[Tensor | None], Sequence[Tensor]], Execution]

# Slices by the memory that they show, so that every plan finds the same object and uploads no more.
_slices: weakref.WeakValueDictionary[tuple[object, ...], Array] = weakref.WeakValueDictionary()


def too_large(
    op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], info: DeviceInfo
) -> str | None:
    """Say which tensor cannot be bound as a storage buffer; None where there is none.

    Where kernels load through texel buffers, which are larger, nothing is refused here.
    """
    limit = info.limits.max_storage_buffer_range
    if "texel" in load_storages(info):
        return None
    for number, tensor in enumerate((*inputs, *outputs)):
        if tensor is None or storage_bytes(tensor) <= limit:
            continue
        if number == 1 and _columns(op, inputs, limit):
            continue
        return (
            f"'{tensor.name}' takes {storage_bytes(tensor)} bytes, more than the {limit} that the "
            "device binds as one buffer"
        )
    return None


def split_products(
    commands: Sequence[Command], backend: str, info: DeviceInfo, make: MakeExecution
) -> list[Command]:
    """Return the commands, products with too large a constant cut in parts and put together.

    Args:
        commands: the plan, in running order.
        backend: the type of the backend whose commands are cut.
        info: its device.
        make: creates the executions of the parts.
    """
    limit = info.limits.max_storage_buffer_range
    if "texel" in load_storages(info):
        return list(commands)
    result: list[Command] = []
    for command in commands:
        columns = _columns(command.op, command.inputs, limit)
        if command.backend == backend and columns:
            result += _parts(command, columns, make)
        else:
            result.append(command)
    return result


def _columns(op: Op, inputs: Sequence[Tensor | None], limit: int) -> int:
    """Return how many columns of a product's constant fit; 0 where it need or can not be cut."""
    if op.type != "MatMul":
        return 0
    _, b, bias, residual = (*inputs, None, None)[:4]
    assert b is not None
    if b.value is None or len(b.shape) < 2 or residual is not None:
        return 0
    k, n = _sizes(op, b)
    column = prod(b.shape[:-2]) * ceil_div(k, 4) * 4 * ELEMENT_BYTES
    if column * ceil_div(n, PANEL) * PANEL <= limit:
        return 0
    if bias is not None and (bias.value is None or bias.shape != (n,)):
        return 0
    most = limit // (column * PANEL)
    return ceil_div(ceil_div(n, PANEL), ceil_div(ceil_div(n, PANEL), most)) * PANEL if most else 0


def _sizes(op: Op, b: Tensor) -> tuple[int, int]:
    assert isinstance(op.attrs, MatMulAttrs)
    k, n = b.shape[-2:]
    return (n, k) if op.attrs.transpose_b else (k, n)


def _parts(command: Command, columns: int, make: MakeExecution) -> list[Command]:
    op, (output,) = command.op, command.outputs
    a, b, bias = (*command.inputs, None)[:3]
    assert b is not None
    assert isinstance(op.attrs, MatMulAttrs)
    _, n = _sizes(op, b)
    rows = prod(output.shape[:-1])
    made: list[Command] = []
    regions = []
    for number, start in enumerate(range(0, n, columns)):
        end = min(start + columns, n)
        inputs = [a, _slice(b, -2 if op.attrs.transpose_b else -1, start, end)]
        if bias is not None:
            inputs.append(_slice(bias, 0, start, end))
        shape = (*output.shape[:-1], end - start)
        info = replace(output.info, name=f"{output.name}:part{number}", shape=shape)
        part = Tensor(info)
        names = [tensor.name if tensor is not None else "" for tensor in inputs]
        cut = replace(op, name=f"{op.name}:part{number}", inputs=names, outputs=[part.name])
        made.append(Command(cut, inputs, [part], make(cut, inputs, [part]), command.backend))
        source, target = View(0, (end - start, 1)), View(start, (n, 1))
        regions.append(Region(source, target, (rows, end - start), number))
    parts: list[Tensor | None] = [part.outputs[0] for part in made]
    join = Op(
        "Raster",
        f"{op.name}:join",
        [part.outputs[0].name for part in made],
        [output.name],
        RasterAttrs(tuple(regions)),
        op.source,
    )
    made.append(Command(join, parts, [output], make(join, parts, [output]), command.backend))
    return made


def _slice(tensor: Tensor, axis: int, start: int, end: int) -> Tensor:
    assert tensor.value is not None
    index: list[slice] = [slice(None)] * tensor.value.ndim
    index[axis] = slice(start, end)
    part = tensor.value[tuple(index)]
    place = part.__array_interface__
    part = _slices.setdefault((place["data"], place["shape"], place["strides"], part.dtype), part)
    info = replace(tensor.info, name=f"{tensor.name}:{start}", shape=part.shape)
    return Tensor(info, Usage.CONSTANT, value=part)
