"""Times of variants: by timestamps of the right dispatches, in several passes."""

from __future__ import annotations

import pytest

from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.testing.runner import reach
from vkmnn.testing.selection import chosen_variants
from vkmnn.testing.timing import Job, measure

pytestmark = pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")


@pytest.fixture
def device() -> Device:
    opened = open_device()
    if "timestamps" not in opened.info.features:
        pytest.skip(f"{opened.info.name} has no timestamps")
    return opened


def job(name: str, device: Device) -> Job:
    [variant] = chosen_variants([name])
    case, picks = reach(variant, device)[0]
    return Job(variant, str(case), picks)


def test_band_holds_the_median_and_names_the_shader(device: Device):
    jobs = [job("unary_map_f32_buffer", device), job("unary_test_f32_buffer", device)]
    done: list[int] = []
    times = measure(jobs, device, done.append)
    assert set(times) == {"unary_map_f32_buffer", "unary_test_f32_buffer"}
    for ready, time in zip(jobs, times.values(), strict=True):
        assert 0 < time.low_us <= time.median_us <= time.high_us
        assert time.case == ready.case
    assert done[-1] == 2
    assert len({time.shader for time in times.values()}) == 2


def test_case_that_does_not_come_again_is_left_out(device: Device):
    good = job("unary_map_f32_buffer", device)
    lost = Job(good.variant, "another case", good.picks)
    assert measure([lost], device) == {}
