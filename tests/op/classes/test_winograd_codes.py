"""Quantised Winograd convolutions, bit for bit: integers from end to end."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from vkmnn import InferenceSession, ScheduleConfig
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.ir import DType, TensorInfo
from vkmnn.opening import open_model
from vkmnn.runtime.device import enumerate_devices
from vkmnn.schedule_config import Level
from vkmnn.vulkan.device_rules import is_gpu, rotate_lanes
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.gemm.epilogue import Epilogue
from vkmnn.vulkan.gemm.job import ConvJob
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.requantize import Requantize
from vkmnn.vulkan.gemm.rewrites import winograd_codes
from vkmnn.vulkan.gemm.rewrites.whole_numbers import (
    EXACT,
    FORMS,
    Bounds,
    fewest_parts,
    transform_whole,
)
from vkmnn.vulkan.gemm.weights import Weights

Array = npt.NDArray[Any]

PROBLEM = ConvProblem(
    batch=1, group=1, inputs=64, outputs=16, in_size=(1, 8, 8), out_size=(1, 6, 6),
    kernel=(1, 3, 3), stride=(1, 1, 1), dilation=(1, 1, 1), pad=(0, 0, 0),
    out_strides=(36, 36, 6, 1), out_offset=0, out_block=36,
)  # fmt: skip

# x, outputs, pads (top, left, bottom, right)
SHAPES = [
    ((1, 1, 1, 1), 1, (1, 1, 1, 1)),
    ((2, 3, 7, 5), 5, (1, 0, 2, 1)),
    ((1, 17, 11, 13), 7, (1, 1, 1, 1)),
    ((3, 8, 3, 29), 12, (0, 2, 0, 0)),
    ((1, 40, 9, 6), 9, (2, 1, 0, 3)),
]
TYPES = {"uint8 int8": (0, 128, 255, 7), "int8 int8": (-128, 0, 127, -3)}
EXTREMES: dict[str, Any] = {
    "any": lambda rng, shape, low, high: rng.integers(low, high + 1, shape),
    "greatest": lambda rng, shape, low, high: np.full(shape, high),
    "least": lambda rng, shape, low, high: np.full(shape, low),
    "ends": lambda rng, shape, low, high: rng.choice([low, high], shape),
}


@pytest.fixture(params=[2, 4])
def m(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """F(m, 3) wherever it can be."""
    devices = enumerate_devices()
    if not devices or any(map(is_gpu, devices)):
        pytest.skip("for CPU devices")
    size: int = request.param
    rank = winograd_codes.rank_whole

    def always(job: ConvJob, encoder: VulkanEncoder) -> list[int]:
        encoder.spacious = True
        return [size] if rank(job, encoder) else []

    monkeypatch.setattr(winograd_codes, "rank_whole", always)
    return size


def model(x: Array, w: Array, numbers: dict[str, Array], **window: Any) -> Any:
    names = ("x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b")
    node = helper.make_node("QLinearConv", names, ["y"], **window)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in {"w": w, **numbers}.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def kernels_and_result(made: Any, x: Array, device: str) -> tuple[list[str], Array]:
    with InferenceSession(made, device) as session:
        y = session.run(None, {"x": x})[0]
        kernels = [entry.kernel for entry in session.profile({"x": x}, 1)]
        return [kernel for kernel in kernels if kernel.startswith("winograd")], y


def numbers_for(w: Array, dtype: Any, zeros: tuple[int, int], by_channel: bool) -> dict[str, Array]:
    """Return scales and zero points for which many results are not clamped."""
    channels = len(w)
    products = w.astype(np.int64).reshape(channels, -1)
    scale = (2.0 ** -np.ceil(np.log2(np.abs(products).sum(1) + 1))).astype(np.float32)
    scales = scale if by_channel else scale.min()
    return {
        "xs": np.float32(1), "xz": np.array(zeros[0], dtype), "ws": np.asarray(scales),
        "wz": np.zeros(np.shape(scales), w.dtype), "ys": np.float32(1.5),
        "yz": np.array(zeros[1], dtype), "b": np.arange(channels, dtype=np.int32) * 37 - 100,
    }  # fmt: skip


@pytest.mark.parametrize("filled", EXTREMES)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_results_are_those_of_the_definition(number: int, types: str, filled: str, m: int) -> None:
    shape, outputs, pads = SHAPES[number]
    rng = np.random.default_rng(number)
    dx, dw = (np.dtype(name) for name in types.split())
    limits = np.iinfo(dx)
    w = EXTREMES[filled](rng, (outputs, shape[1], 3, 3), -128, 127).astype(dw)
    each = "ends" if filled != "any" else "any"
    x = EXTREMES[each](rng, shape, limits.min, limits.max).astype(dx)
    zeros = TYPES[types][number % 4], TYPES[types][(number + 1) % 4]
    made = model(x, w, numbers_for(w, dx, zeros, number % 2 == 0), pads=pads)
    kernels, got = kernels_and_result(made, x, "auto")
    assert kernels == [f"winograd_in_{m}_c8", f"winograd_out_{m}_c8"]
    _, want = kernels_and_result(made, x, "cpu")
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("filled", EXTREMES)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("zero", range(4))
def test_results_along_rows_are_those_of_the_definition(zero: int, types: str, filled: str) -> None:
    """Sums of 57 channels leave what floats hold if all are extreme: those are two convolutions."""
    rng = np.random.default_rng(zero)
    dx, dw = (np.dtype(name) for name in types.split())
    limits = np.iinfo(dx)
    channels = (8, 48, 57, 64)[zero]
    w = EXTREMES[filled](rng, (32, channels, 3, 3), -128, 127).astype(dw)
    each = "ends" if filled != "any" else "any"
    x = EXTREMES[each](rng, (2, channels, 6, 13), limits.min, limits.max).astype(dx)
    x[1] = limits.max if zero % 2 else limits.min
    numbers = numbers_for(w, dx, (TYPES[types][zero], TYPES[types][(zero + 1) % 4]), zero > 1)
    made = model(x, w, numbers, pads=(1, 1, 1, 1))
    with InferenceSession(made) as session:
        got = session.run(None, {"x": x})[0]
        kernels = [entry.kernel for entry in session.profile({"x": x}, 1)]
    if row_is_first():
        assert "conv_row_8" in kernels
    np.testing.assert_array_equal(got, kernels_and_result(made, x, "cpu")[1])


def row_is_first() -> bool:
    """Return whether a device with eight lanes per subgroup is used."""
    devices = enumerate_devices()
    if not devices or is_gpu(devices[0]):
        return False
    return devices[0].subgroup_size == 8 and 8 in rotate_lanes(devices[0])


@pytest.mark.parametrize(
    ("filters", "window"),
    [
        ((6, 8, 3, 3), {"strides": [1, 2]}),
        ((6, 8, 3, 3), {"dilations": [2, 1]}),
        ((8, 1, 3, 3), {"group": 8}),
        ((6, 8, 3, 2), {}),
        ((6, 8, 1, 1), {}),
    ],
)
def test_other_windows_stay(filters: tuple[int, ...], window: dict[str, Any], m: int) -> None:
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, filters).astype(np.int8)
    x = rng.integers(0, 256, (1, 8, 9, 9)).astype(np.uint8)
    made = model(x, w, numbers_for(w, x.dtype, (3, 130), True), **window)
    kernels, got = kernels_and_result(made, x, "auto")
    assert not kernels
    np.testing.assert_array_equal(got, kernels_and_result(made, x, "cpu")[1])


@pytest.mark.parametrize("m", FORMS)
def test_the_transforms_make_convolutions(m: int) -> None:
    """The products of F(m, 3) sum to the result of a 3 x 3 window, whatever the numbers."""
    form, n = FORMS[m], m + 2
    rng = np.random.default_rng(m)
    # The last transform is linear in the products: that there is one proves the other two.
    count = 4 * len(form.data)
    tiles = rng.integers(-9, 10, (count, n, n)).astype(np.float64)
    windows = rng.integers(-9, 10, (count, 3, 3)).astype(np.float64)
    data, weights = (np.asarray(part, np.float64) for part in (form.data, form.weights))
    products = (tiles.reshape(count, -1) @ data.T) * (windows.reshape(count, -1) @ weights.T)
    places = [(i, j) for i in range(m) for j in range(m)]
    sums = np.stack([(tiles[:, i : i + 3, j : j + 3] * windows).sum((1, 2)) for i, j in places], 1)
    last, *_ = np.linalg.lstsq(products, sums, rcond=None)
    np.testing.assert_allclose(products @ last, sums, atol=1e-6)
    # In 32 bits, it stands m · m times too large.
    np.testing.assert_allclose(last * m * m, np.rint(last * m * m), atol=1e-6)


@given(
    m=st.sampled_from(sorted(FORMS)),
    bounds=st.sampled_from([(0, 255), (-128, 127), (-255, 0), (-3, 252), (-7, 9), (0, 0)]),
    channels=st.integers(1, 40),
    seed=st.integers(0, 99),
    large=st.booleans(),
)
def test_sums_are_cut_where_they_may_be_inexact(
    m: int, bounds: tuple[int, int], channels: int, seed: int, large: bool
) -> None:
    rng = np.random.default_rng(seed)
    shape = (3, channels, 1, 3, 3)
    w = rng.choice([-128, 127], shape) if large else rng.integers(-40, 41, shape)
    form, codes = FORMS[m], Bounds(*bounds)
    parts = fewest_parts(w, form, codes)
    blocks = -(-channels // 4)
    assert parts
    assert blocks % parts == 0
    whole = transform_whole(w, form, 1).reshape(len(form.data), 4, -1)
    centered = np.array(bounds) - codes.center
    low, high = min(centered[0], -codes.center), max(centered[1], -codes.center)
    # Each product alone at its greatest.
    rows = np.asarray(form.data, np.float64)
    most = np.where(rows > 0, rows * high, rows * low).sum(1)
    least = np.where(rows > 0, rows * low, rows * high).sum(1)
    v = np.maximum(most, -least)
    reached = np.abs(whole) * v[:, None, None]

    def peak(count: int) -> float:
        return float(reached.reshape(*reached.shape[:2], count, -1).sum(3).max())

    assert peak(parts) <= EXACT
    assert all(peak(less) > EXACT for less in range(1, parts) if blocks % less == 0)


def test_parts_lie_one_after_the_other() -> None:
    w = np.random.default_rng(0).integers(-128, 128, (5, 12, 1, 3, 3)).astype(np.int8)
    whole = transform_whole(w, FORMS[2], 1).reshape(16, 8, 3, 4)
    parts = transform_whole(w, FORMS[2], 3).reshape(16, 3, 8, 4)
    np.testing.assert_array_equal(parts, whole.transpose(0, 2, 1, 3))
    assert not whole[:, 5:].any()


def test_sums_beyond_32_bits_are_left() -> None:
    w = np.full((1, 512, 1, 3, 3), 127, np.int8)
    assert fewest_parts(w, FORMS[2], Bounds(0, 255)) == 0
    assert fewest_parts(w[:, :64], FORMS[2], Bounds(0, 255)) > 1


def test_other_weights_of_a_name_are_counted_anew() -> None:
    """Weights may follow from shapes: a later plan has others of the same name."""
    devices = enumerate_devices()
    if not devices:
        pytest.skip("no Vulkan device")
    encoder = VulkanEncoder(devices[0])
    counts = []
    for size in (1, 127):
        value = np.full((16, 64, 3, 3), size, np.int8)
        tensor = Tensor(TensorInfo("w", DType.INT8, value.shape), Usage.CONSTANT, value=value)
        weights = Weights(tensor, "bytes", lambda w: w.reshape(*w.shape[:2], 1, 3, 3))
        factor = Tensor(TensorInfo("f", DType.FLOAT32, (16,)))
        ends = Requantize(factor, -128.0, 127.0, taken=(-128.0, 127.0))
        x = Tensor(TensorInfo("x", DType.FLOAT32, (1, 64, 8, 8)))
        job = ConvJob(PROBLEM, weights, x, x, Epilogue(ending=ends))
        counts.append(winograd_codes.count_parts(job, 4, encoder, 16))
    assert counts[0] == 1
    assert counts[1] > 1


@pytest.mark.parametrize("memory", ["normal", "high"])
def test_it_takes_memory_only_where_that_is_allowed(memory: Level) -> None:
    devices = enumerate_devices()
    if not devices or any(map(is_gpu, devices)):
        pytest.skip("for CPU devices")
    rng = np.random.default_rng(0)
    # Rows of other lengths are computed along rows, which takes no memory.
    x = rng.integers(0, 256, (1, 512, 10, 10)).astype(np.uint8)
    w = rng.integers(-4, 5, (512, 512, 3, 3)).astype(np.int8)
    made = model(x, w, numbers_for(w, np.uint8, (128, 128), True), pads=[1] * 4)
    _, opened = open_model(made, ScheduleConfig(memory=memory))
    with closing(opened.core) as session:
        used = {entry.kernel.split("_")[0] for entry in session.profile({"x": x}, 1)}
    assert ("winograd" in used) == (memory == "high")
