"""Convolutions and pooling of volumes: five axes."""

from __future__ import annotations

from vkmnn.converter.tensorflow.convolution import pads_of_transposed, steps_of, weights_of
from vkmnn.converter.tensorflow.nodes import TfNode, reads

_ORDER = [4, 3, 0, 1, 2]


@reads("Conv3D")
def convolution(op: TfNode) -> None:
    """Conv of volumes; weights are D, H, W, I, O."""
    op.need(2)
    x = op.picture(rank=5)
    weights, (_, each, *kernel) = weights_of(op, 1, _ORDER)
    strides, dilations = steps_of(op, "strides", "dilations", rank=5)
    channels = (op.shape_of(x) or (None, None))[1]
    group = 1 if channels is None else channels // each
    if channels is not None and (group < 1 or channels % each):
        raise op.damaged(f"{channels} channels for weights of {each}")
    options = op.padding(x, kernel, strides, dilations)
    options |= {"strides": strides, "dilations": dilations, "group": group}
    op.finish_picture(op.make("Conv", x, weights, kernel_shape=kernel, **options), 5)


@reads("Conv3DBackpropInputV2")
def transposed(op: TfNode) -> None:
    """ConvTranspose of volumes; weights are D, H, W, O, I."""
    op.need(3)
    x = op.picture(2, rank=5)
    weights, (_, _, *kernel) = weights_of(op, 1, _ORDER)
    (strides,) = steps_of(op, "strides", rank=5)
    given = op.elements_of(op.inputs[0])
    pads, extra = pads_of_transposed(op, given, op.shape_of(x), kernel, strides)
    made = op.make(
        "ConvTranspose", x, weights, kernel_shape=kernel, strides=strides, pads=pads,
        output_padding=extra,
    )  # fmt: skip
    op.finish_picture(made, 5)


@reads("MaxPool3D", "AvgPool3D")
def pooling(op: TfNode) -> None:
    """MaxPool or AveragePool of volumes; pads do not count."""
    op.need(1)
    x = op.picture(rank=5)
    kernel, strides = steps_of(op, "ksize", "strides", rank=5)
    options = op.padding(x, kernel, strides, [1] * 3)
    kind = "MaxPool" if op.type == "MaxPool3D" else "AveragePool"
    op.finish_picture(op.make(kind, x, kernel_shape=kernel, strides=strides, **options), 5)
