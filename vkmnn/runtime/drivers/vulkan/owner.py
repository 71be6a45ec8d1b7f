"""The interface that objects of a Vulkan device need; implemented by `device.VulkanDevice`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vkmnn.runtime.device_info import DeviceInfo


class Owner(Protocol):
    """A device that owns objects; docstrings are those of `VulkanDevice`."""

    info: DeviceInfo
    handle: Any
    queue: Any
    queue_family: int
    timestamp_bits: int
    release_wait_ns: int
    heap_claims: dict[int, tuple[int, int]]

    @property
    def queue_lock(self) -> AbstractContextManager[Any]: ...

    def own(
        self,
        owner: object,
        kind: str,
        release: Callable[..., object],
        *args: Any,
        nbytes: int = 0,
    ) -> weakref.finalize[..., Any]: ...

    def release(self, finalizer: weakref.finalize[..., Any]) -> None: ...

    def check(self, result: int, call: str) -> None: ...

    def live_objects(self) -> dict[str, int]: ...
