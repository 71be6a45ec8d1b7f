"""Compare a network's outputs with onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime

from vkmnn.ir import Array

THREADS = 2


def open_oracle(model: onnx.ModelProto | str) -> onnxruntime.InferenceSession:
    """Open a model, or the file at a path, in onnxruntime on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3  # errors only: unused initializers do not matter
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


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


def run_oracle(oracle: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> list[Array]:
    """Return all outputs."""
    return list(oracle.run(None, dict(feeds)))
