"""Functions of one and of two tensors, texel by texel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation, Array, Layout
from vkmnn.ir.ops import StridedBinaryAttrs
from vkmnn.shaders import kernels
from vkmnn.vulkan.activation import activation_spec, keeps_zero
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.images.forms import image_form
from vkmnn.vulkan.images.place import Place, place_of
from vkmnn.vulkan.storage import pack_nc4hw4

# Kinds beyond the activations with f(0) = 0.
_ZERO_OF_ZERO = frozenset(
    {"ABS", "NEG", "FLOOR", "CEIL", "ROUND", "SQRT", "SQUARE", "ERF", "SIN", "SIGN", "SOFTSIGN"}
)
_TESTS = frozenset({"ISNAN", "ISINF"})
_KINDS = frozenset({"ADD", "SUB", "MUL", "DIV", "POW", "MOD", "FMOD", "MIN", "MAX", "PRELU"})
_ZERO_OF_ZEROS = frozenset({"ADD", "SUB", "MUL", "MIN", "MAX", "PRELU"})


def _unary_takes(
    execution: VulkanExecution[Any], inputs: Sequence[Tensor | None]
) -> set[int] | None:
    """Accept tensors in images if lanes without a channel stay zero."""
    attrs, x = execution.attrs, inputs[0]
    if x is None or x.layout is not Layout.IMAGE or attrs.kind in _TESTS:
        return None
    zero = attrs.kind in _ZERO_OF_ZERO or keeps_zero(
        Activation(attrs.kind, attrs.alpha, attrs.beta)
    )
    return {0} if zero or x.shape[1] % 4 == 0 else None


@image_form("UnaryOp", _unary_takes)
def record_unary(execution: VulkanExecution[Any], encoder: VulkanEncoder) -> None:
    """Record one dispatch."""
    attrs, x, y = execution.attrs, execution.operand(0), execution.output
    place = _place(y.shape, encoder)
    shader = kernels.unary(form="map", element=encoder.element, load="image")
    params = kernels.UnaryParams(n4=place.texels, alpha=attrs.alpha, beta=attrs.beta)
    spec = {"KIND": kernels.Unary[attrs.kind].value}
    encoder.dispatch_linear(shader, [x, y], params, place.texels, spec)


def _binary_takes(
    execution: VulkanExecution[Any], inputs: Sequence[Tensor | None]
) -> set[int] | None:
    """Accept operands if the one with the result's shape is in an image."""
    attrs, y = execution.attrs, execution.outputs[0]
    tensors = [tensor for tensor in inputs if tensor is not None]
    rank = len(y.shape)
    variable = {n for n, tensor in enumerate(tensors) if tensor.value is None}
    if isinstance(attrs, StridedBinaryAttrs) or attrs.kind not in _KINDS:
        return None
    if len(tensors) != 2 or not 2 <= rank <= 4:
        return None
    if not any(tensors[n].layout is Layout.IMAGE and tensors[n].shape == y.shape for n in variable):
        return None
    if any(len(tensors[n].shape) != rank for n in variable):
        return None
    if any(len(t.shape) > rank or 0 in t.shape for t in tensors):
        return None
    channels = y.shape[1]
    same = all(_shape(tensor, rank)[1] == channels for tensor in tensors)
    zero = attrs.kind in _ZERO_OF_ZEROS and keeps_zero(attrs.activation) and same
    return variable if zero or channels % 4 == 0 else None


@image_form("BinaryOp", _binary_takes)
def record_binary(execution: VulkanExecution[Any], encoder: VulkanEncoder) -> None:
    """Record one dispatch over the texels of the result, row by row."""
    attrs, y = execution.attrs, execution.output
    rank = len(y.shape)
    whole = _place(y.shape, encoder)
    sizes = _axes(whole, whole.folded)
    tensors, strides, splats = [], [], []
    for tensor in execution.operands:
        shape = _shape(tensor, rank)
        place = _place(shape, encoder)
        splat = shape[1] == 1 and y.shape[1] > 1
        steps = _steps(place, whole)
        tensors.append(_texels(tensor, shape, place, encoder))
        strides.append([4 * step for step in steps] if splat else steps)
        splats.append(splat)
    params = kernels.BinaryParams(
        count=whole.texels,
        size=(*sizes[1:], 1, 1),
        a_stride=(*strides[0], 0, 0),
        b_stride=(*strides[1], 0, 0),
        act_alpha=attrs.activation.alpha,
        act_beta=attrs.activation.beta,
        elements=4 * whole.texels,
        check=0,
    )
    spec: dict[str, int | bool] = {
        "KIND": kernels.Binary[attrs.kind].value,
        "AXES": len(sizes),
        "A_SPLAT": splats[0],
        "B_SPLAT": splats[1],
    }
    if attrs.activation.kind != "NONE":
        spec |= activation_spec(attrs.activation)
    shader = kernels.binary(form="map", width=4, element=encoder.element, load="image")
    encoder.dispatch_linear(shader, [*tensors, y], params, whole.texels, spec)


def _shape(tensor: Tensor, rank: int) -> tuple[int, ...]:
    return (*[1] * (rank - len(tensor.shape)), *tensor.shape)


def _place(shape: Sequence[int], encoder: VulkanEncoder) -> Place:
    place = place_of(shape, encoder.info.limits.max_image_dimension)
    assert place is not None, f"{shape} fits into no image"
    return place


def _axes(place: Place, folded: bool) -> list[int]:
    """Return the axes batch, row, block and column in the order of an image's texels."""
    inner = (place.columns, place.blocks) if folded else (place.blocks, place.columns)
    return [place.batch, place.rows, *inner]


def _steps(place: Place, whole: Place) -> list[int]:
    """Return an operand's steps along the axes of the result's texels, 0 where it repeats."""
    steps, step = {}, 1
    names = ["batch", "row", *(("column", "block") if place.folded else ("block", "column"))]
    sizes = _axes(place, place.folded)
    for name, size in zip(reversed(names), reversed(sizes), strict=True):
        steps[name] = step if size > 1 else 0
        step *= size
    order = ["batch", "row", *(("column", "block") if whole.folded else ("block", "column"))]
    return [steps[name] for name in order]


def _texels(tensor: Tensor, shape: tuple[int, ...], place: Place, encoder: VulkanEncoder) -> Tensor:
    """Return an operand in an image: constants, which arrive in plain order, are packed."""
    if tensor.value is None:
        return tensor

    def pack(plain: Array) -> Array:
        blocks, batch, rows, columns = place.blocks, place.batch, place.rows, place.columns
        texels = pack_nc4hw4(plain.reshape(shape)).reshape(blocks, batch, rows, columns, 4)
        order = (1, 2, 3, 0, 4) if place.folded else (1, 2, 0, 3, 4)
        return np.ascontiguousarray(texels.transpose(order)).reshape(place.height, place.width, 4)

    return encoder.image_constant(tensor, f"texels:{len(shape)}", pack)
