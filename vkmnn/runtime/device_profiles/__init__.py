"""Descriptions of real devices, and emulation of their limits on the current device.

Each `<name>.json` describes one device with its driver; its `sources` say where the numbers come
from, its `floors` name the values that no source gives and that are the minimum of the Vulkan
specification. docs/device-profiles.md has the table.
"""

from __future__ import annotations

from vkmnn.runtime.device_profiles.disguise import disguised
from vkmnn.runtime.device_profiles.profile import (
    DeviceProfile,
    load_profile,
    parse_profile,
    profile_names,
)

__all__ = ["DeviceProfile", "disguised", "load_profile", "parse_profile", "profile_names"]
