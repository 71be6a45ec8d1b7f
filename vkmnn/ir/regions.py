"""Views and regions: the plain data of MNN's Raster."""

from __future__ import annotations

from vkmnn.base.records import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """An affine address: element (i, j, …) is at offset + Σ index·stride, in plain order."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Copy `size` elements from `src` of input number `origin` to `dst` of the output.

    All three have the same number of axes (0 to 6); source strides may be 0 (broadcast) or
    negative.
    """

    src: View
    dst: View
    size: tuple[int, ...]
    origin: int = 0
