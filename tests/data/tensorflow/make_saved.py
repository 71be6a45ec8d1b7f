"""Generates the SavedModels in this folder, with TensorFlow's results for three runs of each.

`python make_saved.py`, with TensorFlow installed (2.21 wrote these). NAME.zip contains the folder,
NAME.npz inputs and outputs under `RUN/NAME`. `loops.pb` and `lstm_frozen.pb` are frozen graphs with
control flow.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

FOLDER = Path(__file__).parent
RNG = np.random.default_rng(0)
RUNS = 3
L = tf.keras.layers
V = tf.compat.v1


def numbers(*shape: int) -> Any:
    return RNG.normal(0, 0.4, shape).astype(np.float32)


def feed(spec: Any, run: int) -> Any:
    shape = [2 + run if size is None else size for size in spec.shape]
    if spec.dtype.is_integer:
        return RNG.integers(0, 4, shape).astype(spec.dtype.as_numpy_dtype)
    return RNG.normal(0, 1, shape).astype(spec.dtype.as_numpy_dtype)


def zipped(folder: str, name: str) -> None:
    root = Path(folder)
    with zipfile.ZipFile(
        FOLDER / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9
    ) as file:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.name != "fingerprint.pb":
                about = zipfile.ZipInfo(str(path.relative_to(root)))
                file.writestr(about, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def save(name: str, write: Callable[[str], None], key: str = "serving_default") -> None:
    folder = tempfile.mkdtemp()
    write(folder)
    function = tf.saved_model.load(folder).signatures[key]
    stored = {}
    for run in range(RUNS):
        specs = function.structured_input_signature[1]
        feeds = {one: feed(spec, run) for one, spec in specs.items()}
        results = function(**{one: tf.constant(array) for one, array in feeds.items()})
        stored |= {f"{run}/{one}": array for one, array in feeds.items()}
        stored |= {f"{run}/{one}": np.array(array) for one, array in results.items()}
    np.savez_compressed(FOLDER / f"{name}.npz", **stored)
    zipped(folder, name)
    shutil.rmtree(folder)


def module(name: str, made: tf.Module) -> None:
    save(name, lambda folder: tf.saved_model.save(made, folder, signatures=made.__call__))


def keras(name: str, model: Any) -> None:
    for one in model.weights:
        one.assign(numbers(*one.shape))
    save(name, lambda folder: model.export(folder, verbose=False))


def recurrent() -> Any:
    layers = [
        L.Input((6, 3)),
        L.Bidirectional(L.LSTM(4, return_sequences=True)),
        *(L.GRU(5, return_sequences=True), L.SimpleRNN(3), L.Dense(2)),
    ]
    return tf.keras.Sequential(layers)


def masked() -> Any:
    words = L.Input((6,), dtype="int32")
    return tf.keras.Model(words, L.Dense(2)(L.LSTM(4)(L.Embedding(5, 4, mask_zero=True)(words))))


class Counter(tf.Module):
    """Variables that every run assigns: in the function, in a branch, and in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.above = tf.Variable(0.25), tf.Variable(3)
        self.rows, self.weights = tf.Variable(numbers(3, 2)), tf.Variable(numbers(2, 2))

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x: Any) -> Any:
        before = self.total.read_value()
        self.total.assign_add(tf.reduce_sum(x))
        if self.total > 0.5:
            self.above.assign_add(1)
        turn = tf.constant(0)
        while turn < 2:
            self.rows.assign(self.rows * 0.5 + tf.reduce_mean(x))
            turn += 1
        self.rows.scatter_nd_add([[1]], [[1.0, 2.0]])
        y = tf.matmul(x, self.weights)
        return {"y": y + before, "rows": self.rows + 0.0, "above": self.above + 0}


class Branches(tf.Module):
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.float32, name="x"),
            tf.TensorSpec([], tf.int32, name="k"),
        ]
    )
    def __call__(self, x: Any, k: Any) -> Any:
        def halved(turn: Any, y: Any) -> Any:
            return turn + 1, y * 0.5 + tf.cast(turn, tf.float32)

        chosen = tf.switch_case(
            k,
            [
                lambda: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x - 1),
                lambda: x + 10.0,
                lambda: tf.while_loop(lambda turn, y: turn < k, halved, (0, x))[1],
            ],
        )
        total, turn = tf.constant(0.0), tf.constant(0)
        while total < 20.0:
            inner = tf.constant(0)
            while inner < 2:
                total += 1.5
                inner += 1
            turn += 1
        return {"chosen": chosen, "total": total, "turn": turn}


class Lists(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x: Any) -> Any:
        def longer(turn: Any, y: Any) -> Any:
            return turn + 1, tf.concat([y, x], 0)

        shapes = tf.TensorShape([]), tf.TensorShape([None, 3])
        grown = tf.while_loop(lambda turn, y: turn < 3, longer, (0, x), shape_invariants=shapes)[1]
        rows = tf.TensorArray(tf.float32, size=5, element_shape=[None])
        rows = rows.write(0, x[0]).write(1, x[0] * 2)

        def sums(turn: Any, rows: Any) -> Any:
            return turn + 1, rows.write(turn, rows.read(turn - 1) + rows.read(turn - 2))

        rows = tf.while_loop(lambda turn, rows: turn < 5, sums, (2, rows))[1]
        scaled = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[None, 3])
        for turn in tf.range(4):
            scaled = scaled.write(turn, x * tf.cast(turn, tf.float32))
        return {
            "grown": grown,
            "sums": rows.stack(),
            "count": rows.size(),
            "scaled": scaled.stack(),
            "last": rows.gather([4, 0]),
            "joined": scaled.concat(),
        }


class Several(tf.Module):
    """Two signatures, of functions that call another one."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = tf.Variable(numbers(3, 3))

    @tf.function
    def turned(self, x: Any) -> Any:
        return tf.matmul(x, self.matrix)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def encode(self, x: Any) -> Any:
        return {"code": tf.nn.relu(self.turned(x))}

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="code")])
    def decode(self, code: Any) -> Any:
        return {"x": self.turned(self.turned(code))}


def signature(*specs: tuple[Any, Any]) -> list[Any]:
    return [tf.TensorSpec(shape, dtype, name="xyz"[n]) for n, (shape, dtype) in enumerate(specs)]


def numbered(results: list[Any]) -> dict[str, Any]:
    return {f"o{number}": one for number, one in enumerate(results)}


class Selection(tf.Module):
    """Operators that select by index or value, or scatter."""

    @tf.function(input_signature=signature(((4, 3), tf.float32), ((4,), tf.int32)))
    def __call__(self, x: Any, y: Any) -> Any:
        pairs, rows, segment = y[:, None] % 3, tf.math, [0, 0, 2, 2]
        return numbered(
            [
                *(tf.gather(x, pairs, batch_dims=1), tf.gather_nd(x, pairs)),
                *(tf.gather_nd(x, pairs[:, None], batch_dims=1), tf.scatter_nd(pairs, x, [5, 3])),
                tf.tensor_scatter_nd_update(x, [[1], [2]], x[:2]),
                *(tf.tensor_scatter_nd_add(x, pairs, x), tf.tensor_scatter_nd_sub(x, pairs, x)),
                *(tf.tensor_scatter_nd_max(x, pairs, x * 2), tf.where(x > 0)),
                *(tf.boolean_mask(x, x[:, 0] > 0), *tf.unique_with_counts(y)),
                *(tf.one_hot(y - 1, 3), tf.one_hot(y, 5, 2.0, -1.0, axis=0)),
                *(*rows.top_k(x, 2), tf.sort(x), rows.in_top_k([0, 1, 2, 0], x, 2)),
                *(rows.unsorted_segment_sum(x, y, 5), rows.unsorted_segment_max(x, segment, 3)),
                *(rows.segment_mean(x, segment), rows.segment_max(x, segment)),
                *(
                    tf.dynamic_stitch([[0, 2], [1]], [x[:2], x[2:3]]),
                    *tf.dynamic_partition(x, y, 4),
                ),
                *(tf.reverse_sequence(x, y % 3, 1), tf.searchsorted(tf.sort(x), x)),
                *(rows.bincount(y, minlength=4, maxlength=4), rows.invert_permutation([2, 0, 1])),
                *(
                    rows.bincount(tf.stack([y, y, 3 - y], 1), axis=-1, minlength=5, **more)
                    for more in ({}, {"binary_output": True}, {"weights": x})
                ),
                tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]),
            ]
        )


class Detection(tf.Module):
    """Boxes, cuts of pictures, and colours."""

    specs = signature(
        ((2, 10, 4), tf.float32), ((2, 10, 3), tf.float32), ((2, 6, 7, 3), tf.float32)
    )

    @tf.function(input_signature=specs)
    def __call__(self, x: Any, y: Any, z: Any) -> Any:
        image, near = tf.image, tf.sort(tf.abs(x))
        shade = tf.nn.sigmoid(z)
        best = image.combined_non_max_suppression(near[:, :, None], y, 4, 6, score_threshold=0.1)
        sets = tf.stack([near, near * 0.9, near * 0.8], 2)
        more = image.combined_non_max_suppression(sets, y, 2, 9, pad_per_class=True)
        return numbered(
            [
                image.non_max_suppression(near[0], y[0, :, 0], 5, 0.3),
                *image.non_max_suppression_with_scores(near[0], y[0, :, 0], 5, 0.3, 0.1),
                *(*best, *more, image.crop_and_resize(z, x[0] * 0.4, [0, 1] * 5, [3, 4])),
                image.crop_and_resize(z, x[0] * 0.4, [0, 1] * 5, [2, 2], "nearest", 7.0),
                *(image.resize(z, [9, 5], kind) for kind in ("bicubic", "area")),
                *(tf.raw_ops.ResizeBicubic(images=z, size=[7, 9]), image.rgb_to_hsv(shade)),
                *(image.hsv_to_rgb(shade), image.adjust_contrast(z, 0.5)),
                *(image.adjust_saturation(shade, 0.5), image.adjust_hue(shade, 0.2)),
                image.extract_patches(z, [1, 3, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"),
                *tf.nn.max_pool_with_argmax(z, 2, 2, "SAME"),
                *tf.compat.v1.nn.fused_batch_norm(z, [1.0, 2.0, 3.0], [0.0, 0.1, 0.2])[:3],
            ]
        )


class Matrices(tf.Module):
    """Matrices, bits, rounding to steps, volumes."""

    specs = signature(((2, 4, 4), tf.float32), ((3, 4), tf.int32), ((1, 4, 5, 6, 2), tf.float32))

    @tf.function(input_signature=specs)
    def __call__(self, x: Any, y: Any, z: Any) -> Any:
        bits, fake, kernel = tf.bitwise, tf.quantization, tf.ones([2, 3, 3, 2, 3]) * 0.1
        return numbered(
            [
                *(tf.linalg.diag(x[:, 0]), tf.linalg.diag_part(x), tf.linalg.set_diag(x, x[:, 1])),
                *(tf.linalg.band_part(x, 1, 0), tf.linalg.trace(x), tf.linalg.det(x)),
                *(tf.linalg.tensor_diag(x[0, 0]), tf.linalg.cross(x[..., :3], x[..., 1:])),
                *(tf.math.reduce_euclidean_norm(x, axis) for axis in (1, [0, 2], [])),
                *(tf.roll(x, [1, -1], [1, 2]), tf.math.cumprod(x, 1, exclusive=True, reverse=True)),
                *(bits.bitwise_and(y, 5), bits.bitwise_xor(y, 3), bits.invert(y)),
                *(bits.left_shift(y, 2), bits.right_shift(y - 2, 1), tf.truncatemod(2 - y, 3)),
                *(tf.atan2(x, x[:, ::-1]), tf.math.xlogy(tf.nn.relu(x), tf.abs(x) + 1)),
                *(tf.math.multiply_no_nan(x, tf.nn.relu(x)), tf.math.is_finite(x / 0.0)),
                tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(x), x),
                fake.fake_quant_with_min_max_args(x, -1.5, 2.0),
                fake.fake_quant_with_min_max_vars(x, -1.0, 1.0, num_bits=4),
                fake.fake_quant_with_min_max_vars_per_channel(x, [-1.0] * 4, [0.5, 1, 1.5, 2]),
                tf.pad(x, [[0, 0], [1, 2], [2, 1]], "SYMMETRIC"),
                tf.nn.conv3d(z, kernel, [1, 1, 2, 1, 1], "SAME"),
                *(tf.nn.max_pool3d(z, 2, 2, "SAME"), tf.nn.avg_pool3d(z, 2, 2, "VALID")),
                tf.nn.conv3d_transpose(z, tf.ones([2, 2, 2, 3, 2]), [1, 8, 10, 12, 3], 2, "SAME"),
            ]
        )


def several() -> None:
    made = Several()
    both = {"encode": made.encode, "decode": made.decode}
    save("several", lambda folder: tf.saved_model.save(made, folder, signatures=both), "encode")


def loops_of_v1() -> tuple[list[Any], list[Any]]:
    """Switch and Merge, nested frames, a TensorArray, and both kinds of variables."""
    x = V.placeholder(tf.float32, [None, 5, 3], name="x")
    matrix = V.get_variable("w", [7, 16], initializer=V.random_normal_initializer(0, 0.3))
    bias = V.get_variable(
        "b", [16], initializer=V.random_normal_initializer(0, 0.3), use_resource=True
    )
    rows = tf.transpose(x, [1, 0, 2])
    count, zeros = tf.shape(rows)[0], tf.zeros([tf.shape(x)[0], 4])
    given = tf.TensorArray(tf.float32, count).unstack(rows)

    def cell(turn: Any, h: Any, c: Any, out: Any) -> Any:
        gates = tf.concat([given.read(turn), h], 1) @ matrix + bias
        i, j, f, o = tf.split(gates, 4, 1)
        c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
        return turn + 1, h, c, out.write(turn, h)

    start = 0, zeros, zeros, tf.TensorArray(tf.float32, count)
    _, last, _, out = V.while_loop(lambda turn, *_: turn < count, cell, start)
    chosen = V.cond(
        tf.reduce_sum(x) > 0,
        lambda: V.cond(tf.reduce_max(x) > 2, lambda: last * 2, lambda: last + 1),
        lambda: -last,
    )

    def outer(turn: Any, y: Any) -> Any:
        inner = lambda k, q: (k + 1, q + tf.cast(k, tf.float32))  # noqa: E731
        return turn + 1, V.while_loop(lambda k, q: k < turn, inner, (0, y))[1]

    nested = V.while_loop(lambda turn, y: turn < 3, outer, (0, chosen))[1]
    sequence = tf.transpose(out.stack(), [1, 0, 2])
    return [x], [tf.identity(sequence, "sequence"), tf.identity(nested, "nested")]


def version_1(frozen: str, saved: str) -> None:
    graph = tf.Graph()
    with graph.as_default():
        V.disable_control_flow_v2()
        V.set_random_seed(0)
        inputs, outputs = loops_of_v1()
        with V.Session(graph=graph) as session:
            session.run(V.global_variables_initializer())
            stored = {}
            for run in range(RUNS):
                feeds = {one: feed(one, run) for one in inputs}
                results = session.run(outputs, feeds)
                stored |= {f"{run}/{one.op.name}": array for one, array in feeds.items()}
                pairs = zip(outputs, results, strict=True)
                stored |= {f"{run}/{one.op.name}": array for one, array in pairs}
            names = [one.op.name for one in outputs]
            constants = V.graph_util.convert_variables_to_constants
            data = constants(session, graph.as_graph_def(), names)
            folder = tempfile.mkdtemp() + "/saved"
            faces = [{one.op.name: one for one in tensors} for tensors in (inputs, outputs)]
            V.saved_model.simple_save(session, folder, *faces)
    V.enable_control_flow_v2()
    for name in (frozen, saved):
        np.savez_compressed(FOLDER / f"{name}.npz", **stored)
    (FOLDER / f"{frozen}.pb").write_bytes(data.SerializeToString(deterministic=True))
    zipped(folder, saved)


def frozen_recurrent() -> None:
    """TensorFlow 2's loops as TensorFlow 1's: lists of tensors in frames."""
    model = tf.keras.Sequential([L.Input((None, 3)), L.LSTM(4, return_sequences=True), L.Dense(2)])
    for one in model.weights:
        one.assign(numbers(*one.shape))
    function = tf.function(lambda x: model(x, training=False))
    graph = convert_variables_to_constants_v2(
        function.get_concrete_function(tf.TensorSpec((None, None, 3), tf.float32, name="x"))
    )
    stored = {}
    for run in range(RUNS):
        x = RNG.normal(0, 1, (2 + run, 4 + run, 3)).astype(np.float32)
        (result,) = graph(tf.constant(x))
        stored |= {f"{run}/x": x, f"{run}/Identity": np.array(result)}
    np.savez_compressed(FOLDER / "lstm_frozen.npz", **stored)
    data = graph.graph.as_graph_def().SerializeToString(deterministic=True)
    (FOLDER / "lstm_frozen.pb").write_bytes(data)


if __name__ == "__main__":
    keras("recurrent", recurrent())
    keras("masked", masked())
    module("counter", Counter())
    module("branches", Branches())
    module("lists", Lists())
    for made in (Selection(), Detection(), Matrices()):
        module(type(made).__name__.lower(), made)
    several()
    version_1("loops", "version_1")
    frozen_recurrent()
