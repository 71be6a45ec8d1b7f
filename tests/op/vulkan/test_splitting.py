"""Constants that exceed the largest storage buffer: products are split along their columns."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest

from tests.op.vulkan.harness import device
from vkmnn.core.execution import Rejection
from vkmnn.core.plan import Plan
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Activation, Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import AxisAttrs, MatMulAttrs
from vkmnn.runtime import Device
from vkmnn.runtime.pipeline_store import PipelineStore
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.splitting.splitter import SUSPECT, Divider

LIMIT = 16 << 10


@pytest.fixture
def small() -> Device:
    """The device, as if it bound no more than 16 KiB and had no texel buffers."""
    result = copy.copy(device())
    result._pipelines = PipelineStore()  # they know the limits of their device
    info = result.info
    result.info = dataclasses.replace(
        info,
        limits=dataclasses.replace(info.limits, max_storage_buffer_range=LIMIT),
        features=frozenset(name for name in info.features if "texel" not in name),
    )
    return result


def plan(device: Device, op: Op, constants: dict[str, Array], x: Array, y: Array) -> Plan:
    infos = [TensorInfo(name, DType.FLOAT32, array.shape) for name, array in (("x", x), ("y", y))]
    graph = Graph("test", infos[:1], infos[1:], [op], constants)
    return Plan(graph, {"x": infos[0]}, {}, VulkanBackend(device), CpuBackend(), run_op)


# Columns of the constant; 66 rows, padded to 68, let 32 columns into 16 KiB and no 64.
@pytest.mark.parametrize(
    ("columns", "parts"), [(32, 0), (33, 2), (64, 2), (65, 3), (96, 3), (97, 4)]
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_large_product_is_cut(
    small: Device, columns: int, parts: int, transposed: bool, biased: bool
) -> None:
    random = np.random.default_rng(columns)
    b = random.standard_normal((66, columns)).astype(np.float32)
    x = random.standard_normal((3, 5, 66)).astype(np.float32)
    constants = {"b": np.ascontiguousarray(b.T) if transposed else b}
    if biased:
        constants["bias"] = random.standard_normal(columns).astype(np.float32)
    attrs = MatMulAttrs(transpose_b=transposed, activation=Activation("RELU"))
    op = Op("MatMul", "product", ["x", *constants], ["y"], attrs)
    expected = np.maximum(x @ b + constants.get("bias", np.float32(0)), 0)
    made = plan(small, op, constants, x, expected)
    kinds = [command.op.type for command in made.commands]
    assert kinds == (["MatMul"] * parts + ["Raster"] if parts else ["MatMul"])
    assert not made.placement().off_device
    np.testing.assert_allclose(made.execute({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)
    made.close()


def test_parts_are_uploaded_once(small: Device) -> None:
    b = np.ones((66, 100), np.float32)
    op = Op("MatMul", "product", ["x", "b"], ["y"], MatMulAttrs())
    backend = VulkanBackend(small)
    plans = []
    for rows in (2, 3):
        infos = [
            TensorInfo("x", DType.FLOAT32, (rows, 66)),
            TensorInfo("y", DType.FLOAT32, (rows, 100)),
        ]
        graph = Graph("test", infos[:1], infos[1:], [op], {"b": b})
        plans.append(Plan(graph, {"x": infos[0]}, {}, backend, CpuBackend(), run_op))
        if rows == 2:
            before = small.stats()["bytes"]
    assert small.stats()["bytes"] - before < b.nbytes
    for made in plans:
        made.close()


def test_a_large_constant_is_copied_in_parts(small: Device) -> None:
    table = np.arange(50 * 100, dtype=np.float32).reshape(50, 100)
    x = np.zeros((1, 100), np.float32)
    op = Op("Concat", "join", ["x", "table"], ["y"], AxisAttrs(0))
    expected = np.concatenate([x, table])
    made = plan(small, op, {"table": table}, x, expected)
    assert not made.placement().off_device
    np.testing.assert_array_equal(made.execute({"x": x})["y"], expected)
    made.close()


def test_constants_count_as_they_lie(small: Device) -> None:
    """Quantised values are not read as bytes if an op may be split, even with large weights."""
    divider = Divider("VULKAN", lambda *_: Rejection(""), small.info, lambda: VulkanEncoder(small))
    each = LIMIT // SUSPECT // 4

    def weights(count: int) -> Tensor:
        info = TensorInfo("w", DType.INT8, (count,))
        return Tensor(info, Usage.CONSTANT, value=np.zeros(count, np.int8))

    def computed(count: int) -> Tensor:
        return Tensor(TensorInfo("x", DType.FLOAT32, (count,)))

    assert divider.is_small([weights(each), None, computed(each // 4)])
    assert not divider.is_small([weights(each + 1)])
    assert not divider.is_small([computed(each // 4 + 1)])
