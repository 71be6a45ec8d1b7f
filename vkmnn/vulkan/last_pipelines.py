"""Which pipelines a network took when it was planned last, on the device at hand."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from vkmnn.cache_files import cache_dir, locked, read_file, write_file
from vkmnn.errors import ShaderError
from vkmnn.ir import Graph
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.pipeline import SpecValues, complete_spec
from vkmnn.runtime.pipeline_cache import device_key
from vkmnn.runtime.shader import Shader
from vkmnn.shaders.library import BUILTIN

_log = logging.getLogger(__name__)

_MAX_BYTES = 4 << 20
_MAX_NETWORKS = 32
_LOCK_WAIT_S = 1.0
_INVALID = (OSError, ValueError, TypeError, AttributeError, RecursionError)


class LastPipelines:
    """The pipelines of one network, in a file per device that knows the networks planned last.

    They are what to begin with while a plan is still being made. The plan decides: a network that
    is taken for another costs time, not results. No method raises.

    Args:
        info: the device.
        graph: the network, of which the ops and the names of their results count.
        fp16, spacious: how sessions run it.
    """

    def __init__(self, info: DeviceInfo, graph: Graph, *, fp16: bool, spacious: bool) -> None:
        ops = [(op.type, op.outputs) for op in graph.ops]
        told = repr((fp16, spacious, sorted(info.features), ops))
        self._network = hashlib.sha256(told.encode()).hexdigest()[:32]
        self.path = cache_dir() / "networks" / f"{device_key(info).hex()[:32]}.json"
        self._noted: dict[str, None] = {}

    def load(self) -> list[tuple[Shader, SpecValues]]:
        """Return what the network took last, of the shaders that come with vkmnn."""
        try:
            return [
                (BUILTIN.load(name), spec)
                for name, spec in map(json.loads, self._file().get(self._network, []))
            ]
        except (*_INVALID, ShaderError) as error:
            _log.info("pipelines in %s ignored: %s", self.path, error)
            return []

    def note(self, used: Iterable[tuple[Shader, SpecValues]]) -> None:
        """Take down what a plan took beside the earlier plans of this object."""
        before = len(self._noted)
        self._noted |= dict.fromkeys(_texts(used))
        if len(self._noted) == before:
            return
        if self._noted.keys() <= set(self._file().get(self._network, [])):
            return
        try:
            with locked(self.path.with_suffix(".lock"), _LOCK_WAIT_S):
                known = self._file()
                known.pop(self._network, None)
                recent = list(known.items())[1 - _MAX_NETWORKS :]
                data = dict([*recent, (self._network, list(self._noted))])
                write_file(self.path, json.dumps(data).encode())
        except OSError as error:
            _log.info("pipelines not kept in %s: %s", self.path, error)

    def _file(self) -> dict[str, list[str]]:
        """Return the pipelines of every network, as text; none of a file that is not as written."""
        try:
            data: dict[str, Any] = json.loads(read_file(self.path, _MAX_BYTES).decode())
            return {str(key): [str(text) for text in texts] for key, texts in data.items()}
        except FileNotFoundError:
            return {}
        except _INVALID as error:
            _log.info("pipelines in %s ignored: %s", self.path, error)
            return {}


def _texts(used: Iterable[tuple[Shader, SpecValues]]) -> Iterator[str]:
    for shader, spec in used:
        try:
            if BUILTIN.load(shader.name) == shader:
                yield json.dumps([shader.name, complete_spec(shader, spec)])
        except ShaderError:  # a plug-in's
            continue
