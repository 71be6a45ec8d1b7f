"""Networks on a device that binds no more than 4 KiB at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import vkmnn
from tests.model.networks import NETWORKS, make_feeds
from tests.model.oracle import assert_agree
from tests.onnxruntime_oracle import open_oracle
from vkmnn.runtime import device as devices
from vkmnn.runtime import drivers
from vkmnn.runtime.drivers.vulkan.features import query
from vkmnn.runtime.drivers.vulkan_driver import VulkanDriver

LIMIT = 4 << 10
PRECISIONS = {"high": 1e-4, "normal": 1e-2}


@pytest.fixture(scope="module")
def limited() -> Iterator[None]:
    """Let devices bind only small ranges."""
    patch = pytest.MonkeyPatch()

    def seen_as_limited(*arguments: Any) -> Any:
        found = query(*arguments)
        if found is not None:
            limits = replace(found.info.limits, max_storage_buffer_range=LIMIT)
            found.info = replace(found.info, limits=limits)
        return found

    patch.setattr("vkmnn.runtime.drivers.vulkan_driver.query", seen_as_limited)
    patch.setattr(drivers, "_loaded", {"vulkan": VulkanDriver()})
    patch.setattr(devices, "_devices", {})
    opened = devices.open_device("auto", driver="vulkan")
    assert opened.info.limits.max_storage_buffer_range == LIMIT
    yield
    opened.close()
    patch.undo()


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_small_network(name: str, precision: str) -> None:
    model = NETWORKS[name].build()
    feeds = make_feeds(model, NETWORKS[name].sizes[0])
    expected = open_oracle(model).run(None, feeds)
    with vkmnn.InferenceSession(
        model, driver="vulkan", require_device=True, precision=precision
    ) as session:
        for _ in range(2):
            results = session.run(None, feeds)
            assert_agree(results, expected, PRECISIONS[precision], name)
