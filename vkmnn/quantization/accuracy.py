"""Accuracy of quantisation: outputs of both models on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.errors import InvalidInputError, plural
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.quantization import model as models
from vkmnn.quantization import tools
from vkmnn.quantization.calibration import Sample
from vkmnn.quantization.report import Measured, OutputAccuracy, Progress
from vkmnn.quantization.sample_list import Samples

if TYPE_CHECKING:
    import onnx

    Model = str | Path | bytes | onnx.ModelProto

Run = Callable[[Sample], dict[str, Any]]
"""Runs a model on a sample: outputs by name."""

_KEPT_BYTES = 512 << 20
"""Bytes of the float model's outputs that stay in memory."""


@contextmanager
def on_device(model: Model, device: str | int) -> Iterator[Run]:
    """Yield a model's runs by vkmnn."""
    with InferenceSession(model, device) as session:
        names = [arg.name for arg in session.get_outputs()]
        yield lambda sample: dict(zip(names, session.run(None, sample), strict=True))


class Reference:
    """The float model's outputs on some samples, with which quantised models are compared.

    Args:
        run: runs the float model.
        samples: the samples; fewer are used where their outputs would take too much memory.
        progress: called after each run.
        total: number of runs of which these are the first, for progress.
    """

    def __init__(self, run: Run, samples: Samples, progress: Progress, total: int = 0) -> None:
        self._outputs: list[dict[str, Array]] = []
        size = 0
        for sample in samples:
            made = {
                name: value
                for name, value in run(sample).items()
                if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"
            }
            self._outputs.append(made)
            progress("comparing", len(self._outputs), max(total, len(samples)))
            size += sum(one.nbytes for one in made.values())
            if size > _KEPT_BYTES:
                break
        self.samples: Samples = samples[: len(self._outputs)]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._outputs)

    def measure(self, run: Run, progress: Progress | None = None) -> Measured:
        """Compare a model with the float model.

        Args:
            run: runs the model.
            progress: called after each run.
        """
        meters = {name: _Meter(name) for name in (self._outputs or [{}])[0]}
        labels = self.samples.labels
        right = before = rows = 0
        for index, (sample, wanted) in enumerate(zip(self.samples, self._outputs, strict=True)):
            made = run(sample)
            for name, want in wanted.items():
                meters[name].add(want, made[name])
            if labels is not None:
                pairs = next(((want, made[name]) for name, want in wanted.items()
                              if _classes(want) is not None), None)  # fmt: skip
                if pairs is not None and pairs[1].shape == pairs[0].shape:
                    hits = [_hits(one, labels[index]) for one in pairs]
                    before, right = before + hits[0], right + hits[1]
                    rows += len(labels[index])
            if progress is not None:
                progress("comparing", len(self) + index + 1, 2 * len(self))
        outputs = tuple(meter.result() for meter in meters.values())
        if not rows:
            return Measured(outputs)
        return Measured(outputs, right / rows, before / rows)


def measure(proto: onnx.ModelProto, reference: Reference, folder: Path) -> Measured:
    """Compare a model with the float model, by onnxruntime.

    Args:
        proto: the model, with its data.
        reference: the float model's outputs.
        folder: a folder for the model.
    """
    path = folder / "candidate.onnx"
    models.save(proto, path, models.is_large(proto))
    with tools.opened(path) as run:
        return reference.measure(run)


def _accuracy(name: str, expected: Sequence[Array], results: Sequence[Any]) -> OutputAccuracy:
    meter = _Meter(name)
    for want, have in zip(expected, results, strict=True):
        meter.add(want, have)
    return meter.result()


class _Meter:
    """Differences of one output, added up over samples."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._largest, self._low, self._high = 0.0, np.inf, -np.inf
        self._same = self._rows = self._count = 0
        self._error = self._energy = 0.0
        self._cosines: list[float] = []
        self._wrong = False

    def add(self, want: Array, have: Any) -> None:
        """Add the output for one sample."""
        if not isinstance(have, np.ndarray) or have.shape != want.shape:
            self._wrong = True
            return
        a, b = want.astype(np.float64), have.astype(np.float64)
        equal = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            apart = np.where(equal, 0.0, np.abs(a - b))
        apart = np.nan_to_num(apart, nan=np.inf)
        self._largest = max(self._largest, float(apart.max(initial=0.0)))
        inner = np.isfinite(a)
        finite = a[inner]
        self._low = finite.min(initial=self._low)
        self._high = finite.max(initial=self._high)
        self._error += float(np.square(apart).sum())
        self._energy += float(np.square(finite).sum())
        self._count += a.size
        if want.dtype.kind == "f":
            here, count = _top1(a, b)
            self._same, self._rows = self._same + here, self._rows + count
            inner &= np.isfinite(b)
            norms = float(np.linalg.norm(a[inner]) * np.linalg.norm(b[inner]))
            if norms:
                self._cosines.append(min(float(a[inner] @ b[inner]) / norms, 1.0))

    def result(self) -> OutputAccuracy:
        """Return the accuracy on all samples."""
        if self._wrong:
            return OutputAccuracy(self._name, np.inf, np.inf, None)
        scale = max(float(self._high - self._low), 0.0) or max(abs(float(self._high)), 0.0)
        if not np.isfinite(scale):
            scale = 0.0
        apart = self._largest
        relative = apart / scale if scale else (0.0 if apart == 0 else float("inf"))
        root = math.sqrt(self._error / max(self._count, 1))
        ratio = scale / root if root else np.inf
        psnr = 20 * math.log10(ratio) if ratio else -np.inf
        rms = math.sqrt(self._error / self._energy) if self._energy else (np.inf if root else 0.0)
        return OutputAccuracy(
            self._name,
            apart,
            relative,
            self._same / self._rows if self._rows else None,
            float(np.mean(self._cosines)) if self._cosines else None,
            psnr,
            rms,
        )


def _classes(want: Array) -> int | None:
    """Return the number of classes of an output with rows of floats; None for other outputs."""
    axes = [axis for axis, size in enumerate(want.shape) if size > 1]
    if want.dtype.kind != "f" or want.ndim < 2 or not axes or not want.size:
        return None
    return int(want.shape[axes[-1]])


def _hits(rows: Array, labels: Sequence[int]) -> int:
    """Return how many rows have their largest value at their label.

    Raises:
        InvalidInputError: there are other numbers of rows or classes.
    """
    table = rows.reshape(-1, _classes(rows) or 1)
    if len(table) != len(labels) or max(labels) >= table.shape[1] or min(labels) < 0:
        raise InvalidInputError(
            f"the output has {plural(len(table), 'row')} of {table.shape[1]} classes, and the "
            f"labels are {', '.join(map(str, labels[:4]))}",
            hint="give a class number from 0 on for each row",
        )
    return int((table.argmax(1) == np.asarray(labels)).sum())


def _top1(want: Array, have: Array) -> tuple[int, int]:
    """Return the number of rows with the same argmax, and the number of rows."""
    size = _classes(want)
    if size is None:
        return 0, 0
    a, b = want.reshape(-1, size), have.reshape(-1, size)
    return int((a.argmax(1) == b.argmax(1)).sum()), len(a)
