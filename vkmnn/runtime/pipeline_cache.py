"""The file that preserves a device's pipeline cache between processes.

Format, little-endian: magic, SHA-256 of the key, length of the payload, SHA-256 of the payload,
payload. A file with any deviation is ignored as a whole.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from pathlib import Path

from vkmnn._version import __version__
from vkmnn.base.cache_files import read_file, write_file
from vkmnn.runtime.device_info import DeviceInfo

log = logging.getLogger(__name__)

_MAGIC = b"VKMNNPC1"
_HEADER = struct.Struct("<8s32sQ32s")
_MAX_BYTES = 512 << 20


def device_key(info: DeviceInfo) -> bytes:
    """Return the SHA-256 of device, driver and vkmnn's version: the key of caches."""
    parts = (
        info.driver,
        info.uuid,
        info.driver_uuid,
        info.driver_version,
        # A software driver's UUID can be set from outside.
        str(info.subgroup_size),
        ".".join(map(str, info.api_version)),
        info.device_profile,
        __version__,
    )
    return hashlib.sha256("\0".join(parts).encode()).digest()


class PipelineCacheFile:
    """A file below `folder` per device, driver and engine version.

    No method raises: a cache that cannot be read or written costs time, not results. The reason is
    logged.
    """

    def __init__(self, folder: Path, info: DeviceInfo) -> None:
        self._key = device_key(info)
        self.path = folder / "pipelines" / f"{self._key.hex()[:32]}.bin"

    def load(self) -> bytes | None:
        """Return the payload, or None when there is no valid file."""
        try:
            data = read_file(self.path, _MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("pipeline cache %s ignored: %s", self.path, error)
            return None
        if len(data) < _HEADER.size:
            log.warning("pipeline cache %s ignored: cut short", self.path)
            return None
        magic, key, length, digest = _HEADER.unpack_from(data)
        payload = data[_HEADER.size :]
        if magic != _MAGIC or key != self._key:
            log.info("pipeline cache %s ignored: written for another device or version", self.path)
            return None
        if length != len(payload) or hashlib.sha256(payload).digest() != digest:
            log.warning("pipeline cache %s ignored: damaged", self.path)
            return None
        return payload

    def store(self, payload: bytes) -> None:
        """Write the file atomically: readers see the old one or the new one."""
        header = _HEADER.pack(_MAGIC, self._key, len(payload), hashlib.sha256(payload).digest())
        try:
            write_file(self.path, header + payload)
        except OSError as error:
            log.warning("pipeline cache %s cannot be written: %s", self.path, error)
