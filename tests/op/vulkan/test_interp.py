from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx import helper, numpy_helper

import vkmnn
from tests.op.vulkan.harness import check, run_graph, run_on_device
from vkmnn.cpu_fallback import run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import InterpAttrs, PoolingAttrs
from vkmnn.shape.resizing import MODES
from vkmnn.vulkan.executions.interp import MAX_TAPS


def random(*shape: int, dtype: str = "float32") -> Array:
    generator = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    # The device holds 64-bit integers in 32 bits.
    limits = np.iinfo(dtype if dtype != "int64" else "int32") if dtype != "bool" else None
    return generator.integers(*(limits.min, limits.max) if limits else (0, 2), shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_integers_are_rounded_and_saturated(mode: str, antialias: bool, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).choice([limits.min, limits.max, 3], (1, 2, 9, 16)).astype(dtype)
    attrs = InterpAttrs(mode, antialias=antialias)
    op = Op("Interp", "op", ["x", "", "", "s"], ["y"], attrs)
    sizes = np.int64([1, 2, 5, 8])
    for size in (sizes, sizes * 3):
        (real,) = run_op(op, [x.astype(np.float64), None, None, size])
        (result,) = run_on_device("Interp", attrs, [x, None, None, size], constant={3})
        assert (result.dtype, result.shape) == (x.dtype, real.shape)
        # Sums in float32 may fall on either side of a tie.
        error = np.abs(result - np.clip(real, limits.min, limits.max))
        assert error.max() <= 0.5 + 1e-6 * limits.max


def test_wide_integers_are_left_to_the_backup() -> None:
    inputs = [random(1, 1, 3, 5, dtype="int32"), None, None, np.int64([1, 1, 5, 4])]
    check("Interp", InterpAttrs("nearest"), inputs, constant={3})
    check("Interp", InterpAttrs("linear"), inputs, constant={3}, on_device=False)


def test_longer_sums_are_left_to_the_backup() -> None:
    attrs = InterpAttrs("linear", antialias=True)
    inputs = [random(2, MAX_TAPS), None, None, np.int64([2, 1])]
    check("Interp", attrs, inputs, constant={3}, on_device=False)


BLOCKED = [
    InterpAttrs(mode, coordinate_mode, antialias=antialias, axes=axes)
    for mode, coordinate_mode, antialias, axes in product(
        MODES, ["half_pixel", "align_corners"], [False, True], [(2,), (3,), (2, 3), (1, 3)]
    )
    if not (antialias and mode == "nearest")
]
BLOCKED += [
    InterpAttrs("linear", "tf_crop_and_resize", extrapolation_value=value, axes=(2, 3))
    for value in (0.0, 7.0)
]


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("attrs", BLOCKED, ids=str)
def test_channel_blocks(attrs: InterpAttrs, dtype: str) -> None:
    """Between two ops that work on channel blocks; the second one sums up zero tails, too."""
    x = random(2, 5, 7, 9, dtype=dtype)
    sizes = np.int64([4, 11][: len(attrs.axes)])
    roi = np.float32([-0.1, 0.2, 0.9, 1.3])[: 2 * len(attrs.axes)]
    pool = PoolingAttrs("MAX", kernel=(2, 2))
    ops = [
        Op("Pooling", "first", ["x"], ["a"], pool),
        Op("Interp", "interp", ["a", "roi", "", "sizes"], ["b"], attrs),
        Op("Pooling", "second", ["b"], ["y"], pool),
    ]
    (a,) = run_op(ops[0], [x])
    (b,) = run_op(ops[1], [a, roi, None, sizes])
    (expected,) = run_op(ops[2], [b])
    graph = Graph(
        "test",
        [TensorInfo("x", DType(dtype), x.shape)],
        [TensorInfo("b", DType(dtype), b.shape), TensorInfo("y", DType(dtype), expected.shape)],
        ops,
        {"roi": roi, "sizes": sizes},
    )
    middle, result = run_graph(graph, {"x": x})
    atol = 1 if dtype == "uint8" and attrs.mode != "nearest" else 1e-5
    np.testing.assert_allclose(middle.astype(np.float64), b.astype(np.float64), atol=atol)
    np.testing.assert_allclose(result.astype(np.float64), expected.astype(np.float64), atol=atol)


def aligned(x: Array, output: int, mode: str) -> Array:
    """Return rows resized so that their first and last elements stay, as PyTorch defines it."""
    size = x.shape[-1]
    made = []
    for place in np.arange(output) * ((size - 1) / max(output - 1, 1)):
        first = int(np.floor(place))
        if mode == "nearest":
            weights = {int(np.ceil(place - 0.5)): 1.0}
        elif mode == "linear":
            weights = {first: first + 1 - place, first + 1: place - first}
        else:
            weights = {first + n: cubic(abs(first + n - place)) for n in (-1, 0, 1, 2)}
        picked = (x[..., min(max(at, 0), size - 1)] * weight for at, weight in weights.items())
        made.append(sum(picked))
    return np.stack(made, -1)


def cubic(d: float, a: float = -0.75) -> float:
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def resized(x: Array, scale: float, device: str, producer: str = "", **attributes: object) -> Array:
    node = helper.make_node(
        "Resize",
        ["x", "", "scales"],
        ["y"],
        coordinate_transformation_mode="align_corners",
        **attributes,
    )
    scales = numpy_helper.from_array(np.array([1, 1, 1, scale], np.float32), "scales")
    infos = [helper.make_tensor_value_info(name, 1, [None] * 4) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], [scales])
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name=producer)
    with vkmnn.InferenceSession(model, device=device) as session:
        return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [1.7, 0.6, 2.25, 0.3, 0.1])
def test_frameworks_align_the_last_elements(scale: float, mode: str, device: str) -> None:
    x = random(2, 3, 5, 17)
    expected = aligned(x, int(17 * np.float32(scale)), mode)
    for attributes in ({"producer": "pytorch"}, {"producer": "tf2onnx 1.16"}):
        result = resized(x, scale, device, mode=mode, **attributes)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    if mode != "nearest":
        # Optimisers put their name in the producer's place; the exporter's attributes remain.
        result = resized(x, scale, device, "optimiser", mode=mode, nearest_mode="floor")
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_others_align_them_as_the_reference_does(device: str) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    # ONNX's case of 4 elements times 0.6: the second of two stands at 3 / (2.4 - 1).
    result = resized(x, 0.6, device, mode="linear")
    np.testing.assert_allclose(result[0, 0, 0], [0, 3 / 1.4], rtol=1e-6)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_frameworks_align_half_pixels_where_they_smooth(device: str) -> None:
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 1, 9) ** 2
    step = 8 / 3  # of 4 elements
    expected = []
    for centre in (np.arange(4) + 0.5) * step:
        weights = np.clip(1 - np.abs((np.arange(9) + 0.5 - centre) / step), 0, 1)
        expected.append(weights @ x[0, 0, 0] / weights.sum())
    result = resized(x, 0.5, device, "pytorch", mode="linear", antialias=1)
    np.testing.assert_allclose(result[0, 0, 0], expected, rtol=1e-5)
