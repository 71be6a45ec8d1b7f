"""Networks whose tensors are in images: same results, and buffers wherever images do not work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn import InferenceSession
from vkmnn.base.elements import FloatElement
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Activation, Array, DType, Graph, Layout, Op, OpAttrs, Region, TensorInfo, View
from vkmnn.ir.ops import (
    AxisAttrs,
    BinaryAttrs,
    ConvolutionAttrs,
    InterpAttrs,
    MatMulAttrs,
    MatMulNBitsAttrs,
    PadAttrs,
    PoolingAttrs,
    ReshapeAttrs,
    SoftmaxAttrs,
    UnaryAttrs,
)
from vkmnn.runtime import Device, Image
from vkmnn.testing.case import tensor_info
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.images.place import image_size, place_of
from vkmnn.vulkan.images.raster import box_of
from vkmnn.vulkan.recording import Recording

FP16_TOLERANCE = 2e-2


class _Watched(VulkanBackend):
    """Keeps the recorded dispatches."""

    recording: Recording

    def place(self, recording: Recording, *args: object) -> object:  # type: ignore[override]
        self.recording = recording
        return super().place(recording, *args)  # type: ignore[arg-type]

    @property
    def kernels(self) -> list[str]:
        return [dispatch.shader.name for dispatch in self.recording.dispatches]


def _run(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    storage: str = "image",
    element: FloatElement = "f32",
    limit: int | None = None,
) -> tuple[dict[str, Array], _Watched]:
    backend = _Watched(device(), element=element, storage=storage)
    if limit is not None:
        info = device().info
        assert limit <= info.limits.max_image_dimension
        backend._images = limit
    infos = {name: tensor_info(name, array) for name, array in feeds.items()}
    plan = Plan(graph, infos, {}, backend, CpuBackend(), run_op)
    try:
        assert not plan.placement().off_device, str(plan.placement())
        first, second = plan.execute(feeds), plan.execute(feeds)
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name])
        device().raise_messages()
    finally:
        plan.close()
        backend.close()
    return first, backend


def _expected(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    cpu = CpuBackend()
    infos = {name: tensor_info(name, array) for name, array in feeds.items()}
    return Plan(graph, infos, {}, cpu, cpu, run_op).execute(feeds)


def _op(kind: str, inputs: str, output: str, attrs: OpAttrs) -> Op:
    return Op(kind, output, inputs.split(), [output], attrs)


def _network(channels: int = 13, batch: int = 2) -> tuple[Graph, dict[str, Array]]:
    """A residual block, one that squeezes and excites, poolings, a resize and a classifier."""
    rng = np.random.default_rng(channels)
    wide = 3 * channels

    def weights(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def conv(kernel: int, stride: int = 1, group: int = 1, kind: str = "NONE") -> ConvolutionAttrs:
        pads = (kernel // 2,) * 4
        return ConvolutionAttrs(
            (kernel, kernel), (stride, stride), (1, 1), pads, group, activation=Activation(kind)
        )

    pool = PoolingAttrs("MAX", (3, 3), (2, 2), (1, 1), (1, 1, 1, 1))
    ops = [
        _op("Convolution", "x w0 b0", "a", conv(3, 2, kind="RELU")),
        _op("Pooling", "a", "p", pool),
        _op("Convolution", "p w1 b1", "c", conv(3)),
        _op("BinaryOp", "c p", "r", BinaryAttrs("ADD", Activation("RELU"))),
        _op("Convolution", "r w2", "e", conv(1, kind="HARD_SWISH")),
        _op("Convolution", "e w3 b3", "d", conv(5, group=wide)),
        _op("Pooling", "d", "g", PoolingAttrs("AVERAGE", is_global=True)),
        _op("Convolution", "g w4", "s", conv(1, kind="SIGMOID")),
        _op("BinaryOp", "d s", "m", BinaryAttrs("MUL")),
        _op("UnaryOp", "m", "t", UnaryAttrs("TANH")),
        _op("Softmax", "t", "n", SoftmaxAttrs(1)),
        _op("BinaryOp", "t n", "u", BinaryAttrs("SUB")),
        _op("Pooling", "u", "f", PoolingAttrs("AVERAGE", is_global=True)),
        _op("Reshape", "f rows", "v", ReshapeAttrs()),
        _op("MatMul", "v w5 b5", "y", MatMulAttrs()),
    ]
    constants = {
        "w0": weights(channels, 3, 3, 3),
        "b0": weights(channels),
        "w1": weights(channels, channels, 3, 3),
        "b1": weights(channels),
        "w2": weights(wide, channels, 1, 1),
        "w3": weights(wide, 1, 5, 5),
        "b3": weights(wide),
        "w4": weights(wide, wide, 1, 1),
        "w5": weights(wide, 10),
        "b5": weights(10),
        "rows": np.array([batch, wide], np.int64),
    }
    x = rng.standard_normal((batch, 3, 29, 37)).astype(np.float32)
    outputs = [
        TensorInfo("y", DType.FLOAT32, (batch, 10)),
        TensorInfo("r", DType.FLOAT32, (batch, channels, 8, 10)),
    ]
    return Graph("images", [tensor_info("x", x)], outputs, ops, constants), {"x": x}


@pytest.mark.parametrize(
    ("channels", "element"), [(1, "f32"), (8, "f16"), (13, "f32"), (13, "f16")]
)
def test_a_network_in_images(channels: int, element: FloatElement) -> None:
    """Its kernels are those for images, with conversions where the softmax wants a buffer."""
    if element == "f16" and "storage16" not in device().info.features:
        pytest.skip("the device stores no fp16")
    graph, feeds = _network(channels)
    got, backend = _run(graph, feeds, element=element)
    tolerance = FP16_TOLERANCE if element == "f16" else 1e-5
    for name, want in _expected(graph, feeds).items():
        np.testing.assert_allclose(got[name], want, rtol=tolerance, atol=tolerance)
    families = {name.split("_f")[0] for name in backend.kernels}
    assert {"image_conv_dense", "image_conv_depthwise", "image_pool"} <= families
    assert {"image_convert_image", "image_convert_buffer"} <= families
    assert not any(name.startswith(("conv_", "pool", "matmul")) for name in backend.kernels)
    stored = [t for d in backend.recording.dispatches for t in d.tensors]
    assert {t.element for t in stored if t.layout is Layout.IMAGE} <= {element, "f32"}


def test_quantised_weights_of_products_stay_in_buffers() -> None:
    """Also where all else is in images: their kernels read them in words."""
    graph, feeds = _network(8)
    rng = np.random.default_rng(0)
    constants = {
        **graph.constants,
        "codes": rng.integers(0, 256, (10, 1, 16), np.uint8),
        "scales": rng.uniform(0.01, 0.02, (10, 1)).astype(np.float32),
    }
    last = Op(
        "MatMulNBits", "y", ["v", "codes", "", "", "scales"], ["y"], MatMulNBitsAttrs(4, 32, 24, 10)
    )
    graph = Graph("coded", graph.inputs, graph.outputs, [*graph.ops[:-1], last], constants)
    got, backend = _run(graph, feeds)
    np.testing.assert_allclose(got["y"], _expected(graph, feeds)["y"], rtol=1e-5, atol=1e-5)
    assert any(name.startswith("matmul_codes") for name in backend.kernels)
    read = [t for dispatch in backend.recording.dispatches for t in dispatch.tensors]
    assert any(t.layout is Layout.IMAGE for t in read)
    assert not any(t.layout is Layout.IMAGE for t in read if t.value is not None)


def test_buffers_are_the_default_here() -> None:
    graph, feeds = _network()
    _, backend = _run(graph, feeds, storage="buffer")
    assert not any("image" in name for name in backend.kernels)
    if image_size(device().info, "auto") == 0:
        _, backend = _run(graph, feeds, storage="auto")
        assert not any("image" in name for name in backend.kernels)


@pytest.mark.parametrize("limit", [2, 60, 80])
def test_what_is_too_large_stays_in_buffers(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the device's limit, results are right, and no image exceeds it."""
    graph, feeds = _network()
    own = device()
    info = replace(own.info, limits=replace(own.info.limits, max_image_dimension=limit))
    monkeypatch.setattr(own, "info", info)
    sizes = []
    allocate = own.allocate_image

    def watched(width: int, height: int, texel_format: str) -> object:
        sizes.append((width, height))
        return allocate(width, height, texel_format)

    monkeypatch.setattr(own, "allocate_image", watched)
    got, backend = _run(graph, feeds)
    for name, want in _expected(graph, feeds).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-5)
    assert all(max(size) <= limit for size in sizes)
    assert any("conv" in name and "image" not in name for name in backend.kernels) == (limit < 100)
    if limit >= 60:
        assert len([size for size in sizes if size != (1, 1)]) > 3


def test_tensors_whose_lives_do_not_meet_share_an_image() -> None:
    """A chain of convolutions of one shape takes two images for its tensors, however long it is."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((8, 8, 3, 3)) / 9).astype(np.float32)
    attrs = ConvolutionAttrs((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    ops = [
        _op("Convolution", f"t{i} w{i}", f"t{i + 1}" if i < 11 else "y", attrs) for i in range(12)
    ]
    x = rng.standard_normal((1, 8, 9, 7)).astype(np.float32)
    graph = Graph(
        "chain",
        [TensorInfo("t0", DType.FLOAT32, x.shape)],
        [TensorInfo("y", DType.FLOAT32, x.shape)],
        ops,
        {f"w{i}": w + np.float32(i) / 100 for i in range(12)},
    )
    before = device().stats().get("images", 0)
    backend = VulkanBackend(device(), storage="image")
    plan = Plan(graph, {"t0": tensor_info("t0", x)}, {}, backend, CpuBackend(), run_op)
    try:
        weights = 12
        assert device().stats()["images"] == before + weights + 2
        want = _expected(graph, {"t0": x})["y"]
        got = plan.execute({"t0": x})["y"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    finally:
        plan.close()
        backend.close()
    del plan, backend
    assert device().stats().get("images", 0) <= before + weights


@pytest.mark.parametrize(
    ("shape", "limit", "size"),
    [
        ((2, 13, 5, 7), 4096, (28, 10)),  # 7 columns times 4 blocks, 2 times 5 rows
        ((2, 13, 5, 7), 27, None),
        ((1, 13, 2, 7), 27, (4, 14)),  # a row for every pixel
        ((3, 6), 4096, (2, 3)),
        ((3, 6, 11), 4096, (22, 3)),
        ((1, 6, 2, 3, 4), 4096, None),
        ((6,), 4096, None),
        ((0, 6, 2, 3), 4096, None),
        ((1, 6, 2, 3), 0, None),
    ],
)
def test_where_texels_lie(shape: tuple[int, ...], limit: int, size: tuple[int, int] | None) -> None:
    place = place_of(shape, limit)
    assert (place and (place.width, place.height)) == size


@pytest.mark.parametrize(
    ("vendor", "storage", "features", "there"),
    [
        ("Qualcomm", "auto", {"images"}, True),
        ("ARM", "auto", {"images"}, True),
        ("Imagination", "auto", {"images"}, True),
        ("NVIDIA", "auto", {"images"}, False),
        ("Mesa", "auto", {"images"}, False),
        ("Mesa", "image", {"images"}, True),
        ("Mesa", "image", set(), False),
        ("Qualcomm", "auto", set(), False),
        ("Qualcomm", "buffer", {"images"}, False),
    ],
)
def test_which_devices_store_in_images(
    vendor: str, storage: str, features: set[str], there: bool
) -> None:
    info = replace(device().info, vendor=vendor, features=frozenset(features))
    assert image_size(info, storage) == (info.limits.max_image_dimension if there else 0)


@pytest.mark.parametrize("profile", ["", "adreno-610", "powervr-ge8320"])
def test_the_variable_decides(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a device that is made to look like one of those that images are for."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    w = np.random.default_rng(0).standard_normal((6, 5, 3, 3)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((1, 5, 8, 9)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 6, 8, 9))],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    monkeypatch.setenv("VKMNN_DEVICE_PROFILE", profile)
    allocate, sizes = Device.allocate_image, []

    def watched(self: Device, width: int, height: int, texel_format: str) -> Image:
        sizes.append((width, height))
        return allocate(self, width, height, texel_format)

    monkeypatch.setattr(Device, "allocate_image", watched)
    results = {}
    for storage in ("buffer", "image"):
        monkeypatch.setenv("VKMNN_STORAGE", storage)
        with InferenceSession(model.SerializeToString(), device="0") as session:
            results[storage] = session.run(None, {"x": x})[0]
        wanted = [(2 * 9, 8), (5 + 3, 2 * 9)]  # x and y alike; the weights
        assert all((size in sizes) == (storage == "image") for size in wanted)
    np.testing.assert_allclose(results["image"], results["buffer"], rtol=1e-5, atol=1e-5)
    monkeypatch.setenv("VKMNN_STORAGE", "texture")
    with pytest.raises(InvalidInputError, match="VKMNN_STORAGE='texture' is not known"):
        InferenceSession(model.SerializeToString(), device="0")


def _joined_network() -> tuple[Graph, dict[str, Array]]:
    """Data movement in decoders of U-Nets and heads of detectors: joins, resizes, crops, pads."""
    rng = np.random.default_rng(3)

    def weights(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def numbers(*values: int) -> Array:
        return np.array(values, np.int64)

    same = ConvolutionAttrs((3, 3), (1, 1), (1, 1), (1,) * 4, activation=Activation("RELU"))
    half = ConvolutionAttrs((3, 3), (2, 2), (1, 1), (1,) * 4, activation=Activation("RELU"))
    ops = [
        _op("Convolution", "x w0", "a", same),
        _op("Convolution", "a w1", "b", half),
        _op("Interp", "b no no size", "u", InterpAttrs("linear", axes=(2, 3))),
        _op("Interp", "b no no size", "v", InterpAttrs("nearest", axes=(2, 3))),
        _op("Concat", "a u v", "c", AxisAttrs(1)),
        _op("Convolution", "c w2", "d", same),
        _op("Slice", "d from to axes", "s", OpAttrs()),
        _op("Pad", "s pads", "p", PadAttrs()),
        _op("Convolution", "p w3", "y", same),
        _op("Concat", "c d", "z", AxisAttrs(1)),
    ]
    for op in ops:
        op.inputs = ["" if name == "no" else name for name in op.inputs]
    constants = {
        "w0": weights(8, 3, 3, 3),
        "w1": weights(4, 8, 3, 3),
        "w2": weights(13, 16, 3, 3),
        "w3": weights(5, 13, 3, 3),
        "size": numbers(19, 23),
        "from": numbers(2, 3),
        "to": numbers(17, 20),
        "axes": numbers(2, 3),
        "pads": numbers(0, 0, 1, 2, 0, 0, 3, 4),
    }
    x = rng.standard_normal((2, 3, 19, 23)).astype(np.float32)
    outputs = [
        TensorInfo("y", DType.FLOAT32, (2, 5, 19, 23)),
        TensorInfo("z", DType.FLOAT32, (2, 29, 19, 23)),
    ]
    return Graph("joined", [tensor_info("x", x)], outputs, ops, constants), {"x": x}


@pytest.mark.parametrize("element", ["f32", "f16"])
def test_what_is_joined_resized_and_cut_stays_in_images(element: FloatElement) -> None:
    """There are no conversions but those at the ends: no buffer in between."""
    if element == "f16" and "storage16" not in device().info.features:
        pytest.skip("the device stores no fp16")
    graph, feeds = _joined_network()
    got, backend = _run(graph, feeds, element=element)
    tolerance = FP16_TOLERANCE if element == "f16" else 1e-5
    for name, want in _expected(graph, feeds).items():
        np.testing.assert_allclose(got[name], want, rtol=tolerance, atol=tolerance)
    moving = [name for name in backend.kernels if "image_" not in name and "width" not in name]
    assert not moving
    into = [name for name in backend.kernels if name.startswith("image_convert_image")]
    out = [name for name in backend.kernels if name.startswith("image_convert_buffer")]
    assert (len(into), len(out)) == (1, 2)


@pytest.mark.parametrize(
    ("source", "output", "region", "box"),
    [
        # Channels 4 to 8 of six by five pixels behind others, in each of two images.
        (
            (2, 12, 6, 5),
            (2, 8, 6, 5),
            Region(View(120, (360, 1)), View(120, (240, 1)), (2, 120)),
            ((0, 4, 0, 0), (1, 1, 1, 1), (0, 4, 0, 0), (2, 4, 6, 5)),
        ),
        # Every second column, from the last to the first.
        (
            (4, 3, 9),
            (4, 3, 5),
            Region(View(8, (9, -2)), View(0, (5, 1)), (12, 5)),
            ((0, 0, 0, 8), (1, 1, 0, -2), (0, 0, 0, 0), (4, 3, 1, 5)),
        ),
        # A transposition, and a reshape, are no boxes.
        ((2, 3), (3, 2), Region(View(0, (1, 3)), View(0, (2, 1)), (3, 2)), None),
        ((2, 6), (3, 4), Region(View(0, (1,)), View(0, (1,)), (12,)), None),
    ],
)
def test_regions_that_are_boxes(
    source: tuple[int, ...], output: tuple[int, ...], region: Region, box: object
) -> None:
    found = box_of(region, source, output)
    assert (found and (found.src, found.step, found.dst, found.size)) == box
