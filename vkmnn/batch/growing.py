"""Inputs that grow while a job runs: files that appear in folders, patterns and lists."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from vkmnn.errors import InvalidInputError

_PAUSE = 0.5
"""Seconds between two looks."""
_SETTLED = 2.0
"""Seconds without a change after which a file is taken to be whole at the first look."""


def growing(listed: Callable[[], list[str]], idle: float) -> Iterator[list[str]]:
    """Yield the files that are whole and were not yielded before, until none has come for a time.

    A file is whole if its size and time of modification stay the same from one look to the next.

    Args:
        listed: returns all files that are there now, or raises InvalidInputError if there are none.
        idle: seconds without a new file after which the inputs are taken to be complete.
    """
    known: set[str] = set()
    changing: dict[str, tuple[int, int]] = {}
    last = time.monotonic()
    while True:
        files = _now(listed)
        for vanished in changing.keys() - set(files):
            del changing[vanished]
        whole = [file for file in files if file not in known and _is_whole(file, changing)]
        if whole:
            known.update(whole)
            yield whole
            last = time.monotonic()
        elif changing:
            last = time.monotonic()
        elif time.monotonic() - last >= idle:
            return
        if not whole:
            time.sleep(min(_PAUSE, idle))


def _now(listed: Callable[[], list[str]]) -> list[str]:
    try:
        return listed()
    except InvalidInputError:
        return []  # nothing has come yet


def _is_whole(file: str, changing: dict[str, tuple[int, int]]) -> bool:
    """Return whether a file has stopped to change; notes its state in `changing` if not."""
    try:
        status = os.stat(file)  # noqa: PTH116 - many files at each look
    except OSError:
        changing.pop(file, None)  # renamed or deleted between the list and the look
        return False
    state = status.st_size, status.st_mtime_ns
    if changing.get(file) == state or time.time() - status.st_mtime > _SETTLED:
        changing.pop(file, None)
        return True
    changing[file] = state
    return False
