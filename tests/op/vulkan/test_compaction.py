"""Operators whose results have sizes that depend on data: wholly on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnxruntime_oracle import open_oracle
from tests.op.vulkan.harness import device
from vkmnn import InferenceSession
from vkmnn.ir import Array

pytest.importorskip("onnxruntime")


def model(
    op: str, inputs: dict[str, Array], outputs: int, constants: dict[str, Array], **attrs: Any
) -> onnx.ModelProto:
    names = [*inputs, *constants]
    results = [f"y{place}" for place in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
            )
            for name, array in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def agree(proto: onnx.ModelProto, *feeds: dict[str, Array]) -> None:
    """Compare with onnxruntime on each of the feeds, in one session; nothing is off the device."""
    device()
    oracle = open_oracle(proto)
    with InferenceSession(proto, device="auto", validation=True) as session:
        for feed in feeds:
            expected = oracle.run(None, feed)
            found = session.run(None, feed)
            for ours, theirs in zip(found, expected, strict=True):
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)
            assert not session.placement().off_device


def sparse(*shape: int, kind: str = "float32", seed: int = 0, rate: float = 0.4) -> Array:
    rng = np.random.default_rng(seed)
    kept = rng.random(shape) < rate
    return (kept * rng.integers(-9, 10, shape)).astype(kind)


@pytest.mark.parametrize("kind", ["float32", "int64", "int32", "bool", "uint8"])
@pytest.mark.parametrize("shape", [(1,), (0,), (211,), (3, 0, 5), (7, 13), (2, 3, 5, 7), (1, 1)])
def test_non_zero(shape: tuple[int, ...], kind: str) -> None:
    feeds = [{"x": sparse(*shape, kind=kind, seed=s, rate=r)} for s, r in enumerate((0.4, 0, 1))]
    agree(model("NonZero", feeds[0], 1, {}), *feeds)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 7), (2, 11, 3)])
def test_compress(shape: tuple[int, ...], axis: int | None) -> None:
    x = sparse(*shape, rate=1)
    extent = x.size if axis is None else shape[axis]
    attrs = {} if axis is None else {"axis": axis}
    feeds = [
        {"x": x, "c": np.random.default_rng(s).random(n) < rate}
        for s, (n, rate) in enumerate([(extent, 0.5), (extent - 1, 0.5), (extent, 0), (extent, 1)])
    ]
    agree(model("Compress", feeds[0], 1, {}, **attrs), *feeds)


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("kind", ["float32", "int64"])
@pytest.mark.parametrize("shape", [(1,), (2,), (211,), (7, 13), (2, 3, 5)])
def test_unique(shape: tuple[int, ...], kind: str, in_order: int) -> None:
    feeds = [{"x": sparse(*shape, kind=kind, seed=s, rate=r)} for s, r in enumerate((0.5, 0, 1))]
    agree(model("Unique", feeds[0], 4, {}, sorted=in_order), *feeds)


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis"), [((40, 2), 0), ((3, 50), 1), ((2, 2, 30), -1), ((20, 2, 3), 0), ((0, 3), 0)]
)
def test_unique_slices(shape: tuple[int, ...], axis: int, in_order: int) -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.integers(0, most, shape).astype(np.float32)} for most in (1, 2, 9)]
    proto = model("Unique", feeds[0], 4, {}, sorted=in_order, axis=axis)
    sizes = [None if place == axis % len(shape) else size for place, size in enumerate(shape)]
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes))
    agree(proto, *feeds)


def test_what_follows_takes_the_size() -> None:
    """A network continues with the elements that a condition selects."""
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["c"]),
        helper.make_node("NonZero", ["c"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["x", "rows"], ["kept"]),
        helper.make_node("Mul", ["kept", "kept"], ["squares"]),
        helper.make_node("ReduceSum", ["squares"], ["y"], keepdims=0),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [None, 7])],
        [value("y", TensorProto.FLOAT, []), value("kept", TensorProto.FLOAT, [None])],
        [numpy_helper.from_array(np.zeros((), np.float32), "zero")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    agree(proto, *({"x": sparse(11, 7, seed=seed)} for seed in range(3)), {"x": sparse(1, 7)})


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize(("images", "classes", "count"), [(1, 1, 1), (2, 3, 37), (1, 5, 1_001)])
def test_suppression(images: int, classes: int, count: int, center: int) -> None:
    rng = np.random.default_rng(count)
    feeds = []
    for levels in (9, 9_999):
        low, sizes = rng.random((2, images, count, 2), np.float32) * np.float32(20)
        boxes = np.concatenate([low, sizes if center else low + sizes], 2)
        scores = rng.integers(0, levels, (images, classes, count)) / np.float32(levels)
        feeds.append({"boxes": boxes, "scores": scores.astype(np.float32)})
    for most, limit, least in ((7, 0.5, 0.3), (2**40, 0.1, 0.0), (count, 1.0, -1.0), (0, 0.5, 0.1)):
        constants = {"most": np.array([most]), "limit": np.array([limit], np.float32)}
        constants["least"] = np.array([least], np.float32)
        proto = model("NonMaxSuppression", feeds[0], 1, constants, center_point_box=center)
        agree(proto, *feeds)
    agree(model("NonMaxSuppression", feeds[0], 1, {}, center_point_box=center), *feeds)


@pytest.mark.parametrize("length", [1, 2, 5, 8, 13])
@pytest.mark.parametrize(
    ("parts", "inverse", "onesided"), [(1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 1, 0)]
)
def test_fourier(length: int, parts: int, inverse: int, onesided: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 7, parts)).astype(np.float32)
    constants = {"n": np.array(length, np.int64)}
    proto = model("DFT", {"x": x}, 1, constants, axis=1, inverse=inverse, onesided=onesided)
    proto.graph.input[0].type.tensor_type.shape.CopyFrom(
        helper.make_tensor_value_info("x", 1, x.shape).type.tensor_type.shape
    )
    agree(proto, {"x": x})


@pytest.mark.parametrize(("kernel", "stride", "dilation", "pad"), [
    ((1, 1), (1, 1), (1, 1), 0), ((3, 2), (1, 1), (1, 1), 0), ((3, 2), (2, 3), (1, 1), 1),
    ((2, 2), (1, 2), (2, 1), 1), ((3, 3), (3, 3), (1, 1), 0),
])  # fmt: skip
def test_blocks_of_images(
    kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], pad: int
) -> None:
    image = (7, 11)
    blocks = [
        (image[i] + 2 * pad - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]
    shape = (2, 3 * kernel[0] * kernel[1], blocks[0] * blocks[1])
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    sizes = {"image": np.array(image, np.int64), "kernel": np.array(kernel, np.int64)}
    attrs = {"strides": stride, "dilations": dilation, "pads": [pad] * 4}
    proto = model("Col2Im", {"x": x}, 1, sizes, **attrs)
    proto.opset_import[0].version = 18
    agree(proto, {"x": x})
