"""Settings of the Khronos validation layer, and the log of its undelivered messages.

A driver that creates its own VkInstance receives messages by a callback. If a library creates the
instance, its messages go to a file that only the layer's settings name. An old layer reads its
settings once, when the process first uses it, so every driver enters `layer_settings`; a layer that
supports named settings reads them with each instance.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"

_PATH_VARIABLE = "VK_LAYER_SETTINGS_PATH"
_LAYERS_VARIABLE = "VK_INSTANCE_LAYERS"
SETTINGS_EXTENSION = "VK_EXT_layer_settings"
"""Settings of a layer that supports `CHECKS`; older layers support `_OLD_CHECKS`, and none accepts
both.
"""

CHECKS = ("validate_sync", "syncval_shader_accesses_heuristic")
"""Enabled settings: hazards, including those of bindings that a shader may never touch."""

_OLD_CHECKS = "enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"

# DEFAULT: an instance with its own callback writes nothing into the log.
_SETTINGS = """\
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_DEFAULT,VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn
khronos_validation.log_filename = {log}
"""
# A message: a line with these words, and the lines after it except the list of objects.
_TEXT = re.compile(r"(Validation (?:Error|Warning): .*(?:\n(?! *Objects:|.*Validation ).*)*)")

_folder: Path | None = None


def _settings_folder() -> Path:
    global _folder
    if _folder is None:
        _folder = Path(tempfile.mkdtemp(prefix="vkmnn-validation-"))
        atexit.register(_remove, _folder, os.getpid())
    return _folder


def _settings_file(named: bool) -> Path:
    checks = [f"{check} = true" for check in CHECKS] if named else [_OLD_CHECKS]
    text = _SETTINGS.format(log=_settings_folder() / "log.txt")
    text += "".join(f"khronos_validation.{line}\n" for line in checks)
    path = _settings_folder() / "vk_layer_settings.txt"
    path.write_text(text, encoding="utf-8")
    return path


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def layer_settings(*, named: bool, forced: bool = False) -> Iterator[None]:
    """Apply our settings to instances created in this context, unless the environment sets others.

    Args:
        named: the layer supports `CHECKS` by name, as those with `SETTINGS_EXTENSION` do.
        forced: enable the layer even for instances whose creator does not request it.
    """
    changes: dict[str, str] = {}
    if _PATH_VARIABLE not in os.environ:
        changes[_PATH_VARIABLE] = str(_settings_file(named))
    if forced:
        listed = os.environ.get(_LAYERS_VARIABLE, "")
        changes[_LAYERS_VARIABLE] = os.pathsep.join(filter(None, [listed, VALIDATION_LAYER]))
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class LayerLog:
    """Messages of the instance created last within `layer_settings`."""

    def __init__(self) -> None:
        self._path = _settings_folder() / "log.txt"
        self._read = 0

    def new_messages(self) -> list[str]:
        """Return the messages written since the last call."""
        try:
            with self._path.open("rb") as file:
                # A later instance truncates the file; the layer still writes at its old position.
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        self._read += len(data)
        return [text.strip() for text in _TEXT.findall(data.decode(errors="replace"))]
