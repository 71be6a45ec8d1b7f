"""What the fixture of this folder refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

import vkmnn
from tests.unit.conftest import without_devices
from vkmnn.errors import VkmnnError
from vkmnn.runtime.device import open_device, open_profile
from vkmnn.runtime.drivers import DriverUnavailableError
from vkmnn.runtime.drivers.vulkan.instance import Instance


@pytest.mark.parametrize(
    "use",
    [
        vkmnn.devices,
        lambda: open_device("auto"),
        lambda: vkmnn.InferenceSession(b""),  # which opens the device meanwhile
        lambda: Instance(False),
    ],
    ids=["list", "open", "session", "instance"],
)
def test_devices_are_refused(use: Callable[[], object]) -> None:
    with without_devices() as asked, suppress(VkmnnError, DriverUnavailableError):
        use()
    assert asked


def test_plans_for_described_devices_are_not() -> None:
    with without_devices() as asked:
        assert open_profile("nvidia-h200").info.name
    assert not asked
