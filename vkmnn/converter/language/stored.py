"""Tensors in weight files: their offsets, and reading in parts."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vkmnn.base.records import dataclass
from vkmnn.converter.language.blocks import BlockType, Bytes
from vkmnn.errors import ModelFileError
from vkmnn.ir import Array
from vkmnn.ir.codes import pack_codes

PART = 1 << 20
"""Weights that are decoded at a time."""

LARGEST = 1 << 40
"""Maximum elements of a tensor that is read."""


@dataclass(frozen=True, slots=True)
class Coded:
    """A matrix of few bits in the form of onnxruntime's `MatMulNBits`.

    Attributes:
        codes: uint8 [rows, blocks, block · bits / 8].
        scales: [rows, blocks].
        zeros: [rows, blocks], less 2^(bits - 1); None for 0.
    """

    codes: Array
    scales: Array
    zeros: Array | None


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        path: the file.
        name: its name in the file.
        type: how its elements are stored.
        shape: its shape, with contiguous elements along the last axis.
        offset: offset of its first byte.
    """

    path: Path
    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int

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
        """Yield the bytes of some rows at a time, [rows, blocks, bytes of a block]."""
        step = max(1, PART // max(1, self.shape[-1] if self.shape else 1))
        width = self.row_bytes
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                for start in range(0, self.rows, step):
                    count = min(step, self.rows - start)
                    data = np.fromfile(file, np.uint8, count * width)
                    if data.size != count * width:
                        raise self.damaged("the file has become shorter")
                    blocks = data.reshape(count, -1, self.type.nbytes)
                    yield slice(start, start + count), blocks
        except (OSError, ValueError) as error:
            raise ModelFileError(
                f"'{self.path}' cannot be read: {error}", hint="check the path and its permissions"
            ) from error

    def floats(self) -> Array:
        """Return the elements as float32."""
        made = np.empty((self.rows, self.shape[-1] if self.shape else 1), np.float32)
        for rows, blocks in self._parts():
            made[rows] = self.type.floats(blocks).reshape(blocks.shape[0], -1)
        return made.reshape(self.shape)

    def coded(self) -> Coded:
        """Return a matrix of few bits; all axes but the last one are rows."""
        kind, rows, depth = self.type, self.rows, self.shape[-1]
        blocks = depth // kind.block
        codes = np.empty((rows, blocks, kind.block * kind.bits // 8), np.uint8)
        scales = np.empty((rows, blocks), np.float32)
        zeros = np.empty((rows, blocks), np.float32) if kind.zeroed else None
        for part, data in self._parts():
            found = kind.split(data)
            count = data.shape[0]
            plain = found.codes.reshape(count, blocks, -1)
            codes[part] = plain if found.packed else pack_codes(plain, kind.bits)
            scales[part] = found.scales.reshape(count, blocks)
            if zeros is not None and found.zeros is not None:
                zeros[part] = found.zeros.reshape(count, blocks) - (1 << kind.bits - 1)
        return Coded(codes, _narrow(scales), None if zeros is None else _narrow(zeros))


def _narrow(values: npt.NDArray[np.float32]) -> Array:
    """Return values as float16, if that keeps eleven bits of the largest."""
    with np.errstate(over="ignore", invalid="ignore"):
        half = values.astype(np.float16)
        error = np.abs(half.astype(np.float32) - values).max(initial=0.0)
    kept = error <= np.abs(values).max(initial=0.0) * 2.0**-11
    return half if kept else values
