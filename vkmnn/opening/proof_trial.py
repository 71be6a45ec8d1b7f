"""The products and chains by which a device proves its matrices, dot products, images and flags."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from vkmnn.base.elements import FloatElement
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import (
    BinaryAttrs,
    ConvolutionAttrs,
    MatMulAttrs,
    MatMulNBitsAttrs,
    OpAttrs,
    QuantizedMatMulAttrs,
    TransposeAttrs,
)
from vkmnn.runtime.device import Device
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.proof import SIZE, Capability, Outcome, Prover, Trial

_ELEMENTS: dict[str, FloatElement] = {"half": "f16"}
# Sums of this many products of integers below it are exact in float16 operands and float32 sums.
_LARGEST = 8
_IMAGE_WIDTH = 32
# A workgroup for each multiprocessor of an H200, if an invocation computes four numbers.
_CHAIN_SHAPE = (352, 384)
_CODED_COLUMNS = 16
"""Columns of quantised weights for each row of other products: one row takes as long."""


@contextmanager
def _open_trial(device: Device) -> Iterator[Trial]:
    """Open a trial on a device of its own: a driver that fails takes no session's device along."""
    trial = ProductTrial(device.open_again())
    try:
        yield trial
    finally:
        trial.close()


class ProductTrial:
    """Computes products on a device, each way by its own plan.

    Args:
        device: closed with the trial.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._info = device.info
        self._plans: dict[tuple[str, bool, int], tuple[Plan, dict[str, Array], Array]] = {}

    def __call__(self, capability: Capability, used: bool, rows: int) -> Outcome:
        """Return a product's device time and its difference from numpy."""
        key = (capability.name, used, rows)
        if key not in self._plans:
            self._plans[key] = self._plan(capability, used, rows)
        plan, feeds, want = self._plans[key]
        start = time.perf_counter_ns()
        (got,) = plan.execute(feeds).values()
        spent = (time.perf_counter_ns() - start) / 1000
        if "timestamps" in self._info.features and capability.product != "chain":
            times = [timing.microseconds for _, timing in plan.timings() if timing.op == "product"]
            spent = sum(times) or spent
        gap = np.subtract(got.reshape(want.shape), want, dtype=np.float64)
        difference = np.abs(gap).max() / np.abs(want).max()
        return Outcome(float(spent), float(difference))

    def _plan(
        self, capability: Capability, used: bool, rows: int
    ) -> tuple[Plan, dict[str, Array], Array]:
        info = capability.alone(self._info)
        self._device.info = info if used else capability.without(info)
        backend = VulkanBackend(
            self._device,
            element=_ELEMENTS.get(capability.product, "f32"),
            arithmetic="limbs" if used and capability.product == "limbs" else "f32",
            timestamps="timestamps" in info.features and capability.product != "chain",
            flags=used and capability.product == "chain",
            tuning="off",
            storage="auto",
        )
        network = chain(rows) if capability.product == "chain" else None
        graph, feeds, want = network or _network(capability.product, rows)
        infos = {one.name: one for one in graph.inputs}
        plan = Plan(graph, infos, {}, backend, CpuBackend(), run_op)
        return plan, feeds, want

    def close(self) -> None:
        """Free the plans and the device."""
        for plan, _, _ in self._plans.values():
            plan.close()
        self._device.discard()


def _network(product: str, rows: int) -> tuple[Graph, dict[str, Array], Array]:
    """Return a network of one product, its input, and numpy's result."""
    rng = np.random.default_rng(0)
    x = rng.integers(-_LARGEST, _LARGEST + 1, (rows, SIZE)).astype(np.float32)
    w = rng.integers(-_LARGEST, _LARGEST + 1, (SIZE, SIZE)).astype(np.float32)
    if product == "limbs":
        x, w = (rng.standard_normal(one.shape).astype(np.float32) for one in (x, w))
    want: Array = x @ w  # exact, but for limbs
    constants: dict[str, Array] = {"w": w}
    inputs, fed, op_type = ["x", "w"], x, "MatMul"
    attrs: OpAttrs = MatMulAttrs()
    if product == "bytes":
        bound = float(_LARGEST)
        attrs = QuantizedMatMulAttrs(False, False, -np.inf, np.inf, taken=(-bound, bound))
        constants = {"w": w.astype(np.int8), "factor": np.ones(1, np.float32)}
        inputs, op_type = ["x", "w", "", "", "factor"], "QuantizedMatMul"
    elif product == "codes":
        columns = _CODED_COLUMNS * rows
        attrs, op_type, fed = MatMulNBitsAttrs(8, 32, SIZE, columns), "MatMulNBits", x[:1]
        codes = np.tile(w.T + 128, (-(-columns // SIZE), 1))[:columns].astype(np.uint8)
        want = fed @ (codes.T.astype(np.float32) - 128)
        scales = np.ones((columns, SIZE // 32), np.float32)
        constants = {"w": codes.reshape(columns, -1, 32), "scales": scales}
        inputs = ["x", "w", "", "", "scales"]
    elif product == "image":
        attrs = ConvolutionAttrs((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
        constants, op_type = {"w": np.ascontiguousarray(w.T)[:, :, None, None]}, "Convolution"
        fed = x.T.reshape(1, SIZE, rows // _IMAGE_WIDTH, _IMAGE_WIDTH)
        want = want.T
    graph = Graph(
        "proof",
        [TensorInfo("x", DType.FLOAT32, fed.shape)],
        [TensorInfo("y", DType.FLOAT32, None)],
        [Op(op_type, "product", inputs, ["y"], attrs)],
        constants,
    )
    return graph, {"x": np.ascontiguousarray(fed)}, want


def chain(levels: int) -> tuple[Graph, dict[str, Array], Array]:
    """Return dispatches that each need what nearly all workgroups of the one before computed.

    Every one transposes and adds; all numbers are integers, which float32 holds exactly.
    """
    rng = np.random.default_rng(0)
    shapes = _CHAIN_SHAPE, _CHAIN_SHAPE[::-1]
    constants: dict[str, Array] = {
        f"w{turn}": rng.integers(-_LARGEST, _LARGEST + 1, shapes[turn]).astype(np.float32)
        for turn in (0, 1)
    }
    fed = constants["w0"] + 1
    want, name, ops = fed, "x", []
    for level in range(1, levels + 1):
        added = f"w{level % 2}"
        want = want.T + constants[added]
        ops += [
            Op("Transpose", f"t{level}", [name], [f"t{level}"], TransposeAttrs((1, 0))),
            Op("BinaryOp", f"s{level}", [f"t{level}", added], [f"s{level}"], BinaryAttrs("ADD")),
        ]
        name = f"s{level}"
    graph = Graph(
        "chain",
        [TensorInfo("x", DType.FLOAT32, fed.shape)],
        [TensorInfo(name, DType.FLOAT32, None)],
        ops,
        constants,
    )
    return graph, {"x": fed}, np.ascontiguousarray(want)


PROVER = Prover(_open_trial)
"""The prover of all sessions of the process."""
