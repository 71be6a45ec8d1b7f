"""Differences between tensors, and the results of a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import plural
from vkmnn.ir import Array


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor of the model, in the order of its nodes.

    Attributes:
        name: its name in the model.
        node: the node that computes it, with its operator in brackets.
        shape: its shape.
        status: "same", "differs", or the reason why it was not compared: "fused" into another op,
            "constant" or "removed" by the passes, "missing" in the reference, or "other" for a
            value that is not a tensor.
        largest: the largest absolute difference; infinite if only one of the values is finite, or
            the shapes differ.
        relative: the same as a fraction of the range of the reference's values.
        at: the index of the largest difference.
        have: the value there; None without a difference.
        want: the reference's value there.
        into: the op of the optimised network that the tensor was fused into.
        output: whether it is an output of the model.
    """

    name: str
    node: str
    shape: tuple[int, ...] | None = None
    status: str = "same"
    largest: float = 0.0
    relative: float = 0.0
    at: tuple[int, ...] = ()
    have: float | None = None
    want: float | None = None
    into: str = ""
    output: bool = False

    @property
    def compared(self) -> bool:
        """Whether values were compared."""
        return self.status in ("same", "differs")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The compared tensors of a model; `str()` describes the first that differs.

    Attributes:
        rows: the tensors in the model's order; only outputs if no others were requested.
        device: where the model ran.
        reference: the engine it was compared with.
        tolerance: the largest allowed difference, as a fraction of a tensor's range.
    """

    rows: tuple[TensorRow, ...]
    device: str
    reference: str
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether no tensor differs by more than the tolerance."""
        return self.first is None

    @property
    def first(self) -> TensorRow | None:
        """The first tensor that differs, in the model's order; None if none does."""
        return next((row for row in self.rows if row.status == "differs"), None)

    def __iter__(self) -> Iterator[TensorRow]:
        """Iterate over the rows."""
        return iter(self.rows)

    def __str__(self) -> str:
        """Return a sentence about the first difference."""
        row, compared = self.first, sum(row.compared for row in self.rows)
        if row is None:
            verb = "agrees" if compared == 1 else "agree"
            return f"{plural(compared, 'tensor')} {verb} with {self.reference}"
        if math.isinf(row.largest):
            how = "in shape or where it is finite"
        else:
            how = f"by {row.largest:.3g}, {row.relative:.1e} of its range, at {list(row.at)}"
        return f"'{row.name}' of {row.node} is the first to differ from {self.reference}: {how}"

    def __repr__(self) -> str:
        """Return the numbers of tensors."""
        differ = sum(row.status == "differs" for row in self.rows)
        return f"<vkmnn.Comparison: {differ} of {plural(len(self.rows), 'tensor')} differ>"


def compared(row: TensorRow, have: object, want: object, tolerance: float) -> TensorRow:
    """Return the row with the result of a comparison."""
    from dataclasses import replace

    if not isinstance(have, np.ndarray) or not isinstance(want, np.ndarray):
        return replace(row, status="other")
    shape = have.shape
    if have.dtype.kind not in "fiub" or want.dtype.kind not in "fiub":
        same = have.shape == want.shape and bool((have.astype(str) == want.astype(str)).all())
        distance = 0.0 if same else math.inf
        status = "same" if same else "differs"
        return replace(row, shape=shape, status=status, largest=distance, relative=distance)
    largest, relative = difference(have, want)
    status = "same" if have.shape == want.shape and relative <= tolerance else "differs"
    row = replace(row, shape=shape, status=status, largest=largest, relative=relative)
    if largest == 0 or have.shape != want.shape:
        return row
    at = np.unravel_index(int(np.argmax(_apart(have, want))), have.shape)
    index = tuple(int(place) for place in at)
    return replace(row, at=index, have=float(have[index]), want=float(want[index]))


def difference(have: Array, want: Array) -> tuple[float, float]:
    """Return the largest absolute difference, and the same as a fraction of the range of `want`.

    Infinite if only one of two values is finite, or the shapes differ.
    """
    if have.shape != want.shape:
        return math.inf, math.inf
    if want.size == 0:
        return 0.0, 0.0
    largest = float(_apart(have, want).max())
    if math.isinf(largest):
        return math.inf, math.inf
    b = want.astype(np.float64)
    finite = b[np.isfinite(b)]
    scale = float(np.ptp(finite) or np.abs(finite).max()) if finite.size else 0.0
    return largest, largest / scale if scale else (0.0 if largest == 0 else math.inf)


def _apart(have: Array, want: Array) -> Array:
    """Return absolute differences; infinite where only one value is finite."""
    a, b = have.astype(np.float64), want.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        apart: Array = np.where(same, 0.0, np.abs(a - b))
    return np.where(np.isnan(apart), math.inf, apart)
