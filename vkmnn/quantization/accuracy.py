"""Accuracy of quantisation: outputs of both models on the same inputs, run by vkmnn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.quantization.calibration import Sample
from vkmnn.quantization.report import OutputAccuracy, Progress

if TYPE_CHECKING:
    import onnx

    Model = str | Path | bytes | onnx.ModelProto

Runs = list[dict[str, Any]]


def compare(
    before: Model,
    after: Path,
    samples: Sequence[Sample],
    device: str | int,
    progress: Progress,
) -> tuple[OutputAccuracy, ...]:
    """Return how far each output of a model is from another's.

    Args:
        before: the float model.
        after: the quantised model.
        samples: the inputs.
        device: the device that runs both.
        progress: called after each run.
    """
    total = 2 * len(samples)
    expected = _run(before, samples, device, progress, (0, total))
    results = _run(after, samples, device, progress, (len(samples), total))
    names = [
        name
        for name, value in expected[0].items()
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"
    ]
    return tuple(
        _accuracy(name, [run[name] for run in expected], [run[name] for run in results])
        for name in names
    )


def _run(
    model: Model,
    samples: Sequence[Sample],
    device: str | int,
    progress: Progress,
    done: tuple[int, int],
) -> Runs:
    runs: Runs = []
    with InferenceSession(model, device) as session:
        names = [arg.name for arg in session.get_outputs()]
        for index, sample in enumerate(samples):
            results = session.run(None, sample)
            runs.append(dict(zip(names, results, strict=True)))
            progress("comparing", done[0] + index + 1, done[1])
    return runs


def _accuracy(name: str, expected: Sequence[Array], results: Sequence[Any]) -> OutputAccuracy:
    largest, low, high = 0.0, np.inf, -np.inf
    same = rows = 0
    for want, have in zip(expected, results, strict=True):
        if not isinstance(have, np.ndarray) or have.shape != want.shape:
            return OutputAccuracy(name, np.inf, np.inf, None)
        a, b = want.astype(np.float64), have.astype(np.float64)
        equal = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            apart = np.where(equal, 0.0, np.abs(a - b))
        largest = max(largest, float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0)))
        finite = a[np.isfinite(a)]
        low, high = finite.min(initial=low), finite.max(initial=high)
        if want.dtype.kind == "f":
            here, count = _top1(a, b)
            same, rows = same + here, rows + count
    scale = max(float(high - low), 0.0) or max(abs(float(high)), 0.0)
    if not np.isfinite(scale):
        scale = 0.0
    relative = largest / scale if scale else (0.0 if largest == 0 else float("inf"))
    return OutputAccuracy(name, largest, relative, same / rows if rows else None)


def _top1(want: Array, have: Array) -> tuple[int, int]:
    """Return the number of rows with the same argmax, and the number of rows."""
    classes = [axis for axis, size in enumerate(want.shape) if size > 1]
    if want.ndim < 2 or not classes or classes[-1] == 0 or not want.size:
        return 0, 0
    size = want.shape[classes[-1]]
    a, b = want.reshape(-1, size), have.reshape(-1, size)
    return int((a.argmax(1) == b.argmax(1)).sum()), len(a)
