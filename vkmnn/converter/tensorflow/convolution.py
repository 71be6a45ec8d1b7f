"""Convolutions, products, pooling and normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.converter.nodes import FLOAT, INT64
from vkmnn.converter.tensorflow.nodes import TfNode, reads


def weights_of(op: TfNode, number: int, order: list[int]) -> tuple[str, list[int]]:
    """Return weights in ONNX's order of axes, and their sizes."""
    name = op.inputs[number]

    def moved() -> str:
        array = op.scope.constants.get(name)
        if array is None or array.ndim != len(order):
            return op.make("Transpose", name, perm=order)
        return op.scope.constant(np.ascontiguousarray(array.transpose(order)), op.name)

    there = op.scope.memoised(name, ("order", tuple(order)), moved)
    sizes = op.shape_of(there)
    if sizes is None or len(sizes) != len(order):
        raise op.damaged(f"its weights have the shape {sizes}")
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or 0 in known:
        raise op.unreadable("weights of open sizes")
    return there, known


def steps_of(op: TfNode, *names: str, rank: int = 4) -> list[list[int]]:
    """Return attributes of windows: an entry for each spatial axis."""
    found = [op.spatial(op.listed(name) or [1] * rank) for name in names]
    for name, one in zip(names, found, strict=True):
        if min(one) < 1:
            raise op.damaged(f"it has the {name} {one}")
    return found


@reads("Conv2D")
def convolution(op: TfNode) -> None:
    """Conv; weights are H, W, I, O, and groups follow from their number of input channels."""
    op.need(2)
    x = op.picture()
    weights, (_, each, *kernel) = weights_of(op, 1, [3, 2, 0, 1])
    strides, dilations = steps_of(op, "strides", "dilations")
    channels = (op.shape_of(x) or (None, None))[1]
    group = 1 if channels is None else channels // each
    if channels is not None and (group < 1 or channels % each):
        raise op.damaged(f"{channels} channels for weights of {each}")
    options = op.padding(x, kernel, strides, dilations)
    options |= {"strides": strides, "dilations": dilations, "group": group}
    op.finish_picture(op.make("Conv", x, weights, kernel_shape=kernel, **options))


@reads("DepthwiseConv2dNative")
def depthwise(op: TfNode) -> None:
    """Conv of a group for each channel; weights are H, W, C, multiplier."""
    op.need(2)
    x = op.picture()
    weights, (channels, multiplier, *kernel) = weights_of(op, 1, [2, 3, 0, 1])
    flat = op.make("Reshape", weights, op.constant([channels * multiplier, 1, *kernel]))
    array = op.scope.constants.get(weights)
    if array is not None:
        flat = op.scope.constant(array.reshape(channels * multiplier, 1, *kernel), op.name)
    strides, dilations = steps_of(op, "strides", "dilations")
    options = op.padding(x, kernel, strides, dilations)
    options |= {"strides": strides, "dilations": dilations, "group": channels}
    op.finish_picture(op.make("Conv", x, flat, kernel_shape=kernel, **options))


@reads("Conv2DBackpropInput")
def transposed(op: TfNode) -> None:
    """ConvTranspose; inputs are the sizes of the result, weights H, W, O, I, and the tensor."""
    op.need(3)
    x = op.picture(2)
    weights, (_, _, *kernel) = weights_of(op, 1, [3, 2, 0, 1])
    (strides,) = steps_of(op, "strides")
    if op.text("padding") not in ("SAME", "VALID"):
        raise op.unreadable("stated pads of a transposed convolution")
    given, shape = op.elements_of(op.inputs[0]), op.shape_of(x)
    begins, extra = pads_of_transposed(op, given, shape, kernel, strides)
    found = op.make(
        "ConvTranspose", x, weights, kernel_shape=kernel, strides=strides, pads=begins,
        output_padding=extra,
    )  # fmt: skip
    op.finish_picture(found)


def pads_of_transposed(
    op: TfNode,
    given: list[int | None] | None,
    shape: tuple[int | None, ...] | None,
    kernel: list[int],
    strides: list[int],
) -> tuple[list[int], list[int]]:
    """Return the pads of a transposed convolution, and how much more its result has at the ends.

    Args:
        op: the operator.
        given: sizes of the result, as far as they are known.
        shape: sizes of the tensor, with channels first.
        kernel: sizes of the window.
        strides: its steps.
    """
    rank = len(kernel) + 2
    first = 1 if op.channels_last else 2
    sizes = None if given is None or len(given) != rank else given[first : first + len(kernel)]
    inside = (None,) * len(kernel) if shape is None or len(shape) != rank else shape[2:]
    begins, ends, extra = [], [], []
    for axis, (size, step) in enumerate(zip(kernel, strides, strict=True)):
        known = inside[axis]
        wanted = sizes[axis] if sizes is not None else None
        if wanted is None or known is None:
            raise op.unreadable("a transposed convolution to sizes that are computed at run time")
        whole = max((known - 1) * step + size - wanted, 0)
        begins.append(whole // 2)
        ends.append(whole - whole // 2)
        extra.append(max(wanted - (known - 1) * step - size, 0))
    return begins + ends, extra


@reads("MaxPool", "AvgPool")
def pooling(op: TfNode) -> None:
    """MaxPool or AveragePool; pads do not count."""
    op.need(1)
    x = op.picture()
    kernel, strides = steps_of(op, "ksize", "strides")
    options: dict[str, Any] = op.padding(x, kernel, strides, [1, 1])
    kind = "MaxPool" if op.type == "MaxPool" else "AveragePool"
    op.finish_picture(op.make(kind, x, kernel_shape=kernel, strides=strides, **options))


@reads("BiasAdd", "BiasAddV1")
def bias(op: TfNode) -> None:
    """Add along the channels."""
    op.need(2)
    x, summand = op.inputs[:2]
    if not op.channels_last:
        shape = op.constant([-1, *[1] * (op.known_rank() - 2)])
        summand = op.make("Reshape", summand, shape)
    op.finish("Add", x, summand)


@reads("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(op: TfNode) -> None:
    """BatchNormalization by statistics that are known."""
    op.need(5)
    if op.flag("is_training", True):
        _by_batch(op)
        return
    scale, shift, mean, variance = op.inputs[1:5]
    made = op.make(
        "BatchNormalization", op.picture(), scale, shift, mean, variance,
        epsilon=op.real("epsilon", 1e-4),
    )  # fmt: skip
    op.finish_picture(made)


def _by_batch(op: TfNode) -> None:
    """Normalise by the mean and the variance of the batch, which are outputs, too."""
    if len(op.outputs) > 3 or op.real("exponential_avg_factor", 1.0) != 1:
        raise op.unreadable("statistics that are averaged over batches, or are for gradients")
    rank = op.known_rank()
    channel = rank - 1 if op.channels_last else 1
    axes = op.constant([axis for axis in range(rank) if axis != channel])
    ones = [1] * rank
    ones[channel] = -1
    wide = op.constant(ones)
    x, flat = op.inputs[0], op.constant([-1])
    mean = op.make("ReduceMean", x, axes, keepdims=1)
    distance = op.make("Sub", x, mean)
    variance = op.make("ReduceMean", op.make("Mul", distance, distance), axes, keepdims=1)
    spread = op.make("Sqrt", op.make("Add", variance, op.constant(op.real("epsilon", 1e-4), "f4")))
    scale, shift = (op.make("Reshape", name, wide) for name in op.inputs[1:3])
    op.finish("Add", op.make("Mul", op.make("Div", distance, spread), scale), shift)
    size = op.make("Div", op.make("Size", x, dtype=INT64), op.make("Size", mean, dtype=INT64))
    count = op.cast(size, FLOAT)
    less = op.make("Max", op.make("Sub", count, op.constant(1, "f4")), op.constant(1, "f4"))
    unbiased = op.make("Mul", variance, op.make("Div", count, less))
    for name, output in zip((mean, unbiased), op.outputs[1:], strict=False):
        op.scope.emit("Reshape", [name, flat], [output], op.name)


@reads("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def product(op: TfNode) -> None:
    """MatMul, of operands that may be transposed."""
    op.need(2)
    operands = []
    for number, flags in enumerate((("transpose_a", "adj_x"), ("transpose_b", "adj_y"))):
        name = op.inputs[number]
        if any(op.flag(flag) for flag in flags):
            rank = op.known_rank(number)
            if rank < 2:
                raise op.damaged(f"an operand of {rank} axes is transposed")
            array = op.value(number)
            if array is not None:
                name = op.scope.constant(np.ascontiguousarray(array.swapaxes(-1, -2)), op.name)
            else:
                name = op.make("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2])
        operands.append(name)
    op.finish("MatMul", *operands)


@reads("Einsum")
def einsum(op: TfNode) -> None:
    """Einsum."""
    op.need(1)
    op.finish("Einsum", *op.inputs, equation=op.text("equation"))


@reads("LRN")
def local_response(op: TfNode) -> None:
    """LRN; TensorFlow's factor is not divided by the window."""
    op.need(1)
    size = 2 * op.integer("depth_radius", 5) + 1
    made = op.make(
        "LRN", op.picture(), size=size, alpha=op.real("alpha", 1.0) * size,
        beta=op.real("beta", 0.5), bias=op.real("bias", 1.0),
    )  # fmt: skip
    op.finish_picture(made)


_COORDINATES = {(True, False): "align_corners", (False, True): "half_pixel"}


@reads("ResizeBilinear", "ResizeNearestNeighbor")
def resize(op: TfNode) -> None:
    """Resize, by the corners, by half pixels, or from the first ones on."""
    op.need(2)
    corners, halves = op.flag("align_corners"), op.flag("half_pixel_centers")
    mode = _COORDINATES.get((corners, halves), "asymmetric")
    nearest = op.type == "ResizeNearestNeighbor"
    more: dict[str, Any] = {"mode": "nearest" if nearest else "linear"}
    if nearest:
        more["nearest_mode"] = "floor" if mode == "asymmetric" else "round_prefer_ceil"
    made = op.make(
        "Resize", op.picture(), "", "", op.vector(1), axes=[2, 3],
        coordinate_transformation_mode=mode, **more,
    )  # fmt: skip
    op.finish_picture(made)


@reads("SpaceToDepth", "DepthToSpace")
def depth_and_space(op: TfNode) -> None:
    """Blocks of pixels as channels, and back."""
    op.need(1)
    size = op.integer("block_size")
    if size < 1:
        raise op.damaged(f"blocks of {size}")
    op.finish_picture(op.make(op.type, op.picture(), blocksize=size))
