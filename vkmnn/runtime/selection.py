"""Which device a selector selects."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vkmnn.errors import DeviceNotFoundError
from vkmnn.runtime.device_info import DeviceInfo

_INDEX = re.compile(r"-?[0-9]{1,9}")


def select(devices: Sequence[DeviceInfo], selector: str | int) -> tuple[DeviceInfo, str]:
    """Return the selected device and the reason for the choice.

    Args:
        devices: what was found.
        selector: "auto", an index (an integer, or its text), a UUID, or part of the name (in
            upper or lower case).

    Raises:
        DeviceNotFoundError: nothing fits.
    """
    ranked = sorted(devices, key=lambda device: (device.type.rank, device.index))
    text = str(selector).strip().lower()
    if text == "auto" and ranked:
        best = ranked[0]
        if len(ranked) == 1:
            return best, "the only Vulkan device"
        return best, f"the first of type {best.type.value}, the best type of {len(ranked)} devices"
    if _INDEX.fullmatch(text):
        for device in devices:
            if device.index == int(text):
                return device, f"its index is {text}"
        # "2" is in "H200": a number that is not an index must not open a device by its name.
        raise DeviceNotFoundError(f"there is no device {text}; {describe(devices)}", hint=_HINT)
    for device in ranked:
        if device.uuid.replace("-", "") == text.replace("-", ""):
            return device, "its UUID was given"
    for device in ranked:
        if text and text in device.name.lower():
            return device, f"its name contains '{selector}'"
    raise DeviceNotFoundError(f"no device fits '{selector}'; {describe(devices)}", hint=_HINT)


def describe(devices: Sequence[DeviceInfo]) -> str:
    """List the devices found, in words."""
    if not devices:
        return "no Vulkan device was found"
    lines = (f"{d.index}: {d.name} ({d.type.value}, {d.uuid})" for d in devices)
    return "found: " + "; ".join(lines)


_HINT = (
    'a selector is "auto", an index, part of a name or a UUID; `vkmnn devices` lists the devices '
    "found. Drivers come with the GPU vendor's package or with Mesa (Debian, Ubuntu: `apt install "
    "mesa-vulkan-drivers`, which also brings a software device)"
)
