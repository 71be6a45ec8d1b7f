"""The pipelines of a device: those used last, and those still in use."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from vkmnn.runtime.pipeline import Pipeline, SpecValues

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.base import DriverPipeline
    from vkmnn.runtime.shader import Shader

PipelineKey = tuple["Shader", tuple[int | float | bool, ...]]

KEPT_PIPELINES = 128
"""Number of unused pipelines kept. On Mesa's software device one takes some 2 MB."""


def key_of(shader: Shader, values: SpecValues) -> PipelineKey:
    """Return the key of a pipeline for a complete set of constants."""
    return shader, tuple(values.values())


class PipelineStore:
    """Pipelines by shader and specialization constants.

    Recorded commands keep the driver's pipelines that they run; the others are kept while they are
    among the last `KEPT_PIPELINES` requested. Each key has at most one driver pipeline.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[PipelineKey, Future[Pipeline]] = OrderedDict()
        self._alive: WeakValueDictionary[PipelineKey, DriverPipeline] = WeakValueDictionary()
        self._lock = Lock()

    def __contains__(self, key: PipelineKey) -> bool:
        return key in self._recent or key in self._alive

    def is_built(self, key: PipelineKey) -> bool:
        """Return whether a pipeline is available without waiting."""
        recent = self._recent.get(key)
        return key in self._alive if recent is None else recent.done()

    def claim(self, key: PipelineKey, made: Future[Pipeline]) -> Future[Pipeline]:
        """Return the future of a pipeline; with `made`, the caller has to settle it."""
        dropped = []
        with self._lock:
            future = self._recent.setdefault(key, made)
            self._recent.move_to_end(key)
            while len(self._recent) > KEPT_PIPELINES and next(iter(self._recent.values())).done():
                dropped.append(self._recent.popitem(last=False))
        dropped.clear()  # not under the lock: drivers may do anything meanwhile
        return future

    def alive(self, key: PipelineKey) -> DriverPipeline | None:
        """Return the driver's pipeline, if something still uses it."""
        return self._alive.get(key)

    def keep(self, key: PipelineKey, pipeline: DriverPipeline) -> None:
        """Remember a built pipeline for as long as it is used."""
        self._alive[key] = pipeline

    def give_up(self, key: PipelineKey, made: Future[Pipeline]) -> None:
        """Forget a pipeline that could not be built."""
        with self._lock:
            if self._recent.get(key) is made:
                del self._recent[key]

    def clear(self) -> None:
        """Release all unused pipelines."""
        with self._lock:
            dropped = self._recent
            self._recent = OrderedDict((k, v) for k, v in dropped.items() if not v.done())
        dropped.clear()
