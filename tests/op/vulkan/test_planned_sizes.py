"""Operators whose sizes are inputs: transforms, blocks of images, weights of the mel scale."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

from tests.op.vulkan.harness import device
from vkmnn import InferenceSession
from vkmnn.errors import VkmnnError
from vkmnn.ir import Array

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def whole(value: object) -> Array:
    return np.array(value, np.int64)


def model(text: str, opset: int) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> net {text}')
    onnx.checker.check_model(proto)
    return proto


def agree(
    proto: onnx.ModelProto, *feeds: dict[str, Array], reason: str = "", atol: float = 1e-4
) -> None:
    """Compare with onnx's reference; nothing is off the device but for the reason given."""
    device()
    oracle = ReferenceEvaluator(proto)
    with InferenceSession(proto, device="auto") as session:
        for feed in feeds:
            expected, found = oracle.run(None, feed), session.run(None, feed)
            for got, theirs in zip(found, expected, strict=True):
                ours: Any = got
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=atol)
            off = session.placement().off_device
            assert all(reason and reason in op.reason for op in off), off
            assert bool(off) == bool(reason)


def test_a_transform_of_a_length_that_is_fed() -> None:
    proto = model(
        "(float[N, L, 1] x, int64 n) => (float[a, b, c] y) { y = DFT<axis=1, onesided=1>(x, n) }",
        17,
    )
    agree(proto, *({"x": normal(2, 9, 1), "n": whole(n)} for n in (9, 16, 4)))


def test_a_transform_along_an_axis_that_is_fed() -> None:
    proto = model(
        "(float[N, L, 2] x, int64 n, int64 axis) => (float[a, b, c] y) { y = DFT(x, n, axis) }", 20
    )
    feeds = [{"x": normal(5, 9, 2), "n": whole(n), "axis": whole(a)} for n, a in ((9, 0), (16, -2))]
    agree(proto, *feeds)
    with InferenceSession(proto) as session, pytest.raises(VkmnnError, match="axis 2"):
        session.run(None, {**feeds[0], "axis": whole(2)})


@pytest.mark.parametrize("onesided", [0, 1])
def test_the_inverse_of_a_symbolic_axis(onesided: int) -> None:
    proto = model(
        "(float[N, L, 2] x) => (float[a, b, c] y) "
        f"{{ y = DFT<axis=1, inverse=1, onesided={onesided}>(x) }}",
        17,
    )
    agree(proto, *({"x": normal(2, length, 2)} for length in (2, 9, 16)))


def test_a_long_transform_is_the_hosts() -> None:
    proto = model("(float[N, 3000, 1] x) => (float[a, b, c] y) { y = DFT<axis=1>(x) }", 17)
    agree(proto, {"x": normal(2, 3000, 1)}, reason="a long transform", atol=1e-3)


def test_frames_whose_length_and_step_are_fed() -> None:
    proto = model(
        "(float[N, L, 1] x, int64 step, int64 n) => (float[a, b, c, d] y)"
        " { y = STFT(x, step, , n) }",
        17,
    )
    feeds = [
        {"x": normal(2, size, 1), "step": whole(step), "n": whole(n)}
        for size, step, n in ((200, 16, 64), (311, 10, 30), (30, 1, 30))
    ]
    agree(proto, *feeds)


def test_frames_whose_window_is_fed() -> None:
    proto = model(
        "(float[N, L, 1] x, int64 step, float[W] w) => (float[a, b, c, d] y)"
        " { y = STFT(x, step, w) }",
        17,
    )
    feeds = [{"x": normal(2, 200, 1), "step": whole(16), "w": normal(size)} for size in (64, 21)]
    agree(proto, *feeds)


def test_weights_of_the_mel_scale() -> None:
    text = (
        "(int64 bins, int64 n, int64 rate, float low, float high, float[T, F] x) => (float[a, b] y)"
        " { w = MelWeightMatrix(bins, n, rate, low, high) y = MatMul(x, w) }"
    )
    agree(
        model(text, 17),
        *(
            {
                "bins": whole(bins),
                "n": whole(n),
                "rate": whole(rate),
                "low": np.float32(low),
                "high": np.float32(rate / 2),
                "x": np.abs(normal(3, n // 2 + 1)),
            }
            for bins, n, rate, low in ((8, 64, 8192, 0.0), (40, 400, 16_000, 20.0))
        ),
    )


def test_edges_outside_the_spectrum_are_refused() -> None:
    proto = model(
        "(int64 n, float high) => (float[a, b] y) {"
        " bins = Constant<value = int64 {8}>() rate = Constant<value = int64 {8000}>()"
        " low = Constant<value = float {0.0}>() y = MelWeightMatrix(bins, n, rate, low, high) }",
        17,
    )
    with InferenceSession(proto) as session, pytest.raises(VkmnnError, match="lie outside"):
        session.run(None, {"n": whole(64), "high": np.float32(9000)})


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pad", "reason"),
    [
        ((3, 2), (1, 1), (1, 1), 0, ""),
        ((3, 2), (2, 3), (1, 1), 1, ""),
        ((2, 2), (1, 2), (2, 1), 1, ""),
        ((8, 8), (4, 4), (1, 1), 3, ""),
        ((9, 9), (1, 1), (1, 1), 4, "too many elements"),
    ],
)
def test_blocks_in_images_of_sizes_that_are_fed(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pad: int,
    reason: str,
) -> None:
    attributes = f"strides={[*stride]}, dilations={[*dilation]}, pads={[pad] * 4}"
    proto = model(
        "(float[N, C, L] x, int64[2] image, int64[2] block) => (float[a, b, c, d] y) "
        f"{{ y = Col2Im<{attributes}>(x, image, block) }}",
        18,
    )
    feeds = []
    for image in ((13, 17), (10, 11)):
        blocks = [
            (image[i] + 2 * pad - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
            for i in (0, 1)
        ]
        x = normal(2, 3 * prod(kernel), prod(blocks))
        feeds.append({"x": x, "image": whole(image), "block": whole(kernel)})
    agree(proto, *feeds, reason=reason)
    with InferenceSession(proto) as session, pytest.raises(VkmnnError, match="does not hold"):
        session.run(None, {**feeds[0], "block": whole([1, 1])})


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("float32", "int32", ""),
        ("int32", "float32", ""),
        ("int8", "uint8", ""),
        ("uint8", "int8", ""),
        ("uint16", "int16", ""),
        ("float16", "int16", "with other bits"),
        ("int64", "float64", "float64"),
    ],
)
def test_bits_as_numbers_of_another_type(source: str, target: str, reason: str) -> None:
    device()
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in (source, target)]
    graph = helper.make_graph(
        [helper.make_node("BitCast", ["x"], ["y"], to=types[1])],
        "net",
        [helper.make_tensor_value_info("x", types[0], ["N", 12])],
        [helper.make_tensor_value_info("y", types[1], ["N", 12])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=11)
    x = (RANDOM.standard_normal((3, 12)) * 50).astype(source)
    with InferenceSession(proto) as session:
        (y,) = session.run(None, {"x": x})
        assert y.dtype == target
        assert y.tobytes() == x.tobytes()
        off = session.placement().off_device
        assert all(reason in op.reason for op in off)
        assert bool(off) == bool(reason)


def test_places_in_an_output_shape_count_as_in_onnx() -> None:
    proto = model(
        "(float[1, 1, 2, 2] x, int64[1, 1, 2, 2] i, int64[4] shape) => (float[a, b, c, d] y)"
        " { y = MaxUnpool<kernel_shape=[2, 2], strides=[2, 2]>(x, i, shape) }",
        11,
    )
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    places = whole([5, 7, 13, 15]).reshape(x.shape)
    agree(proto, *({"x": x, "i": places, "shape": whole([1, 1, *s])} for s in ((5, 5), (4, 6))))


def test_places_of_a_pool_count_in_its_input() -> None:
    pool = "kernel_shape=[2, 2], strides=[2, 2]"
    proto = model(
        "(float[1, 2, H, W] x) => (float[a, b, c, d] y) {"
        f" v, i = MaxPool<{pool}>(x) s = Shape(x) y = MaxUnpool<{pool}>(v, i, s) }}",
        12,
    )
    device()
    with InferenceSession(proto) as session:
        for size in ((5, 7), (4, 9)):
            x = normal(1, 2, *size)
            (y,) = session.run(None, {"x": x})
            kept = y != 0
            assert y.shape == x.shape
            assert kept.sum() == 2 * (size[0] // 2) * (size[1] // 2)
            np.testing.assert_array_equal(y[kept], x[kept])
        assert not session.placement().off_device
