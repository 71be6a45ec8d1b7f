from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.op.vulkan.harness import check, check_case, device, run_graph
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.ir import Activation, Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import ConvolutionAttrs
from vkmnn.runtime.device_info import DeviceType
from vkmnn.vulkan import encoder
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS, cpu_lanes, rotate_lanes
from vkmnn.vulkan.encoder import Load, VulkanEncoder
from vkmnn.vulkan.gemm import encode
from vkmnn.vulkan.gemm.cpu_tiles import CPU_TILES, CpuTile
from vkmnn.vulkan.gemm.family import rank
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.rewrites import dense as gemm_dense
from vkmnn.vulkan.gemm.rewrites import fold as gemm_fold
from vkmnn.vulkan.gemm.rewrites import winograd
from vkmnn.vulkan.gemm.rewrites.dense import choose_dense
from vkmnn.vulkan.gemm.rewrites.fold import choose_fold
from vkmnn.vulkan.gemm.rewrites.winograd import TRANSFORM_PAIRS, WEIGHT_MATRIX, transform_weights
from vkmnn.vulkan.gemm.taps import loop_rounds, split_taps
from vkmnn.vulkan.gemm.target import Target
from vkmnn.vulkan.gemm.weights import Weights, pack_channels, pack_panels
from vkmnn_suite.cases.convolution_shapes import conv_case


def attrs(
    axes: int = 2,
    *,
    strides: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    group: int = 1,
    auto_pad: str = "NOTSET",
    activation: Activation | None = None,
) -> ConvolutionAttrs:
    return ConvolutionAttrs(
        (),
        strides or (1,) * axes,
        dilations or (1,) * axes,
        pads or (0,) * 2 * axes,
        group,
        auto_pad,
        activation or Activation(),
    )


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compare(conv: ConvolutionAttrs, *inputs: Array | None) -> None:
    check_case(conv_case(conv, *inputs))


@pytest.mark.parametrize(
    "tile",
    sorted({tile for tiles in CPU_TILES.values() for tile in tiles}, key=str),
    ids=lambda t: f"{t.family}-{t.pixels}-{t.panel}",
)
@pytest.mark.parametrize(("group", "channels", "outputs"), [(1, 7, 37), (2, 8, 72), (4, 16, 16)])
def test_every_tile(
    tile: CpuTile, group: int, channels: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = device().info
    if tile.family == "rotate" and tile.panel not in rotate_lanes(info):
        pytest.skip(f"the device has no shuffles of {tile.panel} lanes")
    if tile.family == "channels" and tile.panel != cpu_lanes(info):
        pytest.skip(f"workgroups of the device have {cpu_lanes(info)} invocations")
    monkeypatch.setitem(CPU_TILES, cpu_lanes(info), (tile,))
    conv = attrs(
        strides=(2, 1),
        dilations=(1, 2),
        pads=(1, 2, 2, 1),
        group=group,
        activation=Activation("SIGMOID"),
    )
    x, w, bias = (
        random(3, channels, 13, 11),
        random(outputs, channels // group, 3, 3),
        random(outputs),
    )
    compare(conv, x, w, bias)
    residual = random(3, outputs, 7, 10, seed=5)
    compare(conv, x, w, bias, residual)


def test_tail_lanes_are_zero() -> None:
    # Every lane of the first result is infinite. The second convolution multiplies the lanes behind
    # channel 4 by zero: were they infinite too, its result would be NaN.
    infinite = Activation("CLIP", float("inf"), float("inf"))
    x, w = random(1, 3, 5, 7), random(5, 3, 1, 1, seed=1)
    first = Op("Convolution", "a", ["x", "w"], ["h"], attrs(activation=infinite))
    second = Op("Convolution", "b", ["h", "v"], ["y"], attrs())
    graph = Graph(
        "tails",
        [TensorInfo("x", DType.FLOAT32, x.shape)],
        [TensorInfo("y", DType.FLOAT32, (1, 2, 5, 7))],
        [first, second],
        {"w": w, "v": np.ones((2, 5, 1, 1), np.float32)},
    )
    (y,) = run_graph(graph, {"x": x})
    np.testing.assert_array_equal(y, np.full((1, 2, 5, 7), np.inf, np.float32))


def test_more_workgroups_than_an_axis_has(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = cpu_lanes(device().info)
    rotates = lanes in rotate_lanes(device().info)
    tile = CpuTile("rotate", lanes, lanes, 1.0)
    if not rotates:
        tile = CpuTile("channels", 4, lanes, 1.0)
    monkeypatch.setitem(CPU_TILES, lanes, (tile,))
    x = random(1, 1, tile.pixels * 65_535 + 13)
    compare(attrs(1), x, random(2, 1, 1, seed=1), random(2))


@pytest.mark.parametrize("pixels", [1, 3, 40])
@pytest.mark.parametrize(("group", "outputs"), [(1, 300), (2, 24), (8, 8)])
def test_kernels_of_gpus(
    pixels: int, group: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = replace(device().info, type=DeviceType.DISCRETE)
    monkeypatch.setattr(encode, "rank", lambda problem, _: rank(problem, Target(info)))
    monkeypatch.setattr(encoder, "loads_of", lambda *_: ("buffer",))
    x = random(1, 8, pixels, 1)
    w = random(outputs, 8 // group, 3, 3, seed=1)
    compare(attrs(pads=(1, 1, 1, 1), group=group), x, w, random(outputs))


@pytest.mark.parametrize(("group", "inputs", "outputs"), [(3, 2, 5), (2, 8, 4), (5, 1, 3)])
def test_groups_as_one(
    group: int, inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = random(2, group * inputs, 7, 9)
    w = random(group * outputs, inputs, 3, 2, seed=1)
    for dense in (True, False):
        monkeypatch.setattr(gemm_dense, "choose_dense", lambda *_, dense=dense: dense)
        compare(attrs(pads=(1, 0, 1, 1), group=group), x, w, random(group * outputs))


def test_groups_that_no_block_begins_are_dense_on_processors() -> None:
    cpu = VulkanEncoder(replace(device().info, type=DeviceType.CPU))
    gpu = VulkanEncoder(replace(device().info, type=DeviceType.DISCRETE))
    known = Tensor(TensorInfo("w", DType.FLOAT32, (1,)), Usage.CONSTANT, value=random(1))
    weights = Weights(known, "", lambda plain: plain)
    odd = problem(784, 34, 34, group=4)
    assert choose_dense(odd, weights, cpu)
    assert not choose_dense(odd, weights, gpu)
    assert not choose_dense(problem(784, 32, 32, group=4), weights, cpu)
    assert not choose_dense(problem(784, 3, 3, group=99), weights, cpu)
    assert not choose_dense(replace(odd, group=1), weights, cpu)
    computed = Weights(Tensor(TensorInfo("w", DType.FLOAT32, (1,))), "", lambda plain: plain)
    assert not choose_dense(odd, computed, cpu)


@pytest.mark.parametrize("outputs", [2, 33])
@pytest.mark.parametrize("columns", [2, 4, 5, 9])
@pytest.mark.parametrize(("pads", "stride", "dilation"), [(0, 1, 1), (3, 1, 1), (1, 3, 2)])
def test_one_input_channel(
    outputs: int,
    columns: int,
    pads: int,
    stride: int,
    dilation: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w = random(2, 1, 6, 41), random(outputs, 1, 3, columns, seed=1)
    conv = attrs(strides=(1, stride), dilations=(1, dilation), pads=(1, pads, 0, 2 * pads))
    for fold in (True, False):
        monkeypatch.setattr(gemm_fold, "choose_fold", lambda *_, fold=fold: fold)
        compare(conv, x, w, random(outputs))


def test_large_windows_of_one_channel_are_folded_on_processors() -> None:
    cpu = replace(device().info, type=DeviceType.CPU)
    image = replace(problem(1, 1, 64), in_size=(1, 99, 99), out_size=(1, 95, 95), kernel=(1, 5, 5))
    assert choose_fold(image, VulkanEncoder(cpu))
    assert not choose_fold(image, VulkanEncoder(replace(cpu, type=DeviceType.DISCRETE)))
    assert not choose_fold(replace(image, kernel=(1, 5, 1)), VulkanEncoder(cpu))
    assert not choose_fold(replace(image, inputs=2), VulkanEncoder(cpu))


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(
    "shape", [(1, 8, 8, 8, 8), (2, 7, 37, 13, 11), (3, 16, 64, 4, 5), (1, 5, 6, 1, 2)]
)
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 1, 2, 0), (2, 2, 2, 2)])
def test_winograd(
    m: int,
    shape: tuple[int, int, int, int, int],
    pads: tuple[int, int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not rotate_lanes(device().info):
        pytest.skip("Winograd is for devices with the rotation kernel")
    batch, channels, outputs, height, width = shape
    x, w = random(batch, channels, height, width), random(outputs, channels, 3, 3, seed=1)
    if height + pads[0] + pads[2] < 3:
        pytest.skip("the window is larger than the padded input")
    monkeypatch.setattr(winograd, "choose_winograd", lambda *_: m)
    conv = attrs(pads=pads, activation=Activation("CLIP", 0.5, 3.0))
    compare(conv, x, w)
    size = (height + pads[0] + pads[2] - 2, width + pads[1] + pads[3] - 2)
    compare(conv, x, w, random(outputs), random(batch, outputs, *size, seed=3))


@pytest.mark.parametrize(("m", "points"), [(2, (0, 1, -1)), (4, (0, 1, -1, 2, -2))])
def test_winograd_weights(m: int, points: tuple[int, ...]) -> None:
    # Row i of G evaluates the filter, seen as a polynomial, at point i up to a factor.
    matrix = WEIGHT_MATRIX[m]
    for row, point in zip(matrix, points, strict=False):
        np.testing.assert_allclose(row, row[0] * np.array([1, point, point**2]))
    np.testing.assert_array_equal(matrix[-1], [0, 0, 1])
    w = random(5, 3, 1, 3, 3)
    transformed = transform_weights(w, m).reshape(m + 2, m + 2, 8, 3)
    want = matrix @ w[4, 2, 0] @ matrix.T
    np.testing.assert_allclose(transformed[:, :, 4, 2], want, rtol=1e-5, atol=1e-6)
    assert not transformed[:, :, 5:].any()


def test_winograd_weights_of_many_channels() -> None:
    w = random(70, 3 * TRANSFORM_PAIRS // 64 + 1, 1, 3, 3)
    want = np.einsum("ia,jb,ocab->ijoc", WEIGHT_MATRIX[4], WEIGHT_MATRIX[4], w[:, :, 0])
    transformed = transform_weights(w, 4).reshape(6, 6, 72, -1)
    np.testing.assert_allclose(transformed[:, :, :70], want, rtol=1e-5, atol=1e-6)
    assert not transformed[:, :, 70:].any()


def test_four_spatial_axes_run_on_the_backup() -> None:
    x, w = random(1, 2, 3, 3, 3, 3), random(2, 2, 1, 1, 1, 1, seed=1)
    with pytest.raises(AssertionError, match="4 spatial axes"):
        check("Convolution", attrs(4), [x, w], constant={1})


@pytest.mark.parametrize("kernel", [(1, 1, 70_001), (1, 258, 259), (7, 300, 300), (1, 1, 1)])
@pytest.mark.parametrize("inner", [0, 1, 600])
def test_split_covers_every_tap_once(kernel: tuple[int, int, int], inner: int) -> None:
    parts = split_taps(kernel, inner)
    hits = np.zeros(kernel, np.int8)
    for part in parts:
        assert loop_rounds(part.count, inner) <= MAX_LOOP_ROUNDS
        hits[tuple(slice(f, f + c) for f, c in zip(part.first, part.count, strict=True))] += 1
    assert (hits == 1).all()


def test_packed_weights() -> None:
    w = random(10, 3, 6)
    packed = pack_panels(w, 2, 2)
    # [group, panel, tap, ic, lanes · 4]: five outputs of a group fill one panel of eight.
    assert packed.shape == (2, 1, 6, 4, 8)
    assert packed[1, 0, 5, 2, 4] == w[9, 2, 5]
    assert not packed[:, :, :, 3].any()
    assert not packed[:, :, :, :, 5:].any()


def test_packed_weights_of_single_channels() -> None:
    w = random(10, 3, 6)
    packed = pack_channels(w)
    assert packed.shape == (1, 3, 6, 3, 4)
    assert packed[0, 2, 5, 2, 1] == w[9, 2, 5]
    assert not packed[0, 2, :, :, 2:].any()


def problem(pixels: int, inputs: int, outputs: int, group: int = 1) -> ConvProblem:
    return ConvProblem(
        1, group, inputs, outputs, (1, 1, pixels), (1, 1, pixels), (1, 1, 1), (1, 1, 1),
        (1, 1, 1), (0, 0, 0), (pixels, pixels, pixels, 1), 0, pixels,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "texels", "family"),
    [
        ((100, 1, 1, 8), True, "depthwise"),
        ((100, 3, 2, 8), True, "gather"),
        ((1, 512, 1000, 1), True, "channels"),
        ((3136, 64, 64, 1), False, "tile"),
    ],
)
def test_choice_of_kernel(sizes: tuple[int, int, int, int], texels: bool, family: str) -> None:
    load: Load = "texel" if texels else "buffer"
    target = Target(device().info, load=load, loads=(load,))
    assert rank(problem(*sizes), target)[0].family == family
