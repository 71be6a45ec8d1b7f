"""Pipelines that are likely to be needed, built while plans are still being made."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from vkmnn.errors import VkmnnError
from vkmnn.threads import Workers

if TYPE_CHECKING:
    from vkmnn.runtime.opened import OpenDevice
    from vkmnn.runtime.pipeline import SpecValues
    from vkmnn.runtime.shader import Shader


class BuildAhead:
    """Builds pipelines in other threads, one after the other in each, and warms them up.

    Whoever asks the device for one of them finds it, or waits for it. What cannot be built fails
    again there, and nowhere else.
    """

    def __init__(self, device: OpenDevice, wanted: Sequence[tuple[Shader, SpecValues]]) -> None:
        self._device = device
        self._todo = deque(wanted)
        threads = min(os.cpu_count() or 1, len(wanted))
        self._workers = Workers(threads, "vkmnn-ahead")
        for _ in range(threads):
            self._workers.submit(self._work)

    def close(self) -> None:
        """Leave out what has not begun, and wait for the rest."""
        self._todo.clear()
        self._workers.close()

    def _work(self) -> None:
        while self._todo:
            with suppress(VkmnnError, IndexError):  # another thread may have taken the last
                self._device.warm_up([self._device.pipeline(*self._todo.popleft())])
