"""Mapped memory: the requests to the system."""

from __future__ import annotations

import numpy as np
import pytest

from vkmnn.runtime.drivers.mapped import MappedMemory, prefer_large_pages


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 5 << 20])
@pytest.mark.parametrize("offset", [0, 1, 4095])
def test_asking_for_large_pages_leaves_the_content_alone(nbytes: int, offset: int) -> None:
    memory = np.full(nbytes + offset + 1, 7, np.uint8)
    pointer = memory.ctypes.data + offset
    prefer_large_pages(pointer, nbytes)
    place = MappedMemory()
    place.place(pointer, nbytes)
    seen = np.asarray(place)
    assert seen.shape == (nbytes,)
    assert (memory == 7).all()
    seen[:] = 8
    assert (memory == 8).sum() == nbytes
