"""The driver on the Python package `vulkan` (raw cffi)."""

from __future__ import annotations

import dataclasses
import logging
import threading

from vkmnn.errors import DeviceError, DeviceNotFoundError
from vkmnn.runtime import environment
from vkmnn.runtime.device_info import DeviceInfo, DeviceType, Priority
from vkmnn.runtime.drivers.base import Driver, DriverUnavailableError
from vkmnn.runtime.drivers.vulkan.api import LOADER_HINT, address, enumerate_array, lib
from vkmnn.runtime.drivers.vulkan.device import VulkanDevice
from vkmnn.runtime.drivers.vulkan.features import PhysicalDevice, query
from vkmnn.runtime.drivers.vulkan.instance import Instance, require_layer
from vkmnn.runtime.drivers.vulkan.tables import FEATURE_STRUCTS
from vkmnn.runtime.drivers.vulkan.workers import pin_workers

log = logging.getLogger(__name__)

_NO_HARDWARE = (-3, -9)
"""VK_ERROR_INITIALIZATION_FAILED and _INCOMPATIBLE_DRIVER: drivers without their devices."""


class VulkanDriver(Driver):
    """Finds devices through the Vulkan loader; instances are created on first use."""

    name = "vulkan"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instances: dict[bool, Instance] = {}
        self._queried: dict[tuple[bool, int, int], PhysicalDevice | None] = {}

    def enumerate(self) -> list[DeviceInfo]:
        return [device.info for device in self._physical_devices(False)]

    def open(
        self,
        info: DeviceInfo,
        *,
        validation: bool,
        disabled: frozenset[str],
        priority: Priority = "normal",
    ) -> VulkanDevice:
        pinned = environment.pin_workers()
        instance = self._instance(validation)
        for physical in self._physical_devices(validation):
            if (physical.info.uuid, physical.info.driver_uuid) == (info.uuid, info.driver_uuid):
                shown = dataclasses.replace(physical, info=info)  # as a device profile changes it
                device = VulkanDevice(instance, shown, disabled, priority)
                if physical.info.type is DeviceType.CPU and pinned:
                    pin_workers()
                return device
        raise DeviceNotFoundError(f"{info.name} ({info.uuid}) has gone")

    def unknown_to_layer(self) -> frozenset[str]:
        version = require_layer()
        rows = (row for row in FEATURE_STRUCTS if version < row.layer)
        return frozenset(name for row in rows for name in row.members.values() if name)

    def close(self) -> None:
        with self._lock:
            while self._instances:
                self._instances.popitem()[1].destroy()
            self._queried.clear()

    def _instance(self, validation: bool) -> Instance:
        with self._lock:
            if validation not in self._instances:
                self._instances[validation] = Instance(validation)
            return self._instances[validation]

    def _physical_devices(self, validation: bool) -> list[PhysicalDevice]:
        """Return the currently usable devices; each is queried once."""
        instance = self._instance(validation)
        try:
            handles = enumerate_array(
                "VkPhysicalDevice", lib.vkEnumeratePhysicalDevices, instance.handle
            )
        except DeviceError as error:
            if error.vk_result not in _NO_HARDWARE:
                raise
            raise DriverUnavailableError(
                f"no installed driver found a device ({error.message})", LOADER_HINT
            ) from error
        devices = []
        for index, handle in enumerate(handles):
            key = (validation, index, address(handle))
            if key not in self._queried:
                self._queried[key] = query(instance.handle, handle, index)
            device = self._queried[key]
            if device is None:
                log.info("device %d left out: no Vulkan 1.1, or no compute queue", index)
            else:
                devices.append(device)
        return devices
