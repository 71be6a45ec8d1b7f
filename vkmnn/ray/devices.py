"""Vulkan devices as a resource of Ray's: counted per node, one for each actor."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vkmnn.base.cache_files import locked
from vkmnn.base.closing import Closing
from vkmnn.base.extras import need
from vkmnn.batch.pool import checked_count
from vkmnn.errors import DeviceNotFoundError, InvalidInputError
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.device_info import DeviceType

RESOURCE = "vulkan_device"
"""Name of the custom resource: one unit is one device."""
_MOST_SHARING = 64
_INSTALL = "`vkmnn doctor` tells what to install"


def node_resources(software: bool = False, driver: str | None = None) -> dict[str, float]:
    """Return this machine's devices as resources, for `ray.init` and `ray start --resources`.

    Args:
        software: count software devices too; otherwise one counts only if there is no hardware.
        driver: the Vulkan binding.

    Raises:
        DeviceNotFoundError: the machine has no Vulkan device.
    """
    hardware, soft = _ranked(driver)
    if not hardware and not soft:
        raise DeviceNotFoundError("this machine has no Vulkan device", hint=_INSTALL)
    count = len(hardware) + len(soft) if software else len(hardware) or 1
    return {RESOURCE: float(count)}


def on_devices(count: int | None = None, share: float = 1.0) -> dict[str, Any]:
    """Return arguments of `map_batches` that give each actor a device.

    Args:
        count: number of actors; None for one on each device of the cluster.
        share: devices per actor: 0.5 lets two actors share one.

    Raises:
        DeviceNotFoundError: no node of the cluster has the resource.
        InvalidInputError: a number is out of its range.
        MissingExtraError: Ray is not installed.
    """
    if not 0 < share <= 1:
        raise InvalidInputError(f"share={share!r} is not above 0 and at most 1")
    if count is not None:
        checked_count("count", count)
    ray = need("ray", "a cluster", "ray")
    total = ray.cluster_resources().get(RESOURCE, 0)
    if not total:
        raise DeviceNotFoundError(
            f"no node of the cluster has the resource '{RESOURCE}'",
            hint='start nodes with: ray start --resources="$(python -m vkmnn.ray)"',
        )
    actors = max(1, int(total / share)) if count is None else count
    pool = need("ray.data", "batches", "ray").ActorPoolStrategy(size=actors)
    return {"resources": {RESOURCE: share}, "compute": pool}


def _ranked(driver: str | None = None) -> tuple[list[int], list[int]]:
    """Return the indices of hardware and of software devices."""
    found = enumerate_devices(driver)
    hardware = [one.index for one in found if one.type is not DeviceType.CPU]
    return hardware, [one.index for one in found if one.type is DeviceType.CPU]


class AssignedDevice(Closing):
    """A device of the node that this process uses alone, or with its share.

    Ray counts custom resources, but does not number them: processes on a node agree by locks on
    files, which the system releases if a process is killed.

    Args:
        driver: the Vulkan binding.

    Attributes:
        device: the index of the device.

    Raises:
        DeviceNotFoundError: Ray has not given the process a device, or the node has none.
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, driver: str | None = None) -> None:
        ray = need("ray", "an actor's device", "ray")
        context = ray.get_runtime_context() if ray.is_initialized() else None
        if context is None or not context.get_assigned_resources().get(RESOURCE):
            raise DeviceNotFoundError(
                "Ray has given this process no Vulkan device",
                hint=f'ask for one, resources={{"{RESOURCE}": 1}}, or name one, device="auto"',
            )
        node = context.get_node_id()
        total = next(one["Resources"] for one in ray.nodes() if one["NodeID"] == node)[RESOURCE]
        folder = Path(tempfile.gettempdir()) / f"vkmnn-ray-{_user()}" / node
        self._held = ExitStack()
        self.device = _claimed(folder, _of_node(int(total), driver), self._held)

    def close(self) -> None:
        """Let other processes use the device."""
        self._held.close()


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"


def _of_node(count: int, driver: str | None) -> list[int]:
    """Return the devices that a node's resource stands for; software devices come last.

    Raises:
        DeviceNotFoundError: the machine has no Vulkan device.
    """
    hardware, soft = _ranked(driver)
    devices = [*hardware, *soft][: max(1, count)]
    if not devices:
        raise DeviceNotFoundError("this node has no Vulkan device", hint=_INSTALL)
    return devices


def _claimed(folder: Path, devices: list[int], held: ExitStack) -> int:
    """Lock and return the device that the fewest processes use."""
    for place in range(_MOST_SHARING):
        for device in devices:
            try:
                held.enter_context(locked(folder / f"device-{device}.{place}", 0))
            except TimeoutError:
                continue
            return device
    raise DeviceNotFoundError(
        f"{_MOST_SHARING} processes already share each device of this node",
        hint="start fewer actors",
    )
