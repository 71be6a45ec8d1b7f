"""Run one op on the Vulkan device and compare it with the numpy backend."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
import pytest

from vkmnn.core.pipeline import Pipeline
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.vulkan.backend import VulkanBackend


@lru_cache(maxsize=1)
def device() -> Device:
    """Return the device under test, in validation mode; skips the test when there is none."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    return open_device("auto", validation=True)


def _info(name: str, array: Array) -> TensorInfo:
    return TensorInfo(name, DType.from_numpy(array.dtype), array.shape)


def run_graph(graph: Graph, feeds: dict[str, Array], *, on_device: bool = True) -> list[Array]:
    """Run a graph on the device, twice, and return its outputs; checks that no op fell back."""
    backend = VulkanBackend(device())
    infos = {name: _info(name, array) for name, array in feeds.items()}
    plan = Pipeline(graph, infos, {}, backend, CpuBackend(), run_op)
    try:
        if on_device:
            assert not plan.placement().off_device, str(plan.placement())
        first = plan.execute(feeds)
        second = plan.execute(feeds)
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name], err_msg="two runs differ")
        return [first[info.name] for info in graph.outputs]
    finally:
        plan.close()


def run_on_device(
    op_type: str,
    attrs: OpAttrs,
    inputs: Sequence[Array | None],
    *,
    constant: Collection[int] = (),
    outputs: int = 1,
    on_device: bool = True,
) -> list[Array]:
    """Run one op on the device.

    Args:
        op_type: a name of the vocabulary.
        attrs: its attributes.
        inputs: arrays, None for absent optional inputs.
        constant: numbers of the inputs that are constants of the graph.
        outputs: how many outputs the op has.
        on_device: assert that the op and everything it was lowered to runs on the device.
    """
    names = [f"in{i}" if array is not None else "" for i, array in enumerate(inputs)]
    outs = [f"out{i}" for i in range(outputs)]
    op = Op(op_type, "op", names, outs, attrs)
    expected = run_op(op, inputs)
    graph = Graph(
        "test",
        [
            _info(n, a)
            for i, (n, a) in enumerate(zip(names, inputs, strict=True))
            if a is not None and i not in constant
        ],
        [
            TensorInfo(n, DType.from_numpy(a.dtype), a.shape)
            for n, a in zip(outs, expected, strict=True)
        ],
        [op],
        {names[i]: a for i, a in enumerate(inputs) if a is not None and i in constant},
    )
    feeds = {
        info.name: array
        for info in graph.inputs
        for n, array in zip(names, inputs, strict=True)
        if n == info.name and array is not None
    }
    return run_graph(graph, feeds, on_device=on_device)


def check(
    op_type: str,
    attrs: OpAttrs,
    inputs: Sequence[Array | None],
    *,
    constant: Collection[int] = (),
    outputs: int = 1,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    on_device: bool = True,
) -> list[Array]:
    """Run one op on the device and on numpy; dtypes and shapes must be equal, values close."""
    names = [f"in{i}" if array is not None else "" for i, array in enumerate(inputs)]
    op = Op(op_type, "op", names, [f"out{i}" for i in range(outputs)], attrs)
    expected = run_op(op, inputs)
    results = run_on_device(
        op_type, attrs, inputs, constant=constant, outputs=outputs, on_device=on_device
    )
    for result, want in zip(results, expected, strict=True):
        assert result.dtype == want.dtype
        assert result.shape == want.shape
        if want.dtype.kind == "f":
            np.testing.assert_allclose(result, want, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(result, want)
    return results
