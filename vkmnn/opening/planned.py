"""Plans of networks for devices that are not here: predicted kernels, times and memory."""

from __future__ import annotations

from collections.abc import Mapping

from vkmnn.base.records import dataclass
from vkmnn.core.backend import MemoryUse
from vkmnn.core.placement import Placement
from vkmnn.ir import Array
from vkmnn.opening import Network, OpenDevice, open_session, possible_precision
from vkmnn.runtime.device import open_profile
from vkmnn.schedule_config import PRECISIONS, STORAGE, Precision, PrecisionName, ScheduleConfig
from vkmnn.vulkan.plan.forecast import Forecast, PlanningBackend


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan for a profile: predicted time, memory, and placement of its ops."""

    forecast: Forecast
    memory: MemoryUse
    placement: Placement
    precision: Precision


def plan_for(
    network: Network,
    profile: str,
    precision: PrecisionName,
    feeds: Mapping[str, Array],
    *,
    places: bool,
) -> Planned:
    """Return the plan of a network for a profile.

    Args:
        network: the network.
        profile: the name of a device profile.
        precision: as of a session; a device without that storage plans in float32.
        feeds: the inputs; their shapes count, and contents from which shapes are computed.
        places: also place tensors, which packs the constants.
    """
    device = open_profile(profile)
    try:
        taken = possible_precision(PRECISIONS[precision], device.info)
        element, arithmetic = STORAGE[taken]
        backend = PlanningBackend(device, element, places, arithmetic=arithmetic)
        opened = OpenDevice(backend, device.info, taken)
        session = open_session(network, ScheduleConfig(precision=precision), opened).core
        try:
            session.run(feeds)
            return Planned(
                backend.forecast(), session.memory(), session.placement(), opened.precision
            )
        finally:
            session.close()
    finally:
        device.close()
