"""Helpers for cases along an axis: workgroups, and numbers whose sums are exact in any order."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.testing.case import Case, Variant
from vkmnn.vulkan.rows.reduction import RowGroup

# Shapes and axis of lines: one element, odd, prime, whole vec4s, several rows, in the middle.
LINES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1,), 0),
    ((0,), 0),
    ((3, 0), 1),
    ((0, 5), 1),
    ((7,), 0),
    ((9, 1), 1),
    ((5, 3), 1),
    ((13, 17), 1),
    ((3, 64), 1),
    ((2, 5, 37), -1),
)

# Workgroups of one subgroup and of several, by lanes.
_GROUPS: dict[object, tuple[RowGroup, RowGroup]] = {
    8: (RowGroup(8, 8), RowGroup(8, 32)),
    16: (RowGroup(16, 16), RowGroup(16, 32)),
    32: (RowGroup(32, 32), RowGroup(32, 128)),
    0: (RowGroup(0, 32), RowGroup(0, 128)),
}


ROW_GROUPS = (RowGroup(0, 32), RowGroup(0, 128), RowGroup(8, 32))
"""Workgroups in addition to those that the rules choose on CPU devices."""


def in_row_groups(cases: Iterable[Case]) -> Iterator[Case]:
    """Yield cases in each of ROW_GROUPS; if a device lacks one, in the one its rules choose."""
    for case in cases:
        yield from (taking(case, {"row group": group}) for group in ROW_GROUPS)


def in_groups(variant: Variant, cases: Iterable[Case]) -> Iterator[Case]:
    """Yield cases of a kernel with an axis `lanes`: in small and in large workgroups in turn."""
    sizes = _GROUPS[variant.axes["lanes"]]
    for number, case in enumerate(cases):
        yield taking(case, {"row group": sizes[number % 2]})


def in_all_groups(variant: Variant, cases: Sequence[Case]) -> Iterator[Case]:
    """Yield cases of a kernel with an axis `lanes`, all in small and in large workgroups."""
    for group in _GROUPS[variant.axes["lanes"]]:
        yield from (taking(case, {"row group": group}) for case in cases)


def taking(case: Case, takes: Mapping[str, Hashable]) -> Case:
    """Return a case with further choices added."""
    return replace(case, takes={**takes, **case.takes})


def halves(*shape: int, seed: int = 0) -> AnyArray:
    """Return 1, -1, and now and then 2 or 1/2 as float32: products are exact in any order."""
    rng = np.random.default_rng([seed, *shape])
    return rng.choice([1, -1, 2, 0.5], shape, p=[0.5, 0.3, 0.1, 0.1]).astype(np.float32)
