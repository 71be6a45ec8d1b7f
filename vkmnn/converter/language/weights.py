"""Weights of a network, read from their files when they are asked for, several at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vkmnn.base.mapped_files import paged
from vkmnn.base.records import dataclass
from vkmnn.base.threads import Workers
from vkmnn.converter.language.stored import StoredTensor
from vkmnn.converter.onnx.wire import Bytes
from vkmnn.ir import Array

if TYPE_CHECKING:
    from concurrent.futures import Future

    import onnx

_FLOAT, _UINT8, _INT64, _FLOAT16 = 1, 2, 7, 10  # TensorProto.DataType
TYPES: dict[Any, int] = {np.dtype(np.float32): _FLOAT, np.dtype(np.float16): _FLOAT16,
                         np.dtype(np.uint8): _UINT8, np.dtype(np.int64): _INT64}  # fmt: skip
MOST_THREADS = 8


class Source(Protocol):
    """Initializers that are made of the same bytes of a file."""

    def read(self) -> Mapping[str, Array]:
        """Return the arrays of all of them, by part."""


@dataclass(frozen=True, slots=True)
class Single:
    """One array, whose part is called ""."""

    make: Callable[[], Array]

    def read(self) -> Mapping[str, Array]:
        """Return it."""
        return {"": self.make()}


@dataclass(frozen=True, slots=True)
class Coded:
    """Matrices in few bits of one type, as one: "codes", "scales", and "zeros" of some types.

    Attributes:
        tensors: the matrices; of more than two axes, all but the last one are rows.
        orders: of the rows of each, or None.
        gates: of two matrices, rows alternate two by two; else they lie one below the other.
    """

    tensors: Sequence[StoredTensor]
    orders: Sequence[Array | None]
    gates: bool = False

    def read(self) -> Mapping[str, Array]:
        """Return the parts, [rows, size of a row]: scales in float16 where that holds them."""
        made, fits = self._decoded(np.float16)
        return made if fits else self._decoded(np.float32)[0]

    def _decoded(self, dtype: type[np.floating[Any]]) -> tuple[dict[str, Array], bool]:
        """Return the parts with numbers of a type, and whether that holds them."""
        rows = sum(one.rows for one in self.tensors)
        made: dict[str, Array] = {
            part: paged((rows, size), np.uint8 if part == "codes" else dtype)
            for part, size in self.tensors[0].coded_parts().items()
        }
        start, fits = 0, True
        for number, (one, order) in enumerate(zip(self.tensors, self.orders, strict=True)):
            if self.gates:
                to = {name: whole.reshape(-1, 2, 2, whole.shape[-1])[:, number]
                      for name, whole in made.items()}  # fmt: skip
            else:
                to = {name: whole[start : start + one.rows] for name, whole in made.items()}
            fits &= one.decode(to)
            start += one.rows
            for array in to.values() if order is not None else ():
                array[...] = array[order]
        return made, fits


def joined(arrays: Sequence[Array], gates: bool) -> Array:
    """Return rows one below the other, or with `gates` two of each array in turns."""
    if len(arrays) == 1:
        return arrays[0]
    if not gates:
        return np.concatenate(arrays)
    twos = [array.reshape(-1, 2, *array.shape[1:]) for array in arrays]
    pairs: Array = np.concatenate(twos, axis=1)
    return pairs.reshape(-1, *arrays[0].shape[1:])


class LazyWeights(Mapping[int, Bytes]):
    """The data of initializers, by number, in the order in which they are asked for.

    What comes next is read by threads meanwhile. An array is forgotten when it has been asked for;
    asked for once more, it is read once more.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, onnx.TensorProto] = {}
        self._places: dict[int, tuple[int, str]] = {}
        self._sources: list[Source] = []
        self._coming: dict[int, Future[Mapping[str, Array]]] = {}
        self._read: dict[int, dict[str, Array]] = {}
        self._next = 0
        self._workers: Workers | None = None

    def add(self, number: int, tensor: onnx.TensorProto, source: Source, part: str) -> None:
        """Register an initializer; those of the same source come one after the other."""
        if not self._sources or self._sources[-1] is not source:
            self._sources.append(source)
        self._tensors[number] = tensor
        self._places[number] = len(self._sources) - 1, part

    def __getitem__(self, number: int) -> Bytes:
        """Return the bytes of an initializer, which has their type from then on.

        Whether float16 holds all scales of a matrix is known once they are read.
        """
        place, part = self._places[number]
        if part not in self._read.get(place, {}):
            self._read = {place: dict(self._parts(place))}
        array = self._read[place].pop(part)
        self._tensors[number].data_type = TYPES[array.dtype]
        return _bytes(array)

    def again(self, number: int) -> Callable[[], Bytes]:
        """Return a function that reads the bytes of an initializer once more, on any thread."""
        place, part = self._places[number]
        source = self._sources[place]
        return lambda: _bytes(source.read()[part])

    def _parts(self, place: int) -> Mapping[str, Array]:
        """Return the arrays of a source, and have the next ones read."""
        threads = min(MOST_THREADS, os.cpu_count() or 1)
        if self._workers is None:
            self._workers = Workers(threads if threads > 1 else 0, "vkmnn-weights")
        if threads > 1 and place >= self._next:
            last = min(place + threads + 1, len(self._sources))
            for one in range(max(place, self._next), last):
                self._coming[one] = self._workers.submit(self._sources[one].read)
            self._next = last
        future = self._coming.pop(place, None)
        if self._next == len(self._sources) and not self._coming:
            self._workers.close()
            self._workers = None
        return self._sources[place].read() if future is None else future.result()

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._places)


def _bytes(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
