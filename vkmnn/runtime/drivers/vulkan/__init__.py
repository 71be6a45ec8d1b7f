"""The parts of the Vulkan driver, used by `vulkan_driver.py`."""

from __future__ import annotations
