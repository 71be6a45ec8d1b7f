"""Folders of plug-ins: each plug-in has a folder with a manifest.

A manifest is a file `vkmnn-plugin.json`:

    {"name": "acme-gates", "version": "1.2", "module": "acme_gates", "order": 0, "vkmnn": "0.1"}

`module` is the folder of a package, or a `.py` file, next to the manifest. `order` (0 by default)
sorts the plug-ins of all folders, the smallest first; names break ties. `vkmnn` is the minimum
version of vkmnn that the plug-in needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vkmnn._version import __version__
from vkmnn.base.cache_files import check_owner
from vkmnn.base.records import dataclass
from vkmnn.base.user_folders import data_folder
from vkmnn.errors import PluginError, page

MANIFEST = "vkmnn-plugin.json"
_KEYS = {"name": str, "version": str, "module": str, "order": int, "vkmnn": str}
_NEEDED = ("name", "version", "module")
_MAX_BYTES = 1 << 16


def default_folder() -> Path:
    """Return the default plug-in folder: `vkmnn/plugins` in the user's data folder.

    Raises:
        RuntimeError: the user has no home, as services have none.
    """
    return data_folder() / "plugins"


def in_default_folder() -> list[Manifest]:
    """Return the manifests in the default folder; none if other users may write there."""
    try:
        folder = default_folder()
    except RuntimeError:
        return []
    try:
        if not folder.is_dir():
            return []
        check_owner(folder)
        found = manifests([folder])
        for one in found:
            for path in (one.file.parent, one.file):
                check_owner(path)
    except OSError as error:
        return [_damaged(folder, f"nothing in it is loaded: {error}")]
    return found


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of a manifest; with an `error`, only `name` and `file` are valid."""

    file: Path
    name: str
    version: str = ""
    module: str = ""
    order: int = 0
    error: PluginError | None = None

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}".strip()


def manifests(folders: Iterable[Path]) -> list[Manifest]:
    """Return the manifests in these folders and in the folders directly inside them, in order.

    The `error` of a folder or a manifest describes its defect.
    """
    found: dict[Path, Manifest] = {}
    for folder in folders:
        try:
            place = folder.expanduser().resolve()
            if not place.is_dir():
                found[place] = _damaged(place, f"the folder {place} does not exist")
                continue
            files = (place / MANIFEST, *sorted(place.glob(f"*/{MANIFEST}")))
            found.update((file, read_manifest(file)) for file in files if file.is_file())
        except (
            OSError,
            RuntimeError,
        ) as error:  # an overlong name, permissions, a user without a home
            found[folder] = _damaged(folder, f"the folder {folder} cannot be read: {error}")
    return sorted(found.values(), key=lambda one: (one.order, one.name, str(one.file)))


def read_manifest(file: Path) -> Manifest:
    """Read a manifest; `error` describes its defects."""
    try:
        if file.stat().st_size > _MAX_BYTES:
            return _damaged(file, f"it is larger than {_MAX_BYTES} bytes")
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return _damaged(file, f"it cannot be read: {error}")
    wrong = _fault(content, file)
    if wrong is not None:
        return _damaged(file, wrong)
    given = {key: content[key] for key in ("name", "version", "module", "order") if key in content}
    return Manifest(file, **given)


def _fault(content: Any, file: Path) -> str | None:
    """Return the defect of a manifest's content."""
    if not isinstance(content, dict):
        return "it holds no object"
    for key in _NEEDED:
        if key not in content:
            return f'"{key}" is missing'
    for key, value in content.items():
        if key not in _KEYS:
            return f'"{key}" is not known; the keys are {", ".join(_KEYS)}'
        if type(value) is not _KEYS[key] or value == "":
            kind = "an integer" if _KEYS[key] is int else "a text"
            return f'"{key}" is {value!r}, not {kind}'
    module = (file.parent / content["module"]).resolve()
    if file.parent.resolve() not in module.parents:
        return f'"module" is {content["module"]!r}, which does not lie beside the manifest'
    return _too_new(content.get("vkmnn", "0"))


def _too_new(least: str) -> str | None:
    try:
        wanted = tuple(int(part) for part in least.split("."))
    except ValueError:
        return f'"vkmnn" is {least!r}, not a version such as "0.1"'
    parts = __version__.split(".")
    here = tuple(int(part) for part in parts if part.isdigit())
    return None if wanted <= here else f"it needs vkmnn {least}; this is {'.'.join(parts)}"


def _damaged(file: Path, what: str) -> Manifest:
    error = PluginError(what, hint=f"{page('extending/plugin')} shows a {MANIFEST}")
    name = file.parent.name if file.name == MANIFEST else file.name
    return Manifest(file, name, error=error)
