"""Tensors in weight files: their offsets, and reading in parts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, FileIO
from math import prod
from pathlib import Path

import numpy as np

from vkmnn.base.mapped_files import paged
from vkmnn.base.records import dataclass
from vkmnn.converter.language.blocks import BlockType, Bytes
from vkmnn.errors import ModelFileError
from vkmnn.ir import Array
from vkmnn.ir.codes import pack_codes

PART = 1 << 19
"""Weights that are decoded at a time: what is made of them stays in caches.

With more, the C library returns temporary arrays to the system after every part.
"""

LARGEST = 1 << 40
"""Maximum elements of a tensor that is read."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        path: the file.
        name: its name in the file.
        type: how its elements are stored.
        shape: its shape, with contiguous elements along the last axis.
        offset: offset of its first byte.
        version: size and modification time of the file when its header was read.
    """

    path: Path
    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int
    version: tuple[int, int]

    @property
    def row_bytes(self) -> int:
        """The bytes of a row: of the elements along the last axis."""
        return (
            self.shape[-1] // self.type.count * self.type.nbytes
            if self.shape
            else (self.type.nbytes)
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.rows * self.row_bytes

    def check(self, available: int) -> None:
        """Check it against its file.

        Args:
            available: the size of the file.

        Raises:
            ModelFileError: its shape does not suit its type, or it ends past the end of the file.
        """
        if any(not 0 < dim < LARGEST for dim in self.shape) or prod(self.shape) > LARGEST:
            raise self.damaged(f"its shape is {list(self.shape)}")
        if self.shape and self.shape[-1] % self.type.count:
            raise self.damaged(
                f"rows of {self.shape[-1]} are no whole blocks of {self.type.count} "
                f"({self.type.name})"
            )
        if self.offset + self.nbytes > available:
            raise self.damaged(
                f"{self.nbytes} bytes from {self.offset} on, the file has {available}"
            )

    def damaged(self, what: str) -> ModelFileError:
        """Return the error for a tensor that is not valid."""
        return ModelFileError(
            f"'{self.path}' is damaged: tensor '{self.name[:200]}': {what}",
            hint="the download did not finish, or the file was written wrongly",
        )

    def _parts(self) -> Iterator[tuple[slice, Bytes]]:
        """Yield the bytes of some rows at a time, [rows, blocks, bytes of a block].

        They are valid until the next ones.
        """
        step = 2 * max(1, PART // 2 // max(1, self.shape[-1] if self.shape else 1))
        buffer = np.empty((min(step, self.rows), self.row_bytes), np.uint8)
        with opened(self) as file:
            file.seek(self.offset)
            for start in range(0, self.rows, step):
                data = buffer[: self.rows - start]
                _fill(file, data, self)
                blocks = data.reshape(data.shape[0], -1, self.type.nbytes)
                yield slice(start, start + data.shape[0]), blocks

    def floats(self) -> Array:
        """Return the elements as float32."""
        made = paged((self.rows, self.shape[-1] if self.shape else 1), np.float32)
        for rows, blocks in self._parts():
            made[rows] = self.type.floats(blocks).reshape(blocks.shape[0], -1)
        return made.reshape(self.shape)

    def coded_parts(self) -> dict[str, int]:
        """Return the parts of a matrix in few bits as `MatMulNBits` has it, and a row's size.

        They are "codes", uint8, "scales", and for types with zero points "zeros", which are less
        2^(bits - 1).
        """
        kind, depth = self.type, self.shape[-1]
        sizes = {"codes": depth * kind.bits // 8, "scales": depth // kind.block}
        return {**sizes, "zeros": depth // kind.block} if kind.zeroed else sizes

    def decode(self, to: Mapping[str, Array]) -> bool:
        """Write a matrix in few bits, all axes but the last one of which are rows.

        Args:
            to: arrays of its parts, [rows, size], or [rows / 2, 2, size] of an even number.

        Returns:
            Whether the types of scales and zero points hold them; if not, float32 does.
        """
        kind, bounds = self.type, {name: _Bound() for name in to}
        twos = 2 if to["codes"].ndim == 3 else 1
        for part, data in self._parts():
            found = kind.split(data)
            count = data.shape[0]
            plain = found.codes.reshape(count, -1)
            if not found.packed:
                codes = pack_codes(plain.reshape(count, -1, kind.block), kind.bits)
                plain = codes.reshape(count, -1)
            rows = slice(part.start // twos, part.stop // twos)
            place = to["codes"][rows]
            place[...] = plain.reshape(place.shape)
            bounds["scales"].store(found.scales, to["scales"][rows])
            if found.zeros is not None:
                offsets = found.zeros
                offsets -= np.float32(1 << kind.bits - 1)
                bounds["zeros"].store(offsets, to["zeros"][rows])
        return all(one.fits for one in bounds.values())


@contextmanager
def opened(tensor: StoredTensor) -> Iterator[FileIO]:
    """Open the file of a tensor for reading.

    Raises:
        ModelFileError: it cannot be read, or has changed since its header was read.
    """
    try:
        # Not mapped: a file that becomes shorter meanwhile would end the process.
        with tensor.path.open("rb", buffering=0) as file:
            version = version_of(file)
            if version[0] < tensor.version[0]:
                raise tensor.damaged("the file has become shorter")
            if version != tensor.version:
                raise ModelFileError(
                    f"'{tensor.path}' has changed since the model was loaded",
                    hint="load the model again; weights are read from their file when needed",
                )
            yield file
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"'{tensor.path}' cannot be read: {error}", hint="check the path and its permissions"
        ) from error


def version_of(file: BufferedReader | FileIO) -> tuple[int, int]:
    """Return the size and modification time of an open file."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def read_bytes(file: FileIO, tensor: StoredTensor, start: int, shape: tuple[int, ...]) -> Bytes:
    """Return bytes of a tensor from one of them on.

    Raises:
        ModelFileError: the file has become shorter.
    """
    made = np.empty(shape, np.uint8)
    file.seek(tensor.offset + start)
    _fill(file, made, tensor)
    return made


def _fill(file: FileIO, to: Bytes, tensor: StoredTensor) -> None:
    """Read as many bytes as there is room for."""
    room = memoryview(to.reshape(-1).data)
    while len(room):
        count = file.readinto(room)
        if not count:
            raise tensor.damaged("the file has become shorter")
        room = room[count:]


class _Bound:
    """The largest of some numbers, of which float16 is to keep eleven bits."""

    def __init__(self) -> None:
        self._largest = 0.0

    def store(self, values: Array, to: Array) -> None:
        """Write some of them."""
        with np.errstate(over="ignore", invalid="ignore"):
            to[...] = values.reshape(to.shape)
        if values.dtype != to.dtype:
            size = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
            self._largest = max(self._largest, size) if size == size else size

    @property
    def fits(self) -> bool:
        """Whether float16 does."""
        return self._largest == 0.0 or _LEAST <= self._largest <= _MOST


_LEAST, _MOST = 2.0**-14, 65504.0
"""The largest of numbers for which the steps of float16 are fine enough."""
