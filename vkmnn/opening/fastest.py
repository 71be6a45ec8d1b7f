"""Sessions that measure which engine runs a network fastest: the device, numpy or onnxruntime."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from vkmnn.control_flow.inner_work import operations
from vkmnn.core.session import Session
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import Graph
from vkmnn.opening.device import OpenDevice
from vkmnn.opening.front_ends import front_end_of
from vkmnn.opening.host_parts import host_opener
from vkmnn.opening.network import Network
from vkmnn.runtime import environment
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import ScheduleConfig

_log = logging.getLogger(__name__)

_SMALL = 1 << 24
"""Operations of networks that a software device is likely to be slow at."""

_said: set[str] = set()


def is_fastest(config: ScheduleConfig) -> bool:
    """Return whether a session measures which engine is fastest."""
    device = environment.device_word(config.device)
    return device == environment.FASTEST or (device == "auto" and environment.measures())


def open_fastest(
    network: Network,
    graph: Graph,
    config: ScheduleConfig,
    device: OpenDevice,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
) -> Session:
    """Return a session that measures the device, numpy, and the model in onnxruntime."""
    from vkmnn.core.fastest import MAX_FLOPS, Candidate, FastestSession
    from vkmnn.runtime.measurements import Measurements

    candidates: dict[str, Candidate] = {}
    if not config.require_device:
        if device.backend.type != CpuBackend.type:
            threads = config.cpu_threads
            on_cpu = partial(_session_on_cpu, graph, CpuBackend, threads, options)
            candidates[CpuBackend.type] = Candidate(on_cpu, MAX_FLOPS / 10)
        whole = None if config.save_tensors else _whole(network)
        if whole is not None:
            own = {**options, "open_host": host_opener(network, ["onnxruntime"]), "static": None}
            own["told_apart"] = None
            on_host = partial(_session_on_cpu, whole, CpuBackend, 1, own)
            candidates["onnxruntime"] = Candidate(on_host, MAX_FLOPS)
    return FastestSession(
        *arguments,
        **options,
        candidates=candidates,
        results=Measurements("fastest"),
        key=_key(graph, config, device, candidates),
        tolerance=1e-3 if device.precision in ("high", "fast") else 3e-2,
    )


def _session_on_cpu(
    graph: Graph, backend: type[CpuBackend], threads: int, options: Mapping[str, Any]
) -> Session:
    return Session(graph, backend(threads), backend(threads), run_op, **options)


def _whole(network: Network) -> Graph | None:
    """Return a network of one op: its ONNX model, for onnxruntime; None where there is none."""
    if network.origin is None or "onnxruntime" not in environment.host_engines():
        return None
    from vkmnn.converter.onnx import OnnxFrontEnd
    from vkmnn.host.whole import whole_model

    if not isinstance(front_end_of(network.origin), OnnxFrontEnd):
        return None
    return whole_model(network.graph, network.origin)


def _key(
    graph: Graph, config: ScheduleConfig, device: OpenDevice, candidates: Collection[str]
) -> str:
    """Return a key for a network, a device, and its options; independent of the weights' values."""
    parts = hashlib.sha256()
    for op in graph.ops:
        parts.update(repr((op.type, op.inputs, op.outputs, op.attrs)).encode())
    for name, array in graph.constants.items():
        parts.update(repr((name, array.dtype, array.shape)).encode())
    info = device.info
    driver = (info.name, getattr(info, "driver_version", ""))
    how = (driver, device.precision, config.cpu_threads, sorted(candidates), os.cpu_count())
    parts.update(repr((how, _version("vkmnn"), _version("onnxruntime"), np.__version__)).encode())
    return parts.hexdigest()


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def say_what_may_be_faster(graph: Graph, config: ScheduleConfig, device: OpenDevice) -> None:
    """Log, once per process, that software devices are slow at small networks."""
    asked = environment.device_word(config.device) != "auto" or config.require_device
    if asked or not _log.isEnabledFor(logging.INFO):
        return
    if not isinstance(device.info, DeviceInfo) or device.info.name in _said:
        return
    from vkmnn.vulkan.device_rules import is_gpu

    if not is_gpu(device.info) and operations(graph) < _SMALL:
        _said.add(device.info.name)
        _log.info(
            '%s computes on the CPU, and every dispatch has a price there: device="cpu" (numpy) '
            "or onnxruntime may run a network as small as '%s' faster; device=\"fastest\" measures "
            "them once and uses the fastest",
            device.info.name,
            graph.name,
        )
