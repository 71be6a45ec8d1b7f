"""Convolutions, products and pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.converter.nodes import INT64
from vkmnn.converter.tflite.nodes import LiteOp, reads


def _window(op: LiteOp, spatial: int, *, dilated: bool = True) -> tuple[list[int], list[int]]:
    """Return strides and dilations of the spatial axes, in their order."""
    axes = "dhw"[3 - spatial :]
    strides = op.positive(*(f"stride_{axis}" for axis in axes))
    if not dilated:
        return strides, [1] * spatial
    return strides, op.positive(*(f"dilation_{axis}_factor" for axis in axes))


def _weight_sizes(op: LiteOp, number: int, rank: int) -> list[int]:
    """Return the sizes of an operator's weights.

    Raises:
        UnreadableError: they are not known.
        ModelError: there are none, or another number of axes.
    """
    tensor = op.tensors[number]
    sizes = op.shape_of(op.source(number)[0]) or (tensor.shape if tensor else ())
    if len(sizes) != rank or 0 in sizes:
        raise op.damaged(f"its weights have the shape {list(sizes)}")
    known = [size for size in sizes if size is not None]
    if len(known) < rank:
        raise op.unreadable("weights of dynamic size")
    return known


@reads("CONV_2D")
def convolution(op: LiteOp) -> None:
    """Conv; weights are O, H, W, I, and groups follow from their number of input channels."""
    op.need(2)
    strides, dilations = _window(op, 2)
    _, *kernel, depth = _weight_sizes(op, 1, 4)
    options = op.padding(kernel, strides, dilations)
    channels = (op.shape(0) or (None,))[-1]
    group = 1 if channels is None else channels // depth
    if channels is not None and (group < 1 or channels % depth):
        raise op.damaged(f"{channels} channels for weights of {depth}")
    _convolve(
        op, [0, 3, 1, 2], kernel, strides=strides, dilations=dilations, group=group, **options
    )


def _convolve(op: LiteOp, order: list[int], kernel: list[int], **options: Any) -> None:
    rank = len(order)
    weights, bias = op.weights(1, order), op.bias(2)
    operands = [weights, *([bias] if bias else [])]
    made = op.make("Conv", op.first(0, rank), *operands, kernel_shape=kernel, **options)
    op.give_first(made, rank)
    plain = options.get("pads") == [0] * 4 and options["strides"] == options["dilations"] == [1, 1]
    spread = op.subgraph.spread.get(op.inputs[0])
    if spread is not None and plain:  # between blocks that become batches and back: a dilation
        source, block = spread
        options["dilations"] = block
        made = op.make("Conv", op.first(0, 4, source), *operands, kernel_shape=kernel, **options)
        op.subgraph.dilated[op.outputs[0]] = op.coded(op.activated(made)), block


@reads("DEPTHWISE_CONV_2D")
def depthwise(op: LiteOp) -> None:
    """Conv of a group for each channel; weights are 1, H, W, C·multiplier."""
    op.need(2)
    strides, dilations = _window(op, 2)
    _, *kernel, outputs = _weight_sizes(op, 1, 4)
    options = op.padding(kernel, strides, dilations)
    channels = (op.shape(0) or (None,))[-1]
    if channels is None:
        channels = outputs // max(op.integer("depth_multiplier", 1), 1)
    if not channels or outputs % channels:
        raise op.damaged(f"{channels} channels for weights of {outputs}")
    more = {"strides": strides, "dilations": dilations, "group": channels, **options}
    _convolve(op, [3, 0, 1, 2], kernel, **more)


@reads("CONV_3D")
def convolution_3d(op: LiteOp) -> None:
    """Conv of volumes; weights are D, H, W, I, O."""
    op.need(2)
    strides, dilations = _window(op, 3)
    kernel = _weight_sizes(op, 1, 5)[:3]
    options = op.padding(kernel, strides, dilations)
    _convolve(op, [4, 3, 0, 1, 2], kernel, strides=strides, dilations=dilations, **options)


@reads("TRANSPOSE_CONV", "CONV_3D_TRANSPOSE")
def transposed(op: LiteOp) -> None:
    """ConvTranspose; the first input has the sizes of the result, the third is convolved."""
    op.need(3)
    rank = 4 if op.type == "TRANSPOSE_CONV" else 5
    strides, _ = _window(op, rank - 2, dilated=False)
    if rank == 5 and any(one != 1 for one in _window(op, 3)[1]):
        raise op.unreadable("a transposed convolution with dilations")
    sizes = _weight_sizes(op, 1, rank)
    kernel = sizes[1:3] if rank == 4 else sizes[:3]
    order = [3, 0, 1, 2] if rank == 4 else [4, 3, 0, 1, 2]
    x, bias = op.first(2, rank), _transposed_bias(op)
    operands = [x, op.weights(1, order), *([bias] if bias else [])]
    options: dict[str, Any] = {"strides": strides, "kernel_shape": kernel}
    wanted: list[int | None] = [*(op.integers(0) or op.results[0].shape)]
    given = (op.shape(2) or (None,) * rank)[1:-1]
    if len(wanted) != rank or len(given) != rank - 2:
        raise op.damaged(f"its result has {len(wanted)} axes")
    if None in given or None in wanted[1:-1]:
        op.give_first(_cropped(op, operands, kernel, strides, options), rank)
        return
    known = [one or 0 for one in wanted[1:-1]], [one or 0 for one in given]
    options |= _transposed_pads(op, *known, kernel, strides)
    op.give_first(op.make("ConvTranspose", *operands, **options), rank)


def _cropped(
    op: LiteOp, operands: list[str], kernel: list[int], strides: list[int], options: dict[str, Any]
) -> str:
    """Return a result of dynamic size: the whole result, cropped to the middle."""
    count = len(kernel)
    extra = [max(step - size, 0) for size, step in zip(kernel, strides, strict=True)]
    whole = op.make("ConvTranspose", *operands, **options, output_padding=extra)
    sizes = op.make("Shape", whole, dtype=INT64, start=2)
    sizes = op.make("Sub", sizes, op.constant(extra))
    wanted = op.make("Slice", op.vector(0), op.constant([1]), op.constant([1 + count]))
    over = op.make("Max", op.make("Sub", sizes, wanted), op.constant([0]))
    start = op.make("Div", over, op.constant([2]))
    axes = op.constant(list(range(2, 2 + count)))
    return op.make("Slice", whole, start, op.make("Add", start, wanted), axes)


def _transposed_bias(op: LiteOp) -> str | None:
    """Return the bias, whose scale is that of the third input and of the weights."""
    if not op.has(3):
        return None
    tensor = op.tensors[3]
    if tensor is not None and tensor.quantization is None and op.quantization(2) is not None:
        raise op.damaged("its bias has no scale")
    return op.bias(3)


def _transposed_pads(
    op: LiteOp, wanted: list[int], given: list[int], kernel: list[int], strides: list[int]
) -> dict[str, list[int]]:
    """Return pads, and additional trailing padding, that give the result the requested sizes."""
    begins, ends, extra = [], [], []
    same = op.member("Padding", "padding") == "SAME"
    for out, size, window, step in zip(wanted, given, kernel, strides, strict=True):
        full = (size - 1) * step + window
        total = max(full - out, 0)
        if -(-(out if same else out - window + 1) // step) != size:
            raise op.damaged(f"{size} inputs do not give {out} outputs by steps of {step}")
        begins.append(total // 2)
        ends.append(total - total // 2)
        extra.append(max(out - full, 0))
    return {"pads": begins + ends, "output_padding": extra}


@reads("FULLY_CONNECTED")
def fully_connected(op: LiteOp) -> None:
    """MatMul by weights of [outputs, inputs]; without keep_num_dims all axes but the last flow."""
    op.need(2)
    if op.member("FullyConnectedOptionsWeightsFormat", "weights_format") != "DEFAULT":
        raise op.unreadable("weights in the shuffled format")
    _, depth = _weight_sizes(op, 1, 2)
    x = op.real(0)
    shape = op.shape_of(x)
    kept = op.flag("keep_num_dims") and shape is not None and len(shape) != 2
    if not kept and (shape is None or len(shape) != 2 or shape[-1] != depth):
        x = op.make("Reshape", x, op.constant([-1, depth]))
    weights, bias = op.weights(1, [1, 0]), op.bias(2)
    if kept:
        made = op.make("MatMul", x, weights)
        made = op.make("Add", made, bias) if bias else made
    else:
        made = op.make("Gemm", x, weights, *([bias] if bias else []))
    op.give_active(made)


@reads("BATCH_MATMUL")
def batch_matmul(op: LiteOp) -> None:
    """MatMul; either operand may be transposed."""
    op.need(2)
    operands = []
    for number, field in enumerate(("adj_x", "adj_y")):
        rank = op.known_rank(number)
        if rank < 2:
            raise op.damaged(f"an operand has {rank} axes")
        order = [*range(rank - 2), rank - 1, rank - 2]
        swapped = op.flag(field)
        operands.append(op.weights(number, order) if swapped else op.real(number))
    op.give(op.make("MatMul", *operands))


@reads("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
def pooling(op: LiteOp) -> None:
    """AveragePool, which does not count pads, MaxPool, and the root of the mean square."""
    op.need(1)
    kernel = op.positive("filter_height", "filter_width")
    strides = op.positive("stride_h", "stride_w")
    options = {"kernel_shape": kernel, "strides": strides, **op.padding(kernel, strides)}
    if op.type == "AVERAGE_POOL_2D":
        op.averaged(4, lambda x: op.make("AveragePool", x, **options))
        return
    x = op.first(0, 4)
    if op.type == "MAX_POOL_2D":
        made = op.make("MaxPool", x, **options)
    else:
        made = op.make("Sqrt", op.make("AveragePool", op.make("Mul", x, x), **options))
    op.give_first(made, 4)


@reads("LOCAL_RESPONSE_NORMALIZATION")
def response_normalization(op: LiteOp) -> None:
    """LRN over the channels from -radius to +radius."""
    op.need(1)
    size = 2 * op.integer("radius") + 1
    if size < 1:
        raise op.damaged(f"its radius is {op.integer('radius')}")
    alpha, beta, bias = (op.number(name) for name in ("alpha", "beta", "bias"))
    x = op.first(0, 4)
    op.give_first(op.make("LRN", x, size=size, alpha=alpha * size, beta=beta, bias=bias), 4, False)


@reads("L2_NORMALIZATION")
def l2_normalization(op: LiteOp) -> None:
    """Division by the root of the sum of squares along the last axis."""
    op.need(1)
    x = op.real(0)
    total = op.make("ReduceSumSquare", x, op.constant([-1]), keepdims=1)
    root = op.make("Sqrt", op.make("Max", total, op.constant(1e-6, np.float32)))
    op.give_active(op.make("Div", x, root))


@reads("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def blocks(op: LiteOp) -> None:
    """DepthToSpace and SpaceToDepth with channels last."""
    op.need(1)
    (size,) = op.positive("block_size")
    moved = op.moved_first(0, 4)
    kind = "DepthToSpace" if op.type == "DEPTH_TO_SPACE" else "SpaceToDepth"
    more: dict[str, Any] = {"mode": "DCR"} if kind == "DepthToSpace" else {}
    op.pass_first(op.make(kind, moved, blocksize=size, **more), 4)
