"""Samples from arrays, and from files of pictures, texts and arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.errors import InvalidInputError, plural
from vkmnn.ir import TensorInfo
from vkmnn.quantization.calibration import Calibration, Sample, as_arrays, read_samples
from vkmnn.quantization.sample_files import Entry, is_arrays, list_entries
from vkmnn.quantization.sample_list import Reading, Samples

LABELS = ("labels", "label")
"""Names of arrays of class numbers that accompany inputs."""


@contextmanager
def open_samples(data: Calibration, how: Reading) -> Iterator[Samples]:
    """Yield the samples of calibration data.

    Args:
        data: arrays by the names of inputs; or a file, a folder or a pattern: pictures (.jpg, …),
            texts (.txt, .jsonl), arrays (.npz, .npy).
        how: how they are read.

    Raises:
        InvalidInputError: the data cannot be read, or does not fit the model.
        MissingExtraError: a package that reads pictures or texts is not installed.
    """
    if not isinstance(data, str | Path) or is_arrays(data):
        yield _bounded(*_with_labels(as_arrays(data, how.inputs), how.inputs), how)
        return
    entries = list_entries(data, how.most, how.tell)
    kind = entries[0].kind
    if kind == "arrays":
        yield _bounded(*_of_array_files(entries, how), how)
        return
    from vkmnn.quantization.media import media_samples

    with media_samples(kind, entries, how) as samples:
        yield samples


def _with_labels(
    arrays: Mapping[str, Any], inputs: Sequence[TensorInfo]
) -> tuple[list[Sample], list[list[int]] | None]:
    """Return samples of arrays, and their class numbers if an array that is no input has them."""
    names = {info.name for info in inputs}
    given = next((name for name in LABELS if name in arrays and name not in names), None)
    samples = read_samples({name: one for name, one in arrays.items() if name != given}, inputs)
    if given is None:
        return samples, None
    labels = np.asarray(arrays[given])
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or labels.size % len(samples):
        raise InvalidInputError(
            f"'{given}' is {labels.dtype} {list(labels.shape)}",
            hint=f"give a class number for each of the {len(samples)} samples: int64 "
            f"[{len(samples)}]",
        )
    return samples, labels.reshape(len(samples), -1).tolist()


def _of_array_files(
    entries: Sequence[Entry], how: Reading
) -> tuple[list[Sample], list[list[int]] | None]:
    """Return the samples of several files with arrays, or of rows with values by input."""
    samples: list[Sample] = []
    labels: list[list[int]] = []
    for entry in entries:
        arrays = as_arrays(entry.value, how.inputs)
        found, named = _with_labels(arrays, how.inputs)
        samples += found
        labels += named or []
        if len(samples) >= how.most:
            break
    return samples, labels if len(labels) == len(samples) else None


def _bounded(samples: list[Sample], labels: list[list[int]] | None, how: Reading) -> Samples:
    made = Samples(len(samples), samples.__getitem__, labels)
    fewer = made.spread(how.most)
    if len(fewer) < len(made):
        how.tell(
            f"{len(fewer)} of {plural(len(made), 'sample')} are used, spread over all; choose "
            "with --samples"
        )
    return fewer
