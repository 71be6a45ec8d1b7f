"""Finds the driver files (ICD manifests) that the Vulkan loader reads.

Source: "Loader-Driver Interface" of the Vulkan loader's documentation, section "Driver Discovery".
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vkmnn.runtime.drivers.base import DRIVER_VARIABLES

OVERRIDES = DRIVER_VARIABLES
ADDED = "VK_ADD_DRIVER_FILES"

_REGISTRY = r"SOFTWARE\Khronos\Vulkan\Drivers"


@dataclass(frozen=True, slots=True)
class DriverFile:
    """A driver file; `problem` describes its defect, "" if it has none."""

    path: Path
    problem: str


def override() -> str | None:
    """Return the environment variable that decides which driver files are seen, if one does."""
    return next((name for name in OVERRIDES if os.environ.get(name)), None)


def find_driver_files() -> list[DriverFile]:
    """Return the driver files in the order of the loader's search, each once."""
    name = override()
    if name is not None:
        paths = list(_expand(os.environ[name]))
    else:
        paths = [*_expand(os.environ.get(ADDED, "")), *_installed()]
    return [DriverFile(path, _problem(path)) for path in dict.fromkeys(paths)]


def _expand(text: str) -> Iterator[Path]:
    """Yield the files of a list of files and folders."""
    for item in filter(None, text.split(os.pathsep)):
        path = Path(item)
        if path.is_dir():
            yield from sorted(path.glob("*.json"))
        else:
            yield path


def _installed() -> Iterator[Path]:
    if sys.platform == "win32":
        yield from _registered()
        return
    for folder in _folders():
        yield from sorted((folder / "vulkan" / "icd.d").glob("*.json"))


def _folders() -> Iterator[Path]:
    """Yield the folders that hold `vulkan/icd.d`, by the XDG base directory rules."""
    home = Path.home()
    lists = (
        (os.environ.get("XDG_CONFIG_HOME"), str(home / ".config")),
        (os.environ.get("XDG_CONFIG_DIRS"), "/etc/xdg"),
        (None, "/usr/local/etc:/etc"),
        (os.environ.get("XDG_DATA_HOME"), str(home / ".local" / "share")),
        (os.environ.get("XDG_DATA_DIRS"), "/usr/local/share:/usr/share"),
        (None, "/opt/homebrew/share:/opt/homebrew/etc" if sys.platform == "darwin" else ""),
    )
    for value, default in lists:
        yield from map(Path, filter(None, (value or default).split(os.pathsep)))


def _registered() -> Iterator[Path]:
    """Yield the files that the Windows registry names."""
    if sys.platform == "win32":
        import winreg

        for root in (winreg.HKEY_LOCAL_MACHINE, winreg.HKEY_CURRENT_USER):
            try:
                with winreg.OpenKey(root, _REGISTRY) as key:
                    for index in range(winreg.QueryInfoKey(key)[1]):
                        name, disabled, _ = winreg.EnumValue(key, index)
                        if not disabled:
                            yield Path(name)
            except OSError:
                continue
    yield from ()


def _problem(path: Path) -> str:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        library = str(manifest["ICD"]["library_path"])
    except OSError as error:
        return error.strerror or "cannot be read"
    except (ValueError, KeyError, TypeError):
        return "is not a driver manifest"
    # A bare name is searched for by the system's own rules.
    if ("/" in library or "\\" in library) and not (path.parent / library).is_file():
        return f"names the library {library}, which does not exist"
    return ""
