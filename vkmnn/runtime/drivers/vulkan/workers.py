"""Pins each worker thread of Mesa's software device to a processor.

llvmpipe has as many workers as there are processors, and divides a dispatch among them once, into
equal parts. Linux often wakes two of them on one processor, since the thread that wakes them still
runs on another, and the dispatch takes twice as long; it can take seconds until they are on
different processors.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

_TASKS = Path("/proc/self/task")
_RASTERIZER = "llvmpipe-"


def pin_workers() -> None:
    """Pin each worker to one processor, if there are as many workers as allowed processors.

    With fewer, as set by `LP_NUM_THREADS`, several processes would crowd the first processors. Does
    nothing without a software device, and never raises.
    """
    if sys.platform != "linux":
        return
    try:
        names = {int(task.name): (task / "comm").read_text().strip() for task in _TASKS.iterdir()}
        python = {each.native_id for each in threading.enumerate()}
        workers = workers_of(names, {one for one in python if one is not None})
        allowed = sorted(os.sched_getaffinity(workers[0])) if workers else []
        if len(allowed) == len(workers) > 1:
            for worker, processor in zip(workers, allowed, strict=True):
                os.sched_setaffinity(worker, {processor})
    except (OSError, ValueError) as error:  # a thread that has ended, a system that forbids it
        log.info("the device's worker threads are not pinned: %s", error)


def workers_of(names: Mapping[int, str], python: Collection[int]) -> list[int]:
    """Return the threads that run kernels; empty if they cannot be identified for certain.

    llvmpipe creates them right after its rasterizer's threads, which have names, and as many; they
    inherit the name of the creating thread.

    Args:
        names: names of all threads of the process, by number.
        python: those that Python knows.
    """
    rasterizers = sorted(task for task, name in names.items() if name.startswith(_RASTERIZER))
    if not rasterizers:
        return []
    after = sorted(task for task in names if task > rasterizers[-1])
    found = [task for task in after if task not in python][: len(rasterizers)]
    alike = {names[task] for task in found}
    return found if len(found) == len(rasterizers) and len(alike) == 1 else []
