"""The interface of a driver's buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DriverBuffer(ABC):
    """One allocation. `host` maps all of it, or is None if the host cannot access it.

    After the requested `nbytes`, at `empty_offset`, there are some more bytes for empty ranges.
    """

    __slots__ = ("coherent", "empty_offset", "host", "nbytes")
    nbytes: int
    empty_offset: int
    host: NDArray[np.uint8] | None
    coherent: bool

    @abstractmethod
    def flush(self) -> None:
        """Make host writes visible to the device (no-op on coherent memory)."""

    @abstractmethod
    def invalidate(self) -> None:
        """Make device writes visible to the host (no-op on coherent memory)."""

    @abstractmethod
    def destroy(self) -> None:
        """Free the memory; safe to call twice."""
