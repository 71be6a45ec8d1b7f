"""Devices of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vkmnn.errors import DeviceNotFoundError, ValidationLayerError
from vkmnn.runtime import environment
from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.selection import select

ALL = "all"


@dataclass(frozen=True, slots=True)
class Target:
    """A device under test.

    `label` is its name, and `slug` the name's beginning as part of a test's name; both are made
    unique where devices share them.
    """

    label: str
    slug: str
    info: DeviceInfo

    def open(self, *, validation: bool) -> Device:
        """Return the opened device."""
        return open_device(self.info.uuid, validation=validation)


def targets(wanted: Sequence[str]) -> list[Target]:
    """Return the devices that these selectors mean, each once.

    Args:
        wanted: selectors as for `open_device`, or "all"; nothing means "auto".

    Raises:
        DeviceNotFoundError: one of them fits no device.
    """
    found = enumerate_devices()
    chosen: dict[str, DeviceInfo] = {}
    for selector in wanted or ["auto"]:
        if selector == "auto":
            selector = environment.device_selector()
        everything = selector.lower() == ALL and bool(found)
        for info in found if everything else [_one(found, selector)]:
            chosen.setdefault(info.uuid, info)
    labels = _unique(found, " #", lambda name: name)
    slugs = _unique(found, "-", lambda name: "-".join(name.split("(")[0].lower().split()))
    return [Target(labels[uuid], slugs[uuid], info) for uuid, info in chosen.items()]


def _unique(
    found: Sequence[DeviceInfo], separator: str, text: Callable[[str], str]
) -> dict[str, str]:
    """Return a label for every device by UUID, with the index if two would be equal."""
    count = Counter(text(info.name) for info in found)
    return {
        info.uuid: text(info.name)
        if count[text(info.name)] == 1
        else f"{text(info.name)}{separator}{info.index}"
        for info in found
    }


def _one(found: Sequence[DeviceInfo], selector: str) -> DeviceInfo:
    try:
        return select(found, selector)[0]
    except DeviceNotFoundError as error:
        hint = f'"{ALL}" takes every device; {error.hint}'
        raise DeviceNotFoundError(error.message, hint=hint) from None


def unvalidated(target: Target) -> str:
    """Return why a run is not under the validation layer; "" if it is.

    It is wherever the layer is installed. `VKMNN_VALIDATION=0` forbids it, and 1 requires it.

    Raises:
        VkmnnError: the device cannot be opened, or the layer is demanded and missing.
    """
    asked = os.environ.get("VKMNN_VALIDATION", "").strip()
    if asked and not environment.validation():
        return f"VKMNN_VALIDATION={asked}"
    try:
        target.open(validation=True)
    except ValidationLayerError as error:
        if asked:
            raise
        return error.message
    return ""
