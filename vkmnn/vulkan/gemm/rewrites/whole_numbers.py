"""Integer Winograd transforms as matrices, and bounds of their sums.

They match `include/winograd.glsl.j2`, which computes those of the data and of the results.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass
from vkmnn.ir import Array
from vkmnn.vulkan.encoder import ceil_div

EXACT = 1 << 24
"""Integer sums up to this magnitude are exact in float32, in any order."""

_Floats = npt.NDArray[np.float32]

# In 32 bits, results are m · m times too large before the shift.
LARGEST_SUM = 1 << 26
# Pairs of channels whose weights are transformed at once, so that they stay in the caches.
PAIRS = 2048

# Maximum parts of the sums: adding more would take longer than the saved products.
MAX_PARTS = 64

_REAL = (0, 1, 2, 5)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """F(m, 3): factors of each product for a tile, [products, (m + 2)²], and a window, [, 9]."""

    data: _Floats
    weights: _Floats


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of quantised values; pads are zeros."""

    low: float
    high: float

    @property
    def center(self) -> int:
        """The offset that minimises the magnitude of sums."""
        return int(max(self.high, 0) + min(self.low, 0)) // 2

    def reach(self, rows: _Floats) -> Array:
        """Return the maximum magnitude of sums of centred values with these factors."""
        high, low = max(self.high, 0) - self.center, self.center - min(self.low, 0)
        above, below = np.maximum(rows, 0).sum(1), np.maximum(0 - rows, 0).sum(1)
        reached: Array = np.maximum(above * high + below * low, above * low + below * high)
        return reached


def _complex(re: _Floats, im: _Floats, weights: bool) -> list[_Floats]:
    """Return the factors of three real products that form a complex one (Karatsuba)."""
    return [re, im - re, re + im] if weights else [re + im, re, im]


def _rows(matrix: list[list[int]], weights: bool) -> _Floats:
    """Return the two-dimensional factors of all products, from one-dimensional ones.

    Of six rows, the fourth and the fifth are the real and the imaginary part at the point i.
    """
    line = np.array(matrix, np.float32)
    square = np.einsum("ia,jb->ijab", line, line).reshape(len(line), len(line), -1)
    if len(line) == 4:
        plain: _Floats = square.reshape(len(line) ** 2, -1)
        return plain
    products = [square[i, j] for i in _REAL for j in _REAL]
    for i in _REAL:
        products += _complex(square[i, 3], square[i, 4], weights)
    for i in _REAL:
        products += _complex(square[3, i], square[4, i], weights)
    # At the points (i, i) and (i, -i).
    real, cross, turned, both = square[3, 3], square[3, 4], square[4, 3], square[4, 4]
    products += _complex(real - both, cross + turned, weights)
    products += _complex(real + both, turned - cross, weights)
    return np.stack(products)


FORMS = {
    2: Form(
        _rows([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], weights=False),
        _rows([[1, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 1]], weights=True),
    ),
    4: Form(
        _rows(
            [
                [1, 0, 0, 0, -1, 0],
                [0, 1, 1, 1, 1, 0],
                [0, -1, 1, -1, 1, 0],
                [0, 0, -1, 0, 1, 0],
                [0, -1, 0, 1, 0, 0],
                [0, -1, 0, 0, 0, 1],
            ],
            weights=False,
        ),
        _rows(
            [[1, 0, 0], [1, 1, 1], [1, -1, 1], [1, 0, -1], [0, 1, 0], [0, 0, 1]],
            weights=True,
        ),
    ),
}
"""By m. F(4, 3) has the points 0, 1, -1, i and -i."""


def fewest_parts(w: Array, form: Form, bounds: Bounds, least: int = 1) -> int:
    """Return the fewest parts of the input channels that make sums exact.

    Args:
        w: integers [O, C, 1, 3, 3].
        form: the transforms.
        bounds: of the quantised values.
        least: a lower bound, from a subset of the output channels.

    Returns:
        A divisor of the blocks of four input channels; 0 where none is enough.
    """
    outputs, inputs = w.shape[:2]
    taps = w.reshape(outputs, -1)
    largest = max(int(np.abs(row.astype(np.int64)).sum()) for row in taps)
    if not largest * max(abs(bounds.low), abs(bounds.high)) <= LARGEST_SUM:
        return 0
    blocks = ceil_div(inputs, 4)
    most = min(blocks, MAX_PARTS)
    left = [parts for parts in range(least, most + 1) if blocks % parts == 0]
    reach = bounds.reach(form.data)
    for _, filters in _transformed(w, form):
        whole = np.pad(filters, ((0, 0), (0, 0), (0, -inputs % 4))) if inputs % 4 else filters
        np.abs(whole, out=whole)
        while left and _reached(whole, left[0], reach) > EXACT:
            del left[0]
    return left[0] if left else 0


def _reached(filters: Array, parts: int, reach: Array) -> float:
    # Up to EXACT, integer sums are exact in float32, and larger ones remain larger than EXACT.
    rows = filters.reshape(-1, filters.shape[2] // parts)
    sums = (rows @ np.ones(rows.shape[1], np.float32)).reshape(len(reach), -1).max(1)
    return float((sums.astype(np.float64) * reach).max())


def transform_whole(w: Array, form: Form, parts: int) -> Array:
    """Return weights [O, C, 1, 3, 3] as [products · parts · O', C' / parts, 1, 1, 1].

    O' and C' are whole blocks of four channels.
    """
    outputs, inputs = w.shape[:2]
    columns = ceil_div(outputs, 4) * 4
    whole = np.zeros((len(form.weights), columns, ceil_div(inputs, 4) * 4), np.float32)
    for first, filters in _transformed(w, form):
        whole[:, first : first + filters.shape[1], :inputs] = filters
    split = whole.reshape(len(whole), columns, parts, -1).transpose(0, 2, 1, 3)
    result: Array = split.reshape(len(whole) * parts * columns, -1, 1, 1, 1)
    return result


def _transformed(w: Array, form: Form) -> Iterator[tuple[int, Array]]:
    """Yield a few rows of filters at a time: index of the first, and [products, rows, C]."""
    outputs, inputs = w.shape[:2]
    step = max(1, PAIRS // inputs)
    for first in range(0, outputs, step):
        taps = w[first : first + step].reshape(-1, 9).astype(np.float32)
        yield first, (form.weights @ taps.T).reshape(len(form.weights), -1, inputs)
