"""`vkmnn devices`: the devices that networks can run on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from rich.text import Text

from vkmnn.cli.console import bytes_text, document, note, out, show, table
from vkmnn.cli.install import remedy
from vkmnn.errors import DeviceNotFoundError
from vkmnn.opening import CPU_DEVICE, CpuInfo
from vkmnn.runtime import environment
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.runtime.device_profiles import DeviceProfile, load_profile, profile_names
from vkmnn.runtime.drivers import DriverUnavailableError, get_driver
from vkmnn.runtime.selection import select

# The facts that determine speed, in the words of a data sheet.
KEY_FEATURES = {
    "float16": "fp16",
    "storage16": "16-bit storage",
    "int8": "int8",
    "storage8": "8-bit storage",
    "integer_dot": "integer dot product",
    "bfloat16": "bfloat16",
    "cooperative_matrix": "cooperative matrix",
    "subgroup_shuffle": "subgroups",
    "timestamps": "timestamps",
}


PROFILE_NOTE = "features, limits and memory are at most that device's"


def why_none(driver: str | None) -> tuple[str, str]:
    """Explain why there is no device, and what to do."""
    name = driver or environment.driver()
    try:
        get_driver(name).enumerate()
    except DriverUnavailableError as error:
        return str(error), remedy("driver") if name == "vulkan" else error.hint
    return "the Vulkan loader works, but no driver offers a device", remedy("driver")


def automatic(found: list[DeviceInfo]) -> tuple[int | str, str]:
    """Return the index of the device that "auto" selects ("cpu" for numpy), and why."""
    selector = environment.device_selector()
    if selector == CPU_DEVICE:
        return CPU_DEVICE, "VKMNN_DEVICE says so"
    if not found and selector == "auto":
        return CPU_DEVICE, "there is no Vulkan device"
    info, reason = select(found, selector)
    return info.index, reason if selector == "auto" else f"VKMNN_DEVICE={selector}: {reason}"


def list_devices(driver: str | None) -> None:
    """Print all devices, the numpy backend last, and mark the default."""
    found = enumerate_devices(driver)
    try:
        chosen, reason = automatic(found)
        verdict = Text(f'→ "auto" means {chosen}: {reason}', style="green")
    except DeviceNotFoundError as error:
        chosen, reason = None, error.message
        verdict = Text(
            f'✗ "auto" means VKMNN_DEVICE={environment.device_selector()}, and no device matches',
            style="red",
        )
    listed = [*map(_as_dict, found), {"index": CPU_DEVICE, "name": CpuInfo().name}]
    document("devices", {"devices": listed, "auto": {"index": chosen, "reason": reason}})
    rows = table("", "#", "Device", "Type", "Vulkan", "Memory", right=("#", "Memory"))
    for device in found:
        rows.add_row(
            _mark(device.index == chosen),
            str(device.index),
            _description(device),
            type_text(device),
            ".".join(map(str, device.api_version)),
            bytes_text(device.memory_bytes),
        )
    cpu = Text(CpuInfo().name, style="bold").append(f"\nnumpy {np.__version__}", "not bold dim")
    rows.add_row(_mark(chosen == CPU_DEVICE), CPU_DEVICE, cpu, "numpy", "–", "–")
    show(rows, indent=0)
    out.print(verdict)
    if environment.device_profile():
        note(f"VKMNN_DEVICE_PROFILE={environment.device_profile()}: {PROFILE_NOTE}")
    if not found:
        reason, way_out = why_none(driver)
        note(f"no Vulkan device: {reason}")
        note(f"to get one: {way_out}")
        note("`vkmnn doctor` gives details")


def _mark(chosen: bool) -> Text:
    return Text("→" if chosen else "", style="bold green")


def type_text(device: DeviceInfo | DeviceProfile) -> str:
    """Return the device's type in everyday words."""
    return "software" if device.type is DeviceType.CPU else device.type.value


def _description(device: DeviceInfo) -> Text:
    names = [text for name, text in KEY_FEATURES.items() if name in device.features]
    text = Text(device.name, style="bold")
    if device.device_profile:
        text.append(f"\nemulates {device.device_profile}", style="not bold yellow")
    for line in (
        f"{device.vendor}, driver {device.driver_name} {device.driver_version}",
        ", ".join(names) or "no optional features",
        device.uuid,
    ):
        text.append(f"\n{line}", style="not bold dim")
    return text


def list_profiles() -> None:
    """Print the device profiles that `VKMNN_DEVICE_PROFILE` may name."""
    profiles = [load_profile(name) for name in profile_names()]
    document("devices", {"profiles": list(map(_profile_as_dict, profiles))})
    titles = ("Profile", "Device", "Memory", "Subgroups", "Group", "Shared", "Range")
    rows = table(*titles, right=titles[2:])
    rows.columns[0].no_wrap = True  # the form that people type
    for profile in profiles:
        limits = profile.limits
        rows.add_row(
            profile.name,
            Text(profile.device, style="bold").append(
                f"\n{type_text(profile)}, {profile.driver}", "not bold dim"
            ),
            bytes_text(profile.memory_bytes),
            "–".join(map(str, sorted(set(limits.subgroup_size_range)))),
            str(limits.max_workgroup_invocations),
            bytes_text(limits.max_shared_memory),
            bytes_text(limits.max_storage_buffer_range),
        )
    show(rows, indent=0)
    note(
        "VKMNN_DEVICE_PROFILE=NAME makes every device look like one, and `vkmnn plan MODEL --as "
        "NAME` predicts how a model runs on it"
    )


def _profile_as_dict(profile: DeviceProfile) -> dict[str, Any]:
    fields = dataclasses.asdict(profile)
    fields["type"] = profile.type.value
    fields["features"], fields["floors"] = sorted(profile.features), sorted(profile.floors)
    return fields


def _as_dict(device: DeviceInfo) -> dict[str, Any]:
    fields = dataclasses.asdict(device)
    fields["type"] = device.type.value
    fields["features"] = sorted(device.features)
    return fields
