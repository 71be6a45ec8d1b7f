"""Parallel scatter: the last update of each row wins, or the updates of a row are combined."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array, DType, Op
from vkmnn.shaders import kernels
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.rows.reduction import column_local
from vkmnn.vulkan.sorting.radix import encode_sort
from vkmnn.vulkan.storage import kernel_dtype

BLOCK = 64
"""Sorted values combined by one invocation."""

Place = Callable[[Tensor, Tensor, bool], None]
"""Records the row of each update into a tensor, and may clear these rows of a second one."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """An invocation applies all updates of its elements, one after the other."""

    family: ClassVar[str] = "in_order"


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Updates are applied in parallel: the last one of a row wins, or they are sorted by row."""

    family: ClassVar[str] = "at_once"


@dataclass(frozen=True, slots=True)
class Scatter:
    """`count` updates of `inner` elements each, to the `rows` rows of `y`.

    Attributes:
        op: the op, for error messages.
        reduction: how updates combine: none, add, mul, max or min.
        updates: the updates.
        y: the result, which holds a copy of the data.
        count: number of updates.
        inner: elements of an update.
        rows: rows of the result.
        encoder: records the dispatches.
    """

    op: Op
    reduction: str
    updates: Tensor
    y: Tensor
    count: int
    inner: int
    rows: int
    encoder: VulkanEncoder

    def encode(self, place: Place) -> None:
        """Record a scatter by indices that are inputs of the run."""
        rows = self._words(self.count)
        if self.reduction == "none":
            winner = self._words(self.rows)
            place(rows, winner, True)
            self._claim(rows, winner)
            self._write(rows, winner, self.count, listed=False)
        else:
            place(rows, self._words(1), False)
            bits = (self.rows - 1).bit_length()
            self._combine(*encode_sort(rows, self.count, self.op, self.encoder, bits=bits))

    def encode_known(self, index: Tensor, key: str, found: Callable[[Array], Array]) -> None:
        """Record a scatter by constant indices.

        Args:
            index: the constant.
            key: identifies everything else that `found` depends on.
            found: returns the row of each update, given the constant.
        """
        plain = self.reduction == "none"
        listing = last_updates if plain else updates_by_row
        source, rows = (
            self.encoder.constant(
                index,
                f"scatter:{listing.__name__}:{number}:{key}",
                lambda value, number=number: listing(found(value))[number],  # type: ignore[misc]
                full=True,
            )
            for number in (0, 1)
        )
        assert index.value is not None
        if plain:
            entries = np.unique(found(index.value)).size
            self._write(rows, source, entries, listed=True)
        else:
            self._combine(rows, source)

    def _claim(self, rows: Tensor, winner: Tensor) -> None:
        """Record which update is the last one of each row."""
        params = kernels.ScatterClaimParams(count=self.count)
        shader = kernels.scatter_claim(load=self.encoder.load)
        self.encoder.dispatch_linear(shader, [rows, winner], params, self.count)

    def _write(self, rows: Tensor, winner: Tensor, entries: int, *, listed: bool) -> None:
        width: Literal[4, 1] = 1 if self.inner % 4 else 4
        count = entries * self.inner // width
        params = kernels.ScatterWriteParams(count=count, inner=self.inner // width)
        shader = kernels.scatter_write(width=width, load=self.encoder.load)
        tensors = [rows, winner, self.updates, self.y]
        self.encoder.dispatch_linear(shader, tensors, params, count, {"LISTED": listed})

    def _combine(self, key: Tensor, source: Tensor | None) -> None:
        """Record the combination of sorted updates: within blocks, then of rows that span blocks.

        The order depends on the indices alone, so results are the same in every run.
        """
        values, count = self.updates, self.count
        spec: dict[str, int | float | bool] = {
            "REDUCTION": kernels.Scatter[self.reduction.upper()].value
        }
        shader = kernels.scatter_runs(
            element=kernel_dtype(self.y.dtype),  # type: ignore[arg-type]
            load=self.encoder.load,
        )
        while count:
            blocks = ceil_div(count, BLOCK)
            last = blocks == 1
            entries = 1 if last else 2 * blocks
            after = self._words(entries)
            sums = self.encoder.scratch(entries * self.inner, self.y.dtype, full=True)
            threads = blocks * self.inner
            params = kernels.ScatterRunsParams(
                threads=threads, count=count, block=BLOCK, inner=self.inner
            )
            self.encoder.dispatch_linear(
                shader,
                [key, source or key, values, self.y, after, sums],
                params,
                threads,
                {
                    **spec,
                    "INDEXED": source is not None,
                    "LAST": last,
                    **column_local(threads, self.encoder),
                },
            )
            key, source, values, count = after, None, sums, 0 if last else entries

    def _words(self, count: int) -> Tensor:
        return self.encoder.scratch(count, DType.INT32)


def last_updates(rows: Array) -> tuple[Array, Array]:
    """Return the number of the last update of each row, and these rows."""
    flat = rows.reshape(-1)
    found, from_end = np.unique(flat[::-1], return_index=True)
    return (flat.size - 1 - from_end).astype(np.int32), found.astype(np.int32)


def updates_by_row(rows: Array) -> tuple[Array, Array]:
    """Return the numbers of all updates, sorted by row, and their rows."""
    order = np.argsort(rows.reshape(-1), kind="stable")
    return order.astype(np.int32), rows.reshape(-1)[order].astype(np.int32)
