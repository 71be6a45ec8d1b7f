"""The interface that parts of an opened device need; implemented by `device.Device`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from vkmnn.runtime.memory import Buffer, MemoryKind, Transfers

if TYPE_CHECKING:
    from vkmnn.runtime.device_info import DeviceInfo
    from vkmnn.runtime.drivers.base import DriverDevice
    from vkmnn.runtime.gate import Gate
    from vkmnn.runtime.pipeline import Pipeline, SpecValues
    from vkmnn.runtime.shader import Shader


class OpenDevice(Transfers, Protocol):
    """An opened device, as recordings and warming up see it; docstrings are those of `Device`."""

    counts: Counter[str]
    driver_device: DriverDevice
    info: DeviceInfo
    gate: Gate
    timeout_s: float
    validation: bool

    @property
    def inherited(self) -> bool: ...

    def allocate(self, nbytes: int, kind: MemoryKind) -> Buffer: ...

    def raise_unusable(self) -> None: ...

    def raise_messages(self) -> None: ...

    def mark_lost(self, reason: str, hung: bool = False) -> None: ...

    def pipeline(self, shader: Shader, spec: SpecValues = ...) -> Pipeline: ...

    def warm_up(self, pipelines: Sequence[Pipeline]) -> None: ...

    def open_again(self) -> OpenDevice: ...

    def discard(self) -> bool: ...
