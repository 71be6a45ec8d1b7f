"""Selection of a variant's cases when few pipelines may be compiled."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from vkmnn.runtime.device import Device
from vkmnn.testing.case import Case, Variant
from vkmnn.testing.runner import Picker, Picks, pipelines_of


def thinned(
    cases: Sequence[tuple[Case, Picks]], variant: Variant, device: Device, most: int
) -> list[tuple[Case, Picks]]:
    """Return the cases that run on `most` pipelines of a variant, in order.

    Nearly all of the time of a case on a software device is spent in its driver's compiler, and
    cases differ in the constants of their pipelines. The variant's name determines which pipelines
    are used, so that the variants of a kernel cover them all together. Cases that lead to other
    kernels run if their pipelines run anyway.

    Args:
        cases: the result of `runner.reach`.
        variant: the variant of the cases.
        device: the device on which they will run.
        most: maximum pipelines of the variant, at least 1. Other pipelines that a chosen case needs
            are not counted.
    """
    needs = [pipelines_of(case, device, Picker(picks, case.takes)) for case, picks in cases]
    own = [frozenset(one for one in need if one[0] == variant.name) for need in needs]
    ways = list(dict.fromkeys(filter(None, own)))
    start = zlib.crc32(variant.name.encode()) % len(ways)
    chosen = frozenset[object]()
    for way in ways[start:] + ways[:start]:
        if not chosen or len(chosen | way) <= most:
            chosen |= way
    running = frozenset[object]().union(
        *(need for need, mine in zip(needs, own, strict=True) if mine and mine <= chosen)
    )
    return [case for case, need in zip(cases, needs, strict=True) if need <= running]
