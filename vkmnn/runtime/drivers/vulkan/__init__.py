"""The parts of the Vulkan driver; `vulkan_driver.py` puts them together."""

from __future__ import annotations
