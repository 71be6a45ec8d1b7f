"""The interface that objects of a Kompute device need; implemented by `device.KomputeDevice`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vkmnn.errors import DeviceError
    from vkmnn.runtime.device_info import DeviceInfo


class Owner(Protocol):
    """A device that owns objects of kp; docstrings are those of `KomputeDevice`."""

    kp: Any
    manager: Any
    spare_tensor: Any
    info: DeviceInfo
    messages: list[str]

    def own(
        self, owner: object, kind: str, things: list[Any], *, nbytes: int = 0
    ) -> weakref.finalize[..., Any]: ...

    def release(self, finalizer: weakref.finalize[..., Any]) -> None: ...

    def evaluate(self, sequence: Any) -> None: ...

    def failure(self, error: RuntimeError, doing: str) -> DeviceError: ...

    def collect_messages(self) -> None: ...

    def buffer_sizes(self) -> list[int]: ...
