"""Compare a network's outputs with onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkmnn.ir import Array


def range_error(result: Array, expected: Array) -> float:
    """Return the largest difference as a part of the range of the expected values."""
    wide = expected.astype(np.float64)
    return float(np.abs(result.astype(np.float64) - wide).max() / np.ptp(wide))


def assert_agree(
    results: Sequence[Array], expected: Sequence[Array], limit: float = 1e-4, what: str = ""
) -> None:
    """Check shapes, dtypes, and that no value differs by more than `limit` of the output's range.

    The range must not be 0: a network whose outputs are all the same proves nothing.
    """
    assert len(results) == len(expected)
    for number, (result, want) in enumerate(zip(results, expected, strict=True)):
        assert (result.dtype, result.shape) == (want.dtype, want.shape)
        assert float(np.ptp(want)) > 0, f"{what} output {number} is constant"
        error = range_error(result, want)
        assert error < limit, f"{what} output {number}: error {error:.2e} of the range"


def run_oracle(oracle: Any, feeds: Mapping[str, Array]) -> list[Array]:
    """Return all outputs."""
    return list(oracle.run(None, dict(feeds)))
