"""The driver: available devices, and their features that Kompute can use."""

from __future__ import annotations

import dataclasses

from vkmnn.runtime.device_info import DeviceInfo, Limits, Priority
from vkmnn.runtime.drivers.base import Driver
from vkmnn.runtime.drivers.kompute.device import KomputeDevice
from vkmnn.runtime.drivers.kompute.package import load

_MAX_TENSOR_BYTES = (1 << 32) - 256  # kp counts bytes in 32 bits

FEATURES = frozenset(
    f"subgroup_{name}"
    for name in (
        *("basic", "vote", "arithmetic", "ballot"),
        *("shuffle", "shuffle_relative", "clustered", "quad"),
    )
)
"""Features that work without being enabled, as kp enables none.

Timestamps are not among them: kp writes them without resetting the queries.
"""


class KomputeDriver(Driver):
    """Lists the devices of the driver `vulkan`, in the same order, and opens them with kp."""

    name = "kompute"

    def __init__(self) -> None:
        self._kp = load()
        # A forked child must not run kp's destructors: objects listed here never die there.
        self._opened: list[KomputeDevice] = []

    def enumerate(self) -> list[DeviceInfo]:
        return [
            dataclasses.replace(
                info,
                features=info.features & FEATURES,
                limits=_limits(info),
                cooperative_matrices=(),
                driver=self.name,
            )
            for info in self.others("vulkan").enumerate()
        ]

    def open(
        self,
        info: DeviceInfo,
        *,
        validation: bool,
        disabled: frozenset[str],
        priority: Priority = "normal",
    ) -> KomputeDevice:
        device = KomputeDevice(self._kp, info, validation=validation)
        self._opened = [known for known in self._opened if known.manager is not None]
        self._opened.append(device)
        return device


def _limits(info: DeviceInfo) -> Limits:
    limits = info.limits
    largest = min(limits.max_allocation_bytes, limits.max_storage_buffer_range, _MAX_TENSOR_BYTES)
    return dataclasses.replace(
        limits,
        max_texel_buffer_elements=0,
        max_texel_bindings=0,
        max_allocation_bytes=largest,
        subgroup_size_range=(info.subgroup_size, info.subgroup_size),
        timestamp_period_ns=0.0,
        whole_buffers=True,
    )
