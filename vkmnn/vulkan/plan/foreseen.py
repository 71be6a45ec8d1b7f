"""Builds the pipelines that a model needed last time, while the model is still being read.

The pipelines are known only once the network has been planned; until then, drivers are idle. A note
in the cache folder lets them start as soon as the device is open.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.base.cache_files import cache_dir, read_file, write_file
from vkmnn.base.threads import Workers
from vkmnn.errors import VkmnnError
from vkmnn.runtime.device_info import DeviceType
from vkmnn.runtime.pipeline import complete_spec
from vkmnn.runtime.pipeline_cache import device_key
from vkmnn.runtime.shader import flagged, watched
from vkmnn.runtime.warm_up import WarmUp
from vkmnn.shaders.library import BUILTIN

if TYPE_CHECKING:
    from vkmnn.runtime.device import Device
    from vkmnn.runtime.device_info import DeviceInfo
    from vkmnn.runtime.pipeline import SpecValues
    from vkmnn.runtime.shader import Shader

    Needed = Sequence[tuple[Shader, SpecValues]]

_log = logging.getLogger(__name__)

MAX_PIPELINES = 64
"""Maximum pipelines per model; half of those that a device keeps unused."""

MAX_NOTES = 256
_MAX_BYTES = 1 << 20


class Note:
    """A file with the pipelines that a device needed for one model.

    No method raises: a note that cannot be read or written costs time, not results. The reason is
    logged.

    Args:
        folder: the cache folder.
        info: the device.
        subject: identifies the model and its options.

    Attributes:
        path: the file.
    """

    def __init__(self, folder: Path, info: DeviceInfo, subject: str) -> None:
        key = hashlib.sha256(device_key(info) + subject.encode("utf-8", "surrogateescape"))
        self.path = folder / "foreseen" / f"{key.hexdigest()[:32]}.json"

    def load(self) -> list[tuple[Shader, SpecValues]]:
        """Return the pipelines with all constants; empty without a valid file."""
        try:
            noted = json.loads(read_file(self.path, _MAX_BYTES))
            return [
                (_shader(name, *changes), complete_spec(BUILTIN.load(name), spec))
                for name, spec, *changes in noted[:MAX_PIPELINES]
            ]
        except FileNotFoundError:
            return []
        except (
            *(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError),
            RecursionError,  # of nested JSON
            VkmnnError,  # no such shader, or no such constant
        ) as error:
            _log.warning("foreseen pipelines %s ignored: %s", self.path, error)
            return []

    def store(self, needed: Needed) -> None:
        """Store the pipelines atomically."""
        data = json.dumps([[shader.name, dict(spec), *_changes(shader)] for shader, spec in needed])
        try:
            write_file(self.path, data.encode())
            _drop_oldest(self.path.parent)
        except OSError as error:
            _log.info("pipeline notes %s not saved: %s", self.path, error)


def _shader(name: str, watches: bool = False, constants: Sequence[int] | None = None) -> Shader:
    shader = watched(BUILTIN.load(name)) if watches is True else BUILTIN.load(name)
    return shader if constants is None else flagged(shader, frozenset(constants))


def _changes(shader: Shader) -> tuple[bool, list[int] | None]:
    """Return how a shader differs from the built-in one, for `_shader`."""
    return shader.watched, None if shader.flagged is None else sorted(shader.flagged)


def _drop_oldest(folder: Path) -> None:
    """Limit the number of notes in a folder."""
    notes = [*folder.glob("*.json")]
    if len(notes) <= MAX_NOTES:
        return
    ages = []
    for path in notes:
        with contextlib.suppress(OSError):  # another process was faster
            ages.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(ages)[: len(notes) - MAX_NOTES]:
        with contextlib.suppress(OSError):
            path.unlink()


class Foreseen:
    """Builds the pipelines of a note in other threads, and rewrites the note if it was wrong.

    Plans get these pipelines from the device, which builds none twice. Errors are raised by the
    plans that need them.

    Args:
        device: the device that builds the pipelines.
        subject: as for `Note`.
    """

    def __init__(self, device: Device, subject: str) -> None:
        self._note = Note(cache_dir(), device.info, subject)
        self._device = device
        self._noted = self._note.load()
        threads = min(os.cpu_count() or 1, len(self._noted))
        self._builders = Workers(threads, "vkmnn-foreseen")
        built = [self._builders.submit(device.pipeline, *pair) for pair in self._noted]
        on_cpu = device.info.type is DeviceType.CPU
        self._warm_up = (
            WarmUp(device, built, helped=False, awaited=False) if on_cpu and built else None
        )

    def settle(self, needed: Needed) -> None:
        """Cancel pending pipelines; store those used, if the note did not list them.

        Args:
            needed: all pipelines of a plan, in the best order to build them.
        """
        self.close()
        own = [(shader, spec) for shader, spec in needed if _is_built_in(shader)]
        wanted = [(s, complete_spec(s, spec)) for s, spec in own[:MAX_PIPELINES]]
        if wanted != self._noted:
            self._note.store(wanted)

    def close(self) -> None:
        """Cancel pending pipelines, and wait for running ones."""
        if self._warm_up is not None:
            self._warm_up.close()
        self._builders.close(cancel=True)


def _is_built_in(shader: Shader) -> bool:
    try:
        return BUILTIN.load(shader.name).digest == shader.digest
    except VkmnnError:
        return False
