"""Normalisation, and factors and summands of channels."""

from __future__ import annotations

import numpy as np

from vkmnn.converter.caffe.nodes import CaffeLayer, reads
from vkmnn.ir import Array

_WITHIN_CHANNEL = 1


def _channels(op: CaffeLayer) -> int | None:
    return op.sizes(op.inputs[0], 2)[1]


def _vector(op: CaffeLayer, number: int, what: str) -> Array:
    return op.weights(number, [_channels(op)], what)


@reads("BatchNorm", "CuDNNBatchNorm")
def batch_norm(op: CaffeLayer) -> None:
    """BatchNormalization without factors; a fork has those, too."""
    op.need(1)
    norm = op.proto.batch_norm_param
    if norm.HasField("use_global_stats") and not norm.use_global_stats:
        axes = [0, *range(2, op.known_rank())]
        op.finish("Identity", _centred(op, op.inputs[0], axes, inside=norm.eps))
        return
    mean, variance = _vector(op, 0, "means"), _vector(op, 1, "variances")
    divisor = float(op.weights(2, [1], "factor")[0])
    factor = 1 / divisor if divisor else 0.0
    scale, shift = np.ones_like(mean), np.zeros_like(mean)
    if len(op.blobs) >= 5:
        scale, shift = _vector(op, 3, "factors"), _vector(op, 4, "summands")
    _normalised(
        op, scale, shift, mean * np.float32(factor), variance * np.float32(factor), norm.eps
    )


@reads("BN")
def bn(op: CaffeLayer) -> None:
    """Normalisation of forks: with four blobs, or with two that have absorbed the statistics."""
    op.need(1)
    scale, shift = _vector(op, 0, "factors"), _vector(op, 1, "summands")
    norm = op.proto.bn_param
    if len(op.blobs) >= 4:
        mean, variance = _vector(op, 2, "means"), _vector(op, 3, "variances")
        _normalised(op, scale, shift, mean, variance, norm.var_eps or norm.std_epsilon or norm.eps)
    elif norm.HasField("bn_mode") and norm.bn_mode == 1:
        _normalised(op, scale, shift, np.zeros_like(scale), np.ones_like(scale), 0.0)
    else:
        raise op.unreadable("batch statistics: save the weights with bn_mode: INFERENCE")


def _normalised(
    op: CaffeLayer, scale: Array, shift: Array, mean: Array, variance: Array, epsilon: float
) -> None:
    operands = [op.scope.constant(one, op.name) for one in (scale, shift, mean, variance)]
    op.finish("BatchNormalization", op.inputs[0], *operands, epsilon=epsilon)


@reads("Scale")
def scale(op: CaffeLayer) -> None:
    """Factors, from a second input or from weights, and summands."""
    op.need(1)
    by = op.proto.scale_param
    operand = len(op.inputs) > 1
    factor = _operand(op, by.axis, by.num_axes, 0, operand, "factors")
    if not by.bias_term:
        op.finish("Mul", op.inputs[0], factor)
        return
    product = op.make("Mul", op.inputs[0], factor)
    if operand:
        count = len(op.sizes(op.inputs[1]))
        summand = _operand(op, by.axis, count, 0, False, "summands")
    else:
        summand = _operand(op, by.axis, by.num_axes, 1, False, "summands")
    op.finish("Add", product, summand)


@reads("Bias")
def bias(op: CaffeLayer) -> None:
    """Summands, from a second input or from weights."""
    op.need(1)
    by = op.proto.bias_param
    summand = _operand(op, by.axis, by.num_axes, 0, len(op.inputs) > 1, "summands")
    op.finish("Add", op.inputs[0], summand)


def _operand(op: CaffeLayer, first: int, count: int, blob: int, from_input: bool, what: str) -> str:
    """Return an operand for some axes of the first input, in a form that broadcasts.

    Args:
        op: the layer.
        first: the first of the axes.
        count: how many there are; -1 for all from the first on.
        blob: the number of the blob among the weights.
        from_input: it is the second input instead.
        what: its kind, for messages.
    """
    rank = op.known_rank()
    axis = op.axis(first, rank)
    if from_input:
        own = len(op.sizes(op.inputs[1]))
        if axis + own > rank:
            raise op.damaged(f"{own} axes from axis {axis} on of a tensor of {rank}")
        after = rank - axis - own
        shape = op.constant([0] * own + [1] * after)
        return op.make("Reshape", op.inputs[1], shape) if after else op.inputs[1]
    end = rank if count == -1 else axis + count
    if count < -1 or end > rank:
        raise op.damaged(f"{count} axes from axis {axis} on of a tensor of {rank}")
    sizes = op.sizes(op.inputs[0])[axis:end]
    if sizes.count(None) > 1:
        raise op.unreadable(f"{what} for axes of unknown sizes")
    values = op.weights(blob, sizes, what)
    return op.scope.constant(values.reshape(*values.shape, *[1] * (rank - end)), op.name)


def _centred(
    op: CaffeLayer, x: str, axes: list[int], inside: float | None = None, outside: float = 0.0
) -> str:
    """Return a tensor minus its mean, divided by its deviation unless both numbers are None."""
    over = op.constant(axes)
    centred = op.make("Sub", x, op.make("ReduceMean", x, over, keepdims=1))
    square = op.make("Mul", centred, centred)
    variance = op.scaled(op.make("ReduceMean", square, over, keepdims=1), 1, inside or 0.0)
    deviation = op.scaled(op.make("Sqrt", variance), 1, outside)
    return op.make("Div", centred, deviation)


@reads("MVN")
def mean_variance(op: CaffeLayer) -> None:
    """Each plane, or each picture, minus its mean, divided by its deviation."""
    op.need(1)
    by, rank = op.proto.mvn_param, op.known_rank()
    axes = list(range(1 if by.across_channels else 2, rank))
    if not axes:
        raise op.damaged(f"it normalises no axis of a tensor of {rank}")
    if by.normalize_variance:
        op.finish("Identity", _centred(op, op.inputs[0], axes, outside=by.eps))
    else:
        mean = op.make("ReduceMean", op.inputs[0], op.constant(axes), keepdims=1)
        op.finish("Sub", op.inputs[0], mean)


@reads("LRN")
def local_response(op: CaffeLayer) -> None:
    """LRN across channels, or within each by the mean of squares in a window."""
    op.need(1)
    by, x = op.proto.lrn_param, op.inputs[0]
    if by.local_size % 2 == 0:
        raise op.damaged(f"a window of {by.local_size} channels has no middle")
    if by.norm_region != _WITHIN_CHANNEL:
        op.finish("LRN", x, size=by.local_size, alpha=by.alpha, beta=by.beta, bias=by.k)
        return
    window, pad = [by.local_size] * 2, [by.local_size // 2] * 4
    square = op.make("Mul", x, x)
    mean = op.make("AveragePool", square, kernel_shape=window, pads=pad, count_include_pad=1)
    base = op.scaled(mean, by.alpha, 1.0)
    op.finish("Mul", x, op.make("Pow", base, op.number(-by.beta)))


@reads("Normalize")
def normalize(op: CaffeLayer) -> None:
    """SSD's normalisation to a length of 1, and a factor for each channel."""
    op.need(1)
    by, x, rank = op.proto.norm_param, op.inputs[0], op.known_rank()
    axes = list(range(1, rank)) if by.across_spatial else [1]
    square = op.make("ReduceSum", op.make("Mul", x, x), op.constant(axes), keepdims=1)
    length = op.make("Sqrt", op.scaled(square, 1, by.eps))
    if by.channel_shared:
        factor = op.number(float(op.weights(0, [], "factor")))
    else:
        factors = _vector(op, 0, "factors")
        factor = op.scope.constant(factors.reshape(-1, *[1] * (rank - 2)), op.name)
    op.finish("Mul", op.make("Div", x, length), factor)
