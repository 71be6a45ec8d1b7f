"""Values of variables: an index, and data in shards, beside a SavedModel."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from vkmnn.converter.nodes.scope import NUMPY_TYPES
from vkmnn.converter.tensorflow.checksum import masked_crc
from vkmnn.converter.tensorflow.files import TYPES
from vkmnn.converter.tensorflow.schema import Message, message_class
from vkmnn.converter.tensorflow.table import Table
from vkmnn.errors import ModelError, ModelFileError
from vkmnn.ir import Array

_STEM = "variables"
_MOST_SHARDS = 100_000
_MOST_INDEX_BYTES = 1 << 28
_AGAIN = "copy the SavedModel's folder again"


class Bundle:
    """The variables of a SavedModel; values are read when they are asked for.

    Args:
        folder: that of the SavedModel.

    Attributes:
        entries: what the index says about each tensor, by its key.

    Raises:
        ModelFileError: the index is damaged.
    """

    def __init__(self, folder: Path) -> None:
        from google.protobuf.message import DecodeError

        self._folder = folder
        self.entries: dict[str, Message] = {}
        path = folder / _STEM / f"{_STEM}.index"
        if not path.exists():
            self._shards = 0
            return
        inside = self._checked(path)
        if inside.stat().st_size > _MOST_INDEX_BYTES:
            raise ModelFileError(f"'{path}' is too large for an index", hint=_AGAIN)
        header = message_class("BundleHeader")()
        try:
            for key, value in Table(inside.read_bytes(), f"'{path}'").entries():
                if not key:
                    header = message_class("BundleHeader").FromString(value)
                else:
                    name = key.decode("utf-8", "backslashreplace")
                    self.entries[name] = message_class("BundleEntry").FromString(value)
        except DecodeError as error:
            raise ModelFileError(
                f"'{path}' is damaged: an entry is no message", hint=_AGAIN
            ) from error
        self._shards = header.num_shards
        if not 0 < self._shards <= _MOST_SHARDS or header.endianness:
            raise ModelFileError(
                f"'{path}' has {self._shards} shards of "
                f"{'big' if header.endianness else 'little'}-endian numbers",
                hint="save the model again on a machine with little-endian numbers",
            )

    def _checked(self, path: Path) -> Path:
        """Return a file of the folder, symbolic links resolved."""
        try:
            found = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise ModelFileError(
                f"'{path}' cannot be read: {error}", hint="keep the folder `variables` complete"
            ) from error
        if not found.is_relative_to(self._folder.resolve()) or not found.is_file():
            raise ModelFileError(
                f"'{path}' is not a regular file inside the folder of the model",
                hint="links to files outside may be malicious; copy the files themselves",
            )
        return found

    def array(self, key: str, name: str) -> Array:
        """Return the value of a tensor.

        Args:
            key: its key in the index.
            name: the variable, for messages.

        Raises:
            ModelError: there is no such tensor, or it contradicts its entry.
        """
        entry = self.entries.get(key)
        if entry is None:
            raise ModelError(
                f"the variable '{name}' has no value in the SavedModel", hint=f"its key is '{key}'"
            )
        if entry.slices:
            raise ModelError(
                f"the variable '{name}' is partitioned into slices",
                hint="save the model without a partitioner",
            )
        kind = TYPES.get(entry.dtype)
        if kind is None:
            raise ModelError(
                f"the variable '{name}' has elements of TensorFlow's type {entry.dtype}",
                hint="vkmnn runs networks on numbers",
            )
        dtype, shape = np.dtype(NUMPY_TYPES[kind]), [dim.size for dim in entry.shape.dim]
        wanted = prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or len(shape) > 32 or wanted != entry.size:
            raise ModelError(
                f"the variable '{name}' of shape {shape} has {entry.size} bytes", hint=_AGAIN
            )
        data = self._bytes(entry, name)
        found: Array = data.view(dtype.newbyteorder("<")).astype(dtype, copy=False)
        return found.reshape(shape)

    def _bytes(self, entry: Message, name: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        if not 0 <= entry.shard_id < self._shards:
            raise ModelError(
                f"the variable '{name}' is in shard {entry.shard_id} of {self._shards}",
                hint=_AGAIN,
            )
        file = f"{_STEM}.data-{entry.shard_id:05}-of-{self._shards:05}"
        path = self._checked(self._folder / _STEM / file)
        if entry.offset < 0 or entry.offset + entry.size > path.stat().st_size:
            raise ModelError(
                f"the variable '{name}' is outside of '{file}'",
                hint=f"the copy of the file did not finish: {_AGAIN}",
            )
        data = np.fromfile(path, np.uint8, entry.size, offset=entry.offset)
        if data.size != entry.size or masked_crc(data) != entry.crc32c:
            raise ModelError(f"the checksum of the variable '{name}' is wrong", hint=_AGAIN)
        return data
