"""Samples for calibration and comparison, read when they are asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.ir import TensorInfo
from vkmnn.quantization.calibration import Sample

_KEPT_BYTES = 256 << 20
"""Bytes of the samples that stay in memory."""

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """How samples are read.

    Attributes:
        model: the model as the caller passed it, for the pipeline that prepares pictures and texts.
        inputs: its inputs.
        most: maximum number of samples.
        task: the task of the pipeline; None to detect it.
        options: options of the pipeline, such as `size` and `mean`.
        device: the device on which the pipeline opens.
        tell: called with sentences on assumptions.
    """

    model: Any
    inputs: Sequence[TensorInfo]
    most: int
    task: str | None
    options: Mapping[str, Any]
    device: str | int
    tell: Tell


class Samples(Sequence[Sample]):
    """Samples that are read when they are asked for; a limited number stays in memory.

    Args:
        count: number of samples.
        read: returns one by its number.
        labels: class numbers of each sample's rows; None without labels.
    """

    def __init__(
        self,
        count: int,
        read: Callable[[int], Sample],
        labels: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._count, self._read, self.labels = count, read, labels
        self._kept: OrderedDict[int, Sample] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """Return a sample, or several as `Samples`."""
        if isinstance(index, slice):
            numbers = range(self._count)[index]
            labels = self.labels
            return Samples(
                len(numbers),
                lambda place: self[numbers[place]],
                None if labels is None else [labels[number] for number in numbers],
            )
        if not 0 <= index < self._count:
            raise IndexError(index)
        if index not in self._kept:
            self._keep(index, self._read(index))
        self._kept.move_to_end(index)
        return self._kept[index]

    def _keep(self, index: int, sample: Sample) -> None:
        self._kept[index] = sample
        self._bytes += _nbytes(sample)
        while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._bytes -= _nbytes(self._kept.popitem(last=False)[1])

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples."""
        return (self[index] for index in range(self._count))

    def spread(self, most: int) -> Samples:
        """Return at most `most` samples, spread over all."""
        step = -(-self._count // most) if self._count else 1
        made: Samples = self[::step]
        return made


def _nbytes(sample: Sample) -> int:
    return sum(array.nbytes for array in sample.values())
