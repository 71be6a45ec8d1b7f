"""Ops on images: conditions and recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.base.registry import Registry
from vkmnn.core.execution import Command, Layouts
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.float_rules import is_float
from vkmnn.vulkan.images.place import place_of

Takes = Callable[[VulkanExecution[Any], Sequence[Tensor | None]], set[int] | None]
Record = Callable[[VulkanExecution[Any], VulkanEncoder], None]


@dataclass(frozen=True, slots=True)
class ImageForm:
    """An op's implementation on images.

    Attributes:
        takes: returns the numbers of the inputs that should be in images, None if there is no
            kernel for the op; it sees the inputs in their current form.
        record: records the op, whose result is an image.
    """

    takes: Takes
    record: Record


IMAGE_FORMS: Registry[str, ImageForm] = Registry("image kernels of")


def image_form(op_type: str, takes: Takes) -> Callable[[Record], Record]:
    """Register the function that records ops of a type on images."""

    def add(record: Record) -> Record:
        IMAGE_FORMS.register(op_type)(ImageForm(takes, record))
        return record

    return add


def image_layouts(command: Command, inputs: Sequence[Tensor | None], limit: int) -> Layouts | None:
    """Return the layouts with which a command works on images; None if it does not.

    Args:
        command: a command of the backend.
        inputs: its operands in their current form.
        limit: the maximum number of texels along an axis of an image.
    """
    form, execution = IMAGE_FORMS.get(command.op.type), command.execution
    if form is None or not isinstance(execution, VulkanExecution) or len(command.outputs) != 1:
        return None
    execution.bind(inputs, command.outputs)
    numbers = form.takes(execution, inputs)
    if numbers is None:
        return None
    kept = [inputs[number] for number in numbers]
    for tensor in (*kept, *command.outputs):
        if tensor is None or not is_float(tensor) or place_of(tensor.shape, limit) is None:
            return None
    wanted = [Layout.IMAGE if n in numbers else Layout.NCHW for n in range(len(inputs))]
    return wanted, [Layout.IMAGE]


def image_record(command: Command) -> Record | None:
    """Return the recorder of a command with an image result; None for others."""
    outputs = command.outputs
    if command.op.type == "ConvertTensor" or not outputs or outputs[0].layout is not Layout.IMAGE:
        return None
    return IMAGE_FORMS[command.op.type].record
