"""Measurements shared between processes: small JSON objects by key, one file each."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vkmnn.base.cache_files import cache_dir, read_file, write_file

_log = logging.getLogger(__name__)

_MAX_BYTES = 1 << 16

PROOFS = "proofs"
"""The kind of what devices prove at first use (`vulkan/proof.py`)."""


class Measurements:
    """The measurements of one kind, in a folder of the cache.

    Args:
        kind: the folder's name.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the object stored under a key; None if there is none or it is unreadable."""
        try:
            value = json.loads(read_file(self._path(key), _MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("a measurement is not used: %s", error)
            return None
        return value if isinstance(value, dict) else None

    def stored(self) -> list[str]:
        """Return the keys of all stored objects, in order."""
        return sorted(path.stem for path in (cache_dir() / self._kind).glob("*.json"))

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Store an object; on failure, log a warning, and it is measured again next time."""
        try:
            write_file(self._path(key), json.dumps(dict(value)).encode())
        except OSError as error:
            _log.warning("a measurement could not be saved: %s", error)

    def _path(self, key: str) -> Path:
        return cache_dir() / self._kind / f"{key}.json"
