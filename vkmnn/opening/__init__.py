"""From a model to a session: load, optimise, open the device. Every face is built on this."""

from __future__ import annotations

from vkmnn.opening.device import (
    CPU_DEVICE,
    CpuInfo,
    OpenDevice,
    open_device,
    possible_precision,
)
from vkmnn.opening.fastest import is_fastest
from vkmnn.opening.front_ends import front_end_of, unstated_inputs
from vkmnn.opening.load import load_network, network_of
from vkmnn.opening.network import InputShapes, Network
from vkmnn.opening.session import OpenSession, open_model, open_session

__all__ = [
    "CPU_DEVICE",
    "CpuInfo",
    "InputShapes",
    "Network",
    "OpenDevice",
    "OpenSession",
    "front_end_of",
    "is_fastest",
    "load_network",
    "network_of",
    "open_device",
    "open_model",
    "open_session",
    "possible_precision",
    "unstated_inputs",
]
