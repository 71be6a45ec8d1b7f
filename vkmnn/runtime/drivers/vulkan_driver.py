"""The driver on the Python package `vulkan` (raw cffi)."""

from __future__ import annotations

import threading

from vkmnn.errors import DeviceNotFoundError
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.drivers.base import Driver
from vkmnn.runtime.drivers.vulkan.api import enumerate_array, lib
from vkmnn.runtime.drivers.vulkan.device import VulkanDevice
from vkmnn.runtime.drivers.vulkan.features import PhysicalDevice, query
from vkmnn.runtime.drivers.vulkan.instance import Instance


class VulkanDriver(Driver):
    """Reaches devices through the Vulkan loader; instances are made when first needed."""

    name = "vulkan"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instances: dict[bool, Instance] = {}

    def enumerate(self) -> list[DeviceInfo]:
        return [device.info for device in self._physical_devices(self._instance(False))]

    def open(self, info: DeviceInfo, *, validation: bool, disabled: frozenset[str]) -> VulkanDevice:
        instance = self._instance(validation)
        for physical in self._physical_devices(instance):
            if (physical.info.uuid, physical.info.driver_uuid) == (info.uuid, info.driver_uuid):
                return VulkanDevice(instance, physical, disabled)
        raise DeviceNotFoundError(f"{info.name} ({info.uuid}) has gone")

    def _instance(self, validation: bool) -> Instance:
        with self._lock:
            if validation not in self._instances:
                self._instances[validation] = Instance(validation)
            return self._instances[validation]

    def _physical_devices(self, instance: Instance) -> list[PhysicalDevice]:
        handles = enumerate_array(
            "VkPhysicalDevice", lib.vkEnumeratePhysicalDevices, instance.handle
        )
        devices = (query(instance.handle, handle, i) for i, handle in enumerate(handles))
        return [device for device in devices if device]
