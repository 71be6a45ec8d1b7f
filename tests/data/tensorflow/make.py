"""Generates the frozen graphs in this folder, with TensorFlow's results for two batches.

`python make.py`, with TensorFlow installed (2.21 wrote these). NAME.npz contains inputs and outputs
under `0/NAME` and `1/NAME`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

FOLDER = Path(__file__).parent
RNG = np.random.default_rng(0)
L = tf.keras.layers


def save(name: str, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    specs = [tf.TensorSpec((None, *shape), tf.float32) for shape in shapes]
    graph = convert_variables_to_constants_v2(tf.function(function).get_concrete_function(*specs))
    stored = {}
    for run in range(2):
        feeds = [RNG.normal(0, 1, (2 + run, *shape)).astype(np.float32) for shape in shapes]
        results = graph(*map(tf.constant, feeds))
        results = results if isinstance(results, (list, tuple)) else [results]
        for tensors, arrays in ((graph.inputs, feeds), (graph.outputs, results)):
            pairs = zip(tensors, arrays, strict=True)
            stored |= {f"{run}/{one.name.split(':')[0]}": np.array(array) for one, array in pairs}
    np.savez_compressed(FOLDER / f"{name}.npz", **stored)
    data = graph.graph.as_graph_def().SerializeToString(deterministic=True)
    (FOLDER / f"{name}.pb").write_bytes(data)


def keras(name: str, model: Any) -> None:
    for one in model.weights:
        values = RNG.normal(0, 0.3, one.shape)
        one.assign(np.abs(values) + 0.5 if "variance" in one.path else values)
    save(name, lambda x: model(x, training=False), tuple(model.inputs[0].shape[1:]))


def weights(*shape: int) -> Any:
    return tf.constant(RNG.normal(0, 0.3, shape).astype(np.float32))


def cnn() -> None:
    layers = [
        L.Input((19, 21, 3)),
        *(L.Conv2D(8, 3, 2, padding="same"), L.BatchNormalization(), L.ReLU(6.0)),
        *(L.DepthwiseConv2D(3, padding="same"), L.BatchNormalization(), L.LeakyReLU()),
        *(L.MaxPool2D(2, padding="same"), L.Conv2D(6, 3, use_bias=False), L.AveragePooling2D(2)),
        *(L.Flatten(), L.Dense(10, activation="softmax")),
    ]
    keras("cnn", tf.keras.Sequential(layers))


def segmenter() -> None:
    x = start = L.Input((16, 20, 4))
    x = L.Conv2D(8, 3, padding="same", activation="relu")(x)
    y = L.SeparableConv2D(8, 3, strides=2, padding="same")(x)
    y = L.Conv2DTranspose(8, 3, strides=2, padding="same")(y)
    x = L.UpSampling2D(2, interpolation="bilinear")(L.Concatenate()([x, y]))
    x = L.Conv2D(5, 3, dilation_rate=2)(L.ZeroPadding2D(1)(x))
    keras("segmenter", tf.keras.Model(start, L.Dense(4)(L.GlobalAveragePooling2D()(x))))


def attention() -> None:
    start = L.Input((12, 16))
    x = L.LayerNormalization()(start)
    x = x + L.MultiHeadAttention(2, 8)(x, x)
    x = L.GlobalMaxPool1D()(L.Dense(16, activation="gelu")(x))
    keras("attention", tf.keras.Model(start, x))


def residual() -> None:
    """Fused normalisation, as TensorFlow 1 wrote it, with channels first."""
    filters = [weights(3, 3, 4, 8), weights(3, 3, 8, 8)]
    scale, shift, mean = (weights(8) for _ in range(3))
    variance = tf.abs(weights(8)) + 0.5

    def network(x: Any) -> Any:
        x = tf.transpose(x, [0, 3, 1, 2])
        paddings = {"padding": "SAME", "data_format": "NCHW"}
        for each, strides in zip(filters, ([1, 1, 2, 2], [1, 1, 1, 1]), strict=True):
            y = tf.raw_ops.Conv2D(input=x, filter=each, strides=strides, **paddings)
            y = tf.raw_ops.FusedBatchNormV3(
                x=y, scale=scale, offset=shift, mean=mean, variance=variance, epsilon=0.001,
                data_format="NCHW", is_training=False,
            )[0]  # fmt: skip
            y = tf.nn.relu(tf.raw_ops.BiasAdd(value=y, bias=shift, data_format="NCHW"))
            x = y + x if x.shape[1] == 8 else y
        return tf.reduce_mean(x, [2, 3])

    save("residual", network, (9, 11, 4))


def operators() -> None:
    def network(x: Any, y: Any) -> list[Any]:
        moved = tf.transpose(tf.nn.relu6(x) + y, [0, 2, 1])[:, 1:, ::2]
        mean = tf.reduce_mean(moved, [1, 2], keepdims=True)
        second = tf.unstack(tf.stack([x, y], 1), axis=1)[1]
        left, right = tf.split(second, 2, axis=-1)
        chosen = tf.where(left > right, left, right)
        padded = tf.pad(chosen, [[0, 0], [1, 2], [0, 1]])
        parts = tf.split(x, [1, 3, 1], axis=1)
        return [
            *(moved, mean, chosen, padded, parts[1]),
            tf.pad(chosen, [[0, 0], [1, 2], [0, 1]], mode="REFLECT"),
            tf.reshape(padded, [tf.shape(padded)[0], -1]),
            tf.tile(tf.gather(x, [0, 2], axis=1), [1, 2, 1]),
            tf.one_hot(tf.argmax(y, -1), 6),
            *tf.math.top_k(x, 3),
            tf.expand_dims(tf.squeeze(mean, [1, 2]), 0),
            tf.clip_by_value(x, -0.5, 0.5),
            tf.cumsum(x, 1, exclusive=True),
            tf.math.rsqrt(tf.abs(x) + 1),
            tf.math.squared_difference(x, y),
            tf.nn.softplus(x),
            tf.cast(x > 0, tf.int32),
            tf.reduce_max(x, -1),
            tf.reduce_any(x > 1, 1),
            tf.maximum(x, y),
            tf.reverse(x, [1]),
            tf.math.floordiv(x, y),
            tf.math.floormod(x, y),
            tf.math.divide_no_nan(x, tf.nn.relu(y)),
            tf.nn.l2_normalize(x, -1),
            tf.nn.log_softmax(x),
            tf.einsum("bij,bkj->bik", x, y),
            tf.range(tf.shape(x)[1]),
            tf.fill([2, 3], 1.5),
            tf.math.erf(x),
            tf.math.log1p(tf.abs(x)),
            tf.slice(x, [0, 1, 2], [-1, 3, -1]),
            tf.linalg.matmul(x, y, transpose_b=True),
            tf.math.add_n([x, y, x]),
            tf.where(tf.math.is_nan(x), tf.zeros_like(x), tf.ones_like(x)),
        ]

    save("operators", network, (5, 6), (5, 6))


def pictures() -> None:
    filters, narrow = weights(3, 3, 4, 6), weights(3, 3, 4, 2)

    def network(x: Any) -> list[Any]:
        resize = tf.compat.v1.image
        return [
            tf.nn.local_response_normalization(x, 2, 1.0, 0.5, 0.75),
            tf.image.resize(x, [9, 7], "nearest"),
            tf.image.resize(x, [13, 9], "bilinear"),
            resize.resize_bilinear(x, [13, 5], align_corners=True),
            resize.resize_nearest_neighbor(x, [13, 5]),
            tf.nn.space_to_depth(x, 2),
            tf.nn.depth_to_space(x, 2),
            tf.nn.max_pool2d(x, 3, 2, "VALID"),
            tf.nn.avg_pool2d(x, 3, 2, "SAME"),
            tf.nn.conv2d(x, filters, 1, [[0, 0], [1, 2], [0, 1], [0, 0]]),
            tf.nn.atrous_conv2d(x, narrow, 2, "SAME"),
            tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]),
            tf.nn.conv2d_transpose(x, weights(3, 3, 5, 4), [tf.shape(x)[0], 16, 12, 5], 2, "SAME"),
        ]

    save("pictures", network, (8, 6, 4))


if __name__ == "__main__":
    for make in (cnn, segmenter, attention, residual, operators, pictures):
        make()
