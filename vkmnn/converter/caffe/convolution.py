"""Convolutions and products with weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vkmnn.converter.caffe.nodes import CaffeLayer, reads
from vkmnn.converter.nodes import INT64

_DEPTHWISE = ("ConvolutionDepthwise", "DepthwiseConvolution")


def _spatial(
    op: CaffeLayer, stated: Sequence[int], height: int, width: int, count: int, otherwise: int
) -> list[int]:
    """Return a number per spatial axis: given separately, once for all, or for each."""
    if height or width:
        return [height, width]
    found = list(stated) or [otherwise]
    if len(found) == 1:
        return found * count
    if len(found) != count:
        raise op.damaged(f"{len(found)} numbers for {count} spatial axes")
    return found


def _window(op: CaffeLayer) -> dict[str, Any]:
    """Return the window as ONNX's attributes."""
    window = op.proto.convolution_param
    if window.axis != 1:
        raise op.unreadable(f"channels along axis {window.axis}")
    rank = op.rank(0)
    count = 2 if rank is None else rank - 2
    kernel = _spatial(op, window.kernel_size, window.kernel_h, window.kernel_w, count, 0)
    strides = _spatial(op, window.stride, window.stride_h, window.stride_w, count, 1)
    pads = _spatial(op, window.pad, window.pad_h, window.pad_w, count, 0)
    dilations = _spatial(op, window.dilation, 0, 0, count, 1)
    if count < 1 or min(*kernel, *strides, *dilations) < 1 or window.num_output < 1:
        raise op.damaged(
            f"{window.num_output} outputs of a window of {kernel}, by strides {strides}, on a "
            f"tensor of {count + 2} axes"
        )
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": pads * 2,
        "dilations": dilations,
        "group": window.group,
    }


def _groups(op: CaffeLayer, channels: int | None) -> int:
    """Return the number of groups; forks have layers with one for each channel."""
    window = op.proto.convolution_param
    outputs: int = window.num_output
    group: int = window.group
    if op.type in _DEPTHWISE:
        group = channels or outputs
    if group < 1 or outputs % group or (channels or 0) % group:
        raise op.damaged(f"{channels or '?'} channels and {outputs} outputs in {group} groups")
    return group


@reads("Convolution", *_DEPTHWISE)
def convolution(op: CaffeLayer) -> None:
    """Conv."""
    op.need(1)
    options, outputs = _window(op), op.proto.convolution_param.num_output
    channels = _channels(op)
    group = options["group"] = _groups(op, channels)
    each = None if channels is None else channels // group
    operands = [op.weight(0, [outputs, each, *options["kernel_shape"]], "weights")]
    if op.proto.convolution_param.bias_term:
        operands.append(op.weight(1, [outputs], "biases"))
    _each(op, "Conv", operands, options)


@reads("Deconvolution")
def deconvolution(op: CaffeLayer) -> None:
    """ConvTranspose."""
    op.need(1)
    options, outputs = _window(op), op.proto.convolution_param.num_output
    group = _groups(op, _channels(op))
    shape = [_channels(op), outputs // group, *options["kernel_shape"]]
    operands = [op.weight(0, shape, "weights")]
    if op.proto.convolution_param.bias_term:
        operands.append(op.weight(1, [outputs], "biases"))
    _each(op, "ConvTranspose", operands, options)


def _channels(op: CaffeLayer) -> int | None:
    shape = op.shape_of(op.inputs[0])
    return shape[1] if shape is not None and len(shape) > 1 else None


def _each(op: CaffeLayer, kind: str, operands: Sequence[str], options: dict[str, Any]) -> None:
    """Do the same to every input of a layer."""
    if len(op.inputs) != len(op.outputs):
        raise op.damaged(f"{len(op.inputs)} inputs and {len(op.outputs)} outputs")
    for x, y in zip(op.inputs, op.outputs, strict=True):
        op.scope.emit(kind, [x, *operands], [y], op.name, **options)


@reads("InnerProduct")
def inner_product(op: CaffeLayer) -> None:
    """A product over all axes from one on."""
    op.need(1)
    product = op.proto.inner_product_param
    x, rank = op.inputs[0], op.known_rank()
    axis = op.axis(product.axis, rank)
    depth: int | None = 1
    for size in op.sizes(x)[axis:]:
        depth = None if depth is None or size is None else depth * size
    outputs = product.num_output
    shape = [depth, outputs] if product.transpose else [outputs, depth]
    weights = op.weights(0, shape, "weights")
    bias = [op.weight(1, [outputs], "biases")] if product.bias_term else []
    if axis == 1:
        flat = op.make("Flatten", x, axis=1) if rank != 2 else x
        operand = op.scope.constant(weights, op.name)
        op.finish("Gemm", flat, operand, *bias, transB=int(not product.transpose))
        return
    operand = op.scope.constant(weights if product.transpose else weights.T.copy(), op.name)
    flat = op.make("Reshape", x, op.constant([0] * axis + [-1]))
    result = op.make("MatMul", flat, operand)
    op.finish("Add" if bias else "Identity", result, *bias)


@reads("Embed")
def embed(op: CaffeLayer) -> None:
    """Rows of a table."""
    op.need(1)
    table = op.proto.embed_param
    rows = op.weight(0, [table.input_dim, table.num_output], "table")
    found = op.make("Gather", rows, op.cast(op.inputs[0], INT64), axis=0)
    bias = [op.weight(1, [table.num_output], "biases")] if table.bias_term else []
    op.finish("Add" if bias else "Identity", found, *bias)
