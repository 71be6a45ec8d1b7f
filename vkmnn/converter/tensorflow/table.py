"""Sorted tables of LevelDB, as TensorFlow's index files of variables are.

A table ends with a footer, which points to a block whose values point to blocks of entries; keys
share beginnings with those before them. Every block has a type and a checksum behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from vkmnn.converter.tensorflow.checksum import masked_crc
from vkmnn.errors import ModelFileError

_FOOTER = 48
_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_TRAILER = 5
_TYPES = {0: "", 1: "snappy"}
_MOST_KEY_BYTES = 1 << 26
"""Bytes of all keys: keys that share their beginnings are much longer than the file."""


class Table:
    """The entries of a table.

    Args:
        data: the file.
        what: what it is called in messages.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what = data, what
        self._key_bytes = 0

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and values.

        Raises:
            ModelFileError: the file is damaged, or compressed.
        """
        data = self._data
        if len(data) < _FOOTER or data[-8:] != _MAGIC:
            raise self._damaged("it does not end as an index of variables does")
        footer = len(data) - _FOOTER
        _, at = self._handle(data, footer, len(data) - 8)
        handle, _ = self._handle(data, at, len(data) - 8)
        for _, value in self._block(handle):
            found, _ = self._handle(value, 0, len(value))
            yield from self._block(found)

    def _handle(self, data: bytes, at: int, end: int) -> tuple[tuple[int, int], int]:
        offset, at = self._number(data, at, end)
        size, at = self._number(data, at, end)
        return (offset, size), at

    def _number(self, data: bytes, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 64:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at
        raise self._damaged("a number is cut off")

    def _block(self, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
        offset, size = handle
        end = offset + size
        if end + _TRAILER > len(self._data) - _FOOTER:
            raise self._damaged("a block is outside of it")
        block, kind = self._data[offset:end], self._data[end]
        if kind:
            name = _TYPES.get(kind, f"type {kind}")
            raise ModelFileError(
                f"{self._what} is compressed ({name})",
                hint="TensorFlow writes such files uncompressed: save the model again with it",
            )
        stored = int.from_bytes(self._data[end + 1 : end + _TRAILER], "little")
        if masked_crc(self._data[offset : end + 1]) != stored:
            raise self._damaged("the checksum of a block is wrong")
        restarts = int.from_bytes(block[-4:], "little")
        last = len(block) - 4 - 4 * restarts
        if last < 0:
            raise self._damaged("a block has more restarts than bytes")
        key, at = b"", 0
        while at < last:
            shared, at = self._number(block, at, last)
            fresh, at = self._number(block, at, last)
            length, at = self._number(block, at, last)
            if shared > len(key) or at + fresh + length > last:
                raise self._damaged("an entry goes beyond its block")
            self._key_bytes += shared + fresh
            if self._key_bytes > _MOST_KEY_BYTES:
                raise self._damaged("its keys are too long")
            key = key[:shared] + block[at : at + fresh]
            at += fresh + length
            yield key, block[at - length : at]

    def _damaged(self, reason: str) -> ModelFileError:
        return ModelFileError(
            f"{self._what} is damaged: {reason}", hint="copy the SavedModel's folder again"
        )
