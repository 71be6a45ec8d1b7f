"""Makes CPU devices compile to machine code before the first run, on several cores.

Mesa's software driver compiles a kernel when it is first dispatched, one after the other in the
thread of the device's queue, and keeps the machine code in a cache on disk. With an empty cache,
further devices compile some of the kernels each; the device then gets their code from the cache.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from vkmnn.base.threads import Workers
from vkmnn.errors import VkmnnError

if TYPE_CHECKING:
    from vkmnn.runtime.opened import OpenDevice
    from vkmnn.runtime.pipeline import Pipeline

T = TypeVar("T")

log = logging.getLogger(__name__)

COLD_S = 0.03
"""Kernels that compile for longer than this are not in the driver's cache."""

MAX_HELPERS = 15


class WarmUp:
    """Warms up pipelines in other threads, each as soon as it is built.

    Args:
        device: their CPU device.
        built: the pipelines, some of which are still being built.
        helped: False leaves everything after a compiled kernel to others.
        awaited: whether a call on the device waits for this and keeps it open.
    """

    def __init__(
        self,
        device: OpenDevice,
        built: Sequence[Future[Pipeline]],
        *,
        helped: bool = True,
        awaited: bool = True,
    ) -> None:
        self._device = device
        self._helped = helped
        self._awaited = awaited
        self._todo = deque(built)
        self._pool = Workers(1 + MAX_HELPERS, "vkmnn-warm-up")
        self._done = self._pool.submit(self._within, self._run)

    def result(self) -> None:
        """Wait for all; raises as `Device.warm_up`."""
        self._done.result()

    def close(self) -> None:
        """Cancel pending compilations and wait for running ones."""
        self._todo.clear()
        self._pool.close()

    def _within(self, work: Callable[[], T]) -> T:
        """Work while the device is not closed, or within the waiting call, if there is one."""
        with self._device.gate.visit(within=self._awaited):
            return work()

    def _run(self) -> None:
        helpers: list[Future[list[Pipeline]]] = []
        while pipeline := self._next():
            start, worked = time.perf_counter(), time.process_time()
            self._device.warm_up([pipeline])
            # Reports of the validation layer could not be attributed. On a busy machine, a warm-up
            # may take as long without any compilation.
            spent = min(time.perf_counter() - start, time.process_time() - worked)
            slow = spent > COLD_S
            if slow and not self._helped:
                return
            if slow and not helpers and not self._device.validation:
                count = min(MAX_HELPERS, (os.cpu_count() or 1) - 1, len(self._todo))
                helpers = [self._pool.submit(self._within, self._help) for _ in range(count)]
        for helper in helpers:
            self._device.warm_up(helper.result())

    def _help(self) -> list[Pipeline]:
        """Compile on a separate device; return the pipelines whose code is now in the cache."""
        compiled: list[Pipeline] = []
        try:
            device = self._device.open_again()
            try:
                while pipeline := self._next():
                    device.warm_up([device.pipeline(pipeline.shader, pipeline.spec)])
                    compiled.append(pipeline)
            finally:
                device.discard()
        except VkmnnError as error:  # no result depends on it
            log.warning("the first run may compile: %s", error.message)
        return compiled

    def _next(self) -> Pipeline | None:
        """Return the next pipeline that could be built."""
        while True:
            try:
                future = self._todo.popleft()
            except IndexError:
                return None
            if future.exception() is None:
                return future.result()
