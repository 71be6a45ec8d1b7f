"""Windows split into parts to limit loop lengths; phases of transposed convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.ir import Array
from vkmnn.vulkan.device_rules import MAX_LOOP_ROUNDS
from vkmnn.vulkan.gemm.problem import ConvProblem
from vkmnn.vulkan.gemm.weights import Weights
from vkmnn.vulkan.splitting.spatial import Triple


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the taps: `[first, first + count)` on each axis."""

    first: Triple
    count: Triple

    def problem(self, whole: ConvProblem) -> ConvProblem:
        """Return the convolution restricted to these taps."""
        if self.count == whole.kernel:
            return whole
        pad = tuple(
            pad - first * dilation
            for pad, first, dilation in zip(whole.pad, self.first, whole.dilation, strict=True)
        )
        return replace(whole, kernel=self.count, pad=(pad[0], pad[1], pad[2]))

    def weights(self, whole: Weights, kernel: Triple) -> Weights:
        """Return the weights of these taps from a window of the size `kernel`."""
        if self.count == kernel:
            return whole
        depth, height, width = (
            slice(first, first + count) for first, count in zip(self.first, self.count, strict=True)
        )
        key = f"{self.first}:{self.count}"
        return whole.seen_as(key, lambda w: w[:, :, depth, height, width])


def loop_rounds(kernel: Triple, inner: int) -> int:
    """Return the loop iterations of an invocation: one per tap, with `inner` iterations each.

    A loop's terminating iteration counts.
    """
    return prod(kernel) * (1 + (inner + 1 if inner else 0)) + 1


@lru_cache(maxsize=512)
def split_taps(kernel: Triple, inner: int) -> tuple[Part, ...]:
    """Split a window so that the loops over each part stay under MAX_LOOP_ROUNDS.

    Args:
        kernel: taps per axis.
        inner: iterations of the loop inside the taps.
    """

    def cut(part: Part) -> Iterator[Part]:
        if loop_rounds(part.count, inner) <= MAX_LOOP_ROUNDS or max(part.count) == 1:
            yield part
            return
        axis = next(i for i, count in enumerate(part.count) if count > 1)
        middle = part.count[axis] // 2
        yield from cut(replace(part, count=_set(part.count, axis, middle)))
        rest = _set(part.count, axis, part.count[axis] - middle)
        yield from cut(Part(_set(part.first, axis, part.first[axis] + middle), rest))

    return tuple(cut(Part((0, 0, 0), kernel)))


def places(phases: Sequence[tuple[Triple, int]]) -> Array:
    """Return the distance of each phase from the first texel, stored after its taps."""
    table = np.zeros((len(phases), 4), np.int32)
    table[:, 0] = [place for _, place in phases]
    return table


def _set(values: Triple, axis: int, value: int) -> Triple:
    changed = list(values)
    changed[axis] = value
    return changed[0], changed[1], changed[2]
