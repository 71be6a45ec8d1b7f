"""Arrays from .npy and .npz files, which may be damaged or of another kind."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.ir import Array

# Exceptions of numpy and zipfile for files that they cannot read, or that claim to be too large.
_BAD = (
    *(ValueError, EOFError, AttributeError, TypeError, KeyError, MemoryError, RuntimeError),
    *(NotImplementedError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


def read_arrays(path: str | Path, *, stored: bool = False) -> Array | dict[str, Array]:
    """Return the array of a .npy file, or the arrays of a .npz file by name.

    The content decides which of the two a file is, not its name.

    Args:
        path: the file.
        stored: refuse compressed archives, whose arrays may be far larger than the file.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe or a device.
        ValueError: it holds something else, or is damaged.
    """
    try:
        place = Path(path)
        if place.exists() and not place.is_file():  # a pipe would block the reading
            raise OSError("it is not a file")
        with place.open("rb") as file:  # numpy leaves a damaged archive open
            loaded: Any = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            sizes = sum(member.file_size for member in loaded.zip.infolist())
            if stored and sizes > place.stat().st_size:
                raise ValueError("it is compressed")
            return {name: np.asarray(loaded[name]) for name in loaded.files}
    except _BAD as error:
        raise ValueError(str(error) or type(error).__name__) from error
