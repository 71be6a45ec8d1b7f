"""The SPIR-V of a package in one zip file, as wheels carry it.

Modules are compressed one by one, so that a process reads those that it uses and no others.
"""

from __future__ import annotations

import functools
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

ARCHIVE_FILE = "spirv.zip"
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # the same modules give the same archive
# Of a local header in a zip file: its size, and the position of the lengths of name and extra
# field.
_HEADER_BYTES, _LENGTHS_AT = 30, 26
_RAW_DEFLATE = -15


def pack(path: Path, modules: Mapping[str, bytes]) -> None:
    """Write an archive.

    Args:
        path: path of the file.
        modules: the SPIR-V of each variant.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for name, code in sorted(modules.items()):
            out.writestr(
                zipfile.ZipInfo(name, _FIXED_DATE), code, zipfile.ZIP_DEFLATED, compresslevel=9
            )


class Archive:
    """Reads modules out of a packed folder. May be shared by threads, and after a fork.

    Args:
        path: the zip file; it is opened for each read, so that no position is shared.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @functools.cached_property
    def _entries(self) -> dict[str, tuple[int, int]]:
        """Offset of each module's local header, and its compressed size."""
        with zipfile.ZipFile(self._path) as archive:
            return {
                info.filename: (info.header_offset, info.compress_size)
                for info in archive.infolist()
            }

    def read(self, name: str) -> bytes:
        """Return the module of a variant.

        Raises:
            KeyError: there is none.
            OSError, zipfile.BadZipFile, zlib.error: the file is missing or damaged.
        """
        begin, size = self._entries[name]
        with self._path.open("rb") as file:
            file.seek(begin + _LENGTHS_AT)
            file.seek(begin + _HEADER_BYTES + sum(struct.unpack("<2H", file.read(4))))
            return zlib.decompress(file.read(size), _RAW_DEFLATE)
