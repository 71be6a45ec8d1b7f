"""Functions element by element, and Softmax."""

from __future__ import annotations

from math import log

from vkmnn.converter.caffe.nodes import CaffeLayer, reads

_PLAIN = {
    "AbsVal": "Abs", "BNLL": "Softplus", "Dropout": "Identity", "HSwish": "HardSwish",
    "Mish": "Mish", "ReLU6": "Clip", "Sigmoid": "Sigmoid", "TanH": "Tanh",
}  # fmt: skip
"""Layers without parameters, and ONNX's names of them."""


@reads(*_PLAIN)
def plain(op: CaffeLayer) -> None:
    """A function without parameters."""
    op.need(1)
    limits = [op.number(0), op.number(6)] if op.type == "ReLU6" else []
    op.finish(_PLAIN[op.type], op.inputs[0], *limits)


@reads("Split")
def split(op: CaffeLayer) -> None:
    """The same tensor by several names."""
    op.need(1)
    for name in op.outputs:
        op.scope.emit("Identity", op.inputs[:1], [name], op.name)


@reads("ReLU")
def relu(op: CaffeLayer) -> None:
    """Relu, or LeakyRelu with a slope."""
    op.need(1)
    slope = op.proto.relu_param.negative_slope
    if slope:
        op.finish("LeakyRelu", op.inputs[0], alpha=slope)
    else:
        op.finish("Relu", op.inputs[0])


@reads("PReLU")
def prelu(op: CaffeLayer) -> None:
    """PRelu with one slope, or one for each channel."""
    op.need(1)
    if op.proto.prelu_param.channel_shared:
        slopes = op.weights(0, [], "slope").reshape(1)
    else:
        channels = op.sizes(op.inputs[0])[1:2]
        slopes = op.weights(0, channels, "slopes").reshape(-1, *[1] * (op.known_rank() - 2))
    op.finish("PRelu", op.inputs[0], op.scope.constant(slopes, op.name))


@reads("ELU")
def elu(op: CaffeLayer) -> None:
    """Elu."""
    op.need(1)
    op.finish("Elu", op.inputs[0], alpha=op.proto.elu_param.alpha)


@reads("HSigmoid")
def hard_sigmoid(op: CaffeLayer) -> None:
    """HardSigmoid as of MobileNet 3: ReLU6(x + 3) / 6."""
    op.need(1)
    op.finish("HardSigmoid", op.inputs[0], alpha=1 / 6, beta=0.5)


@reads("Swish")
def swish(op: CaffeLayer) -> None:
    """The function x · sigmoid(beta · x)."""
    op.need(1)
    x = op.inputs[0]
    op.finish("Mul", x, op.make("Sigmoid", op.scaled(x, op.proto.swish_param.beta)))


@reads("Clip")
def clip(op: CaffeLayer) -> None:
    """Clip to two limits."""
    op.need(1)
    limits = op.proto.clip_param
    op.finish("Clip", op.inputs[0], op.number(limits.min), op.number(limits.max))


@reads("Threshold")
def threshold(op: CaffeLayer) -> None:
    """1 where a tensor is above a threshold, else 0."""
    op.need(1)
    above = op.make("Greater", op.inputs[0], op.number(op.proto.threshold_param.threshold))
    op.finish("Cast", above, to=1, dtype=1)


@reads("Power")
def power(op: CaffeLayer) -> None:
    """The function (shift + scale · x) ^ power."""
    op.need(1)
    by = op.proto.power_param
    base = op.scaled(op.inputs[0], by.scale, by.shift)
    if by.power == 1:
        op.finish("Identity", base)
    elif by.power == 2:
        op.finish("Mul", base, base)
    else:
        op.finish("Pow", base, op.number(by.power))


def _logarithm(op: CaffeLayer, base: float) -> float:
    """Return the natural logarithm of a base; -1 means e."""
    if base == -1:
        return 1.0
    if not base > 0 or base == 1:
        raise op.damaged(f"a base of {base:g}")
    return log(base)


@reads("Exp")
def exponential(op: CaffeLayer) -> None:
    """The function base ^ (shift + scale · x)."""
    op.need(1)
    by = op.proto.exp_param
    factor = _logarithm(op, by.base)
    op.finish("Exp", op.scaled(op.inputs[0], by.scale * factor, by.shift * factor))


@reads("Log")
def logarithm(op: CaffeLayer) -> None:
    """The logarithm of shift + scale · x."""
    op.need(1)
    by = op.proto.log_param
    natural = op.make("Log", op.scaled(op.inputs[0], by.scale, by.shift))
    op.finish("Identity", op.scaled(natural, 1 / _logarithm(op, by.base)))


@reads("Softmax")
def softmax(op: CaffeLayer) -> None:
    """Softmax along one axis."""
    op.need(1)
    axis = op.axis(op.proto.softmax_param.axis, op.known_rank())
    op.finish("Softmax", op.inputs[0], axis=axis)
