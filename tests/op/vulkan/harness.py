"""Run one op on the Vulkan device and compare it with the numpy backend."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import pytest

from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Array, Graph, OpAttrs
from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.testing.case import Case, op_case, tensor_info
from vkmnn.testing.runner import Picker, compare
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.device_rules import SHUFFLES
from vkmnn.vulkan.rows.reduction import RowGroup

BY_RULE: Mapping[str, Hashable] = MappingProxyType({})
ROW_GROUPS = (RowGroup(0, 32), RowGroup(0, 128), RowGroup(8, 32))
"""Workgroups of the kernels for rows, besides those that the rules pick on CPU devices."""


@lru_cache(maxsize=1)
def _opened() -> Device:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    return open_device("auto", validation=True)


def device() -> Device:
    """Return the device under test, in validation mode; skips the test when there is none."""
    if _opened().closed:  # by a test of how devices end
        _opened.cache_clear()
    return _opened()


def take_group(group: RowGroup) -> dict[str, Hashable]:
    """Return an option that makes kernels for rows run in these workgroups; skips if none can."""
    info = device().info
    if group.lanes and not (info.features >= SHUFFLES and info.subgroup_size == group.lanes):
        pytest.skip(f"the device has no subgroups of {group.lanes}")
    return {"row group": group}


def run_graph(
    graph: Graph,
    feeds: dict[str, Array],
    *,
    on_device: bool = True,
    takes: Mapping[str, Hashable] = BY_RULE,
) -> list[Array]:
    """Run a graph on the device, twice, and return its outputs; checks that no op fell back."""
    backend = VulkanBackend(device(), chooser=Picker({}, takes))
    infos = {name: tensor_info(name, array) for name, array in feeds.items()}
    plan = Plan(graph, infos, {}, backend, CpuBackend(), run_op)
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


def check_case(case: Case, *, on_device: bool = True) -> list[Array]:
    """Run a case on the device and on numpy; dtypes and shapes must be equal, values close."""
    results = run_graph(case.graph, dict(case.feeds), on_device=on_device, takes=case.takes)
    for result, want in zip(results, case.expected(), strict=True):
        compare(result, want, case)
    return results


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
    case = op_case(op_type, attrs, inputs, constant=constant, outputs=outputs)
    return run_graph(case.graph, dict(case.feeds), on_device=on_device)


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
    takes: Mapping[str, Hashable] = BY_RULE,
) -> list[Array]:
    """Run one op on the device and on numpy; dtypes and shapes must be equal, values close.

    Arguments as for `run_on_device`; `takes` lists the kernels to use if there is a choice.
    """
    case = op_case(op_type, attrs, inputs, constant=constant, outputs=outputs, rtol=rtol, atol=atol)
    return check_case(replace(case, takes=takes), on_device=on_device)
