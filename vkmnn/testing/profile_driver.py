"""A driver without a device, for tests: `vkmnn plan` plans by it."""

from __future__ import annotations

from vkmnn.runtime.drivers.profile_driver import PlanningDevice, ProfileDriver

__all__ = ["PlanningDevice", "ProfileDriver"]
