"""Normalisation, softmax, losses."""

from __future__ import annotations

from vkmnn_suite.fuzz.recipes.table import recipe
from vkmnn_suite.fuzz.recipes.windows import image
from vkmnn_suite.fuzz.sketch import Sketch, Value
from vkmnn_suite.fuzz.values import FINITE, POSITIVE


def _epsilon(s: Sketch) -> float | None:
    return s.rng.choice([None, 1e-5, 1e-3, 0.1])


def channels(x: Value) -> int:
    """Return the size of axis 1, or 1 if there is none."""
    return x.shape[1] if x.rank > 1 else 1


@recipe("BatchNormalization")
def _batch_norm(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=2, spread=FINITE)
    c = [channels(x)]
    vectors = [s.weight(x.dtype, c, FINITE) for _ in range(3)]
    variance = s.weight(x.dtype, c, POSITIVE)
    s.one(op, x, *vectors, variance, epsilon=_epsilon(s))


@recipe("InstanceNormalization")
def _instance_norm(s: Sketch, op: str) -> None:
    x = image(s, s.dtype(op), s.choose(1, 2, 2, 3))
    vectors = [s.weight(x.dtype, [channels(x)], FINITE) for _ in range(2)]
    s.one(op, x, *vectors, epsilon=_epsilon(s))


@recipe("GroupNormalization")
def _group_norm(s: Sketch, op: str) -> None:
    x = image(s, s.dtype(op), s.choose(1, 2, 2, 3))
    divisors = [d for d in range(1, channels(x) + 1) if channels(x) % d == 0]
    count = s.rng.choice(divisors)
    size = channels(x) if s.since(21) else count
    vectors = [s.weight(x.dtype, [size], FINITE) for _ in range(2)]
    s.one(op, x, *vectors, num_groups=count, epsilon=_epsilon(s))


@recipe("LayerNormalization")
def _layer_norm(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, spread=FINITE)
    axis = s.choose(-1, -1, s.axis(x.rank))
    scale = s.weight(x.dtype, x.shape[axis:], FINITE)
    bias = s.weight(x.dtype, x.shape[axis:], FINITE) if s.chance(0.7) else None
    s.node(op, [x, scale, bias], s.choose(1, 1, 1, 3), axis=axis, epsilon=_epsilon(s))


@recipe("RMSNormalization", "SimplifiedLayerNormalization")
def _rms_norm(s: Sketch, op: str) -> None:
    dtype = s.dtype(op) if op == "RMSNormalization" else s.choose("float32", "float32", "float16")
    x = s.pick(dtype, min_rank=1, spread=FINITE)
    axis = s.choose(-1, -1, s.axis(x.rank))
    s.one(op, x, s.weight(dtype, x.shape[axis:], FINITE), axis=axis, epsilon=_epsilon(s))


@recipe("MeanVarianceNormalization")
def _mean_variance(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=4, max_rank=4, spread=FINITE)
    s.one(op, x, axes=s.choose(None, [0, 2, 3], [1], s.axes(4)))


@recipe("LpNormalization")
def _lp_norm(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, spread=FINITE)
    s.one(op, x, axis=s.choose(None, s.axis(x.rank)), p=s.choose(None, 1, 2))


@recipe("Softmax", "LogSoftmax", "Hardmax")
def _softmax(s: Sketch, op: str) -> None:
    x = s.pick(s.dtype(op), min_rank=1, spread=FINITE)
    axis = s.axis(x.rank)
    if not s.since(11):
        axis %= x.rank
    s.one(op, x, axis=s.choose(None, axis, axis))


@recipe("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def _loss(s: Sketch, op: str) -> None:
    classes = s.choose(1, 2, 3, 5, s.size(7))
    rest = [s.size(5) for _ in range(s.choose(0, 1, 2))]
    batch = s.choose(1, 2, 3)
    x = s.pick(s.dtype(op), [batch, classes, *rest], spread=FINITE)
    target = s.parameter(
        s.draws.integers(0, classes, (batch, *rest)), s.choose("int64", "int32"), constant=0.4
    )
    weight = s.weight(x.dtype, [classes], POSITIVE) if s.chance(0.4) else None
    outputs = s.choose(1, 2) if op == "SoftmaxCrossEntropyLoss" else 1
    ignore = s.choose(None, None, 0, classes - 1)
    reduction = s.choose(None, "none", "sum", "mean")
    s.node(op, [x, target, weight], outputs, ignore_index=ignore, reduction=reduction)
