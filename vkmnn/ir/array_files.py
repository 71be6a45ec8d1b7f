"""Arrays from .npy and .npz files that may be damaged or of another type."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.ir import Array

# Exceptions of numpy and zipfile for files that are unreadable or claim to be too large.
_BAD = (
    *(ValueError, EOFError, AttributeError, TypeError, KeyError, MemoryError, RuntimeError),
    *(NotImplementedError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


def read_arrays(path: str | Path, *, stored: bool = False) -> Array | dict[str, Array]:
    """Return the array of a .npy file, or the arrays of a .npz file by name.

    The content, not the name, determines the format.

    Args:
        path: the file.
        stored: refuse compressed archives, whose arrays may be far larger than the file.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe or a device.
        ValueError: it is of another type, or damaged.
    """
    try:
        place = Path(path)
        if place.exists() and not place.is_file():  # reading a pipe would block
            raise OSError("it is not a file")
        with place.open("rb") as file:  # numpy does not close a damaged archive
            loaded: Any = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            sizes = sum(member.file_size for member in loaded.zip.infolist())
            if stored and sizes > place.stat().st_size:
                raise ValueError("it is compressed")
            return {name: np.asarray(loaded[name]) for name in loaded.files}
    except _BAD as error:
        raise ValueError(str(error) or type(error).__name__) from error
