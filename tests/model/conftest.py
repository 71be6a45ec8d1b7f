"""Shared fixtures for tests of whole networks."""

from __future__ import annotations

import os

import pytest

from vkmnn.errors import DeviceNotFoundError, ValidationLayerError
from vkmnn.runtime.device import open_device


@pytest.fixture(scope="session")
def validation() -> bool:
    """Return whether networks run under the validation layer; skip the test without a device."""
    try:
        open_device("auto", validation=True)
    except DeviceNotFoundError as error:
        pytest.skip(f"no Vulkan device: {error}")
    except ValidationLayerError:
        if os.environ.get("VKMNN_REQUIRE_VALIDATION") == "1":
            raise
        return False
    return True
