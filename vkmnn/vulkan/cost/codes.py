"""The time of products of few rows with quantised weights that invocations unpack in registers."""

from __future__ import annotations

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.cost.terms import Cost
from vkmnn.vulkan.cost.tiles import FULL_INVOCATIONS


@dataclass(frozen=True, slots=True)
class CodesLoop:
    """A kernel's work per weight, in units of `DeviceClass.core_flops`.

    Args:
        rows: rows that share an unpacked weight.
        weight_flops: cost of unpacking it.
        row_flops: cost of multiplying it with a row.
        overlap: the part of the shorter of loads and arithmetic that the other hides.
        invocations: per workgroup.
    """

    rows: int
    weight_flops: float
    row_flops: float
    overlap: float = 0.0
    invocations: int = 256


# Fitted to three products on an H100 of 7 to 73 MB: 4.0 instructions a weight, none of which
# overlap with loads.
WEIGHT_FLOPS, ROW_FLOPS = 4.0, 1.3
# Four chunks at once take four times the reads of shared memory: estimated.
SLICED_FLOPS = 2.7
# Counted: 1.45 instructions a weight, and loads that run ahead. Not timed yet.
DOT_FLOPS, DOT_OVERLAP = 1.9, 0.8
# Counted, four columns an invocation: 2.25 instructions a weight, 1.5 a product with its share of
# loading and squaring the row.
DIRECT_FLOPS, DIRECT_ROW_FLOPS = 3.0, 2.0


def codes_cost(
    loop: CodesLoop, rows: int, weights: int, nbytes: float, workgroups: int, info: DeviceInfo
) -> Cost:
    """Return the predicted time of a dispatch.

    Args:
        loop: the kernel.
        rows: rows of the left operand.
        weights: number of weights.
        nbytes: their size in memory.
        workgroups: all workgroups.
        info: the device.
    """
    device = class_of(info)
    busy = max(1, min(workgroups, cores_of(info)))
    full = min(max(workgroups, 1) * loop.invocations / FULL_INVOCATIONS, busy)
    times = -(-rows // loop.rows)
    loads = max(
        nbytes / device.memory_bytes,
        times * nbytes / device.cached_bytes,
        times * nbytes / (busy * device.core_bytes),
    )
    flops = times * weights * (loop.weight_flops + loop.rows * loop.row_flops)
    arithmetic = flops / (full * device.core_flops)
    hidden = loop.overlap * min(loads, arithmetic)
    return Cost(
        start=device.start_us,
        # For the weights, and after them for the row, unless the weights are asked for first.
        latency=(1 if loop.overlap else 2) * device.round_us + device.cold_round_us,
        loads=loads - (hidden if loads <= arithmetic else 0.0),
        arithmetic=arithmetic - (hidden if arithmetic < loads else 0.0),
    )


def first_loads_us(nbytes: float, info: DeviceInfo) -> float:
    """Return the time of the first loads, `nbytes` of weights in all workgroups together."""
    device = class_of(info)
    return device.cold_round_us + device.round_us + nbytes / device.memory_bytes
