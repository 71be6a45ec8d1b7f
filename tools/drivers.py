"""The Vulkan drivers that can be tried on this machine, beside its own and without changing it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools import apt, debian_root, environment, process, vulkan
from tools.process import CannotError, TaskError, step

SWIFTSHADER_ICD = Path("/usr/lib/chromium/vk_swiftshader_icd.json")  # Debian's chromium-common
SWIFTSHADER_LIBRARY = "./usr/lib/chromium/libvk_swiftshader.so"
KOMPUTE = "kompute"
"""After a driver's name and a plus: the tests reach it through Kompute. Alone: the system's."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a driver is: `env` makes the loader take it; in a root of its own there is a system."""

    env: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver that can be tried: how it is found, and fetched where it is not there.

    `find` returns None where it is not there. `cannot` returns why it cannot be fetched, or None;
    `fetch` raises `TaskError` when it fails.
    """

    name: str
    what: str
    find: Callable[[], Place | None]
    cannot: Callable[[], str | None]
    fetch: Callable[[], Place]

    def place(self) -> Place:
        """Find the driver, or fetch it.

        Raises:
            CannotError: it cannot be had here.
            TaskError: fetching it failed.
        """
        found = self.find()
        if found:
            return found
        reason = self.cannot()
        if reason:
            raise CannotError(f"{self.name} cannot be had here: {reason}")
        return self.fetch()


def _only(icd: Path) -> Place:
    return Place({"VK_DRIVER_FILES": str(icd), "VK_ICD_FILENAMES": str(icd)})


def _folder(name: str) -> Path:
    return process.cache_folder() / "drivers" / name


def _write_icd(folder: Path, library: str, version: str) -> Path:
    icd = folder / "icd.json"
    driver = {"library_path": library, "api_version": version}
    content = {"file_format_version": "1.0.0", "ICD": driver}
    icd.write_text(json.dumps(content), "utf-8")
    return icd


# --- the system's own ----------------------------------------------------------------------------


def _find_system() -> Place | None:
    return Place() if vulkan.probe_vulkan()["devices"] else None


def _cannot_install() -> str | None:
    return None if apt.prefix() is not None else f"no device; {vulkan.vulkan_hint()}"


def _fetch_system() -> Place:
    if not vulkan.ensure_vulkan():
        raise CannotError("the system has no Vulkan device")
    return Place()


# --- SwiftShader ---------------------------------------------------------------------------------


def _find_swiftshader() -> Place | None:
    own = environment.VENV / "swiftshader" / "icd.json"
    return next((_only(icd) for icd in (SWIFTSHADER_ICD, own) if icd.is_file()), None)


def _cannot_unpack() -> str | None:
    tools = ("apt-get", "dpkg-deb")
    return None if all(map(shutil.which, tools)) else "it comes in a package of Debian"


def _fetch_swiftshader() -> Place:
    """Take one library out of Debian's chromium-common; nothing is installed."""
    own = environment.VENV / "swiftshader"
    with tempfile.TemporaryDirectory() as folder:
        script = (
            f'cd "{folder}" && apt-get -q download chromium-common && '
            "dpkg-deb --fsys-tarfile chromium-common_*.deb | "
            f'tar -xO "{SWIFTSHADER_LIBRARY}" > libvk_swiftshader.so'
        )
        with step("fetching SwiftShader (the feature floor; 30 MB)"):
            command = ["bash", "-o", "pipefail", "-c", script]
            process.run_quiet(command, "apt-get cannot fetch chromium-common")
        own.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(folder) / "libvk_swiftshader.so", own)
    return _only(_write_icd(own, "./libvk_swiftshader.so", "1.1.0"))


# --- Mesa of Debian's backports ------------------------------------------------------------------


def _find_backport() -> Place | None:
    icd = _folder("mesa-25") / "icd.json"
    return _only(icd) if icd.is_file() else None


def _cannot_backport() -> str | None:
    codename = apt.release().get("VERSION_CODENAME")
    if codename != "bookworm":
        return "the package is for Debian 12"
    return _cannot_unpack()


def _fetch_backport() -> Place:
    folder = _folder("mesa-25")
    with step(f"fetching Mesa 25 of Debian's backports into {folder} (11 MB)"):
        apt.unpack("mesa-vulkan-drivers", "bookworm-backports", folder)
    found = sorted(folder.glob("content/usr/lib/*/libvulkan_lvp.so"))
    if not found:
        raise TaskError(f"no software driver in the package; see {folder}")
    return _only(_write_icd(folder, str(found[0]), "1.4.305"))


def radeon_icd(driver: Driver) -> Path:
    """Return the file by which the loader takes the driver for Radeons of a package of Mesa.

    Raises:
        CannotError: the package cannot be had here.
        TaskError: fetching it failed, or it holds no such driver.
    """
    driver.place()
    folder = _folder(driver.name)
    found = sorted(folder.glob("content/usr/lib/*/libvulkan_radeon.so"))
    if not found:
        raise TaskError(f"no driver for Radeons in {folder}")
    own = folder / "radeon"
    own.mkdir(exist_ok=True)
    return _write_icd(own, str(found[0]), "1.4.305")


# --- Debian unstable, in a folder of its own -----------------------------------------------------


def _find_unstable() -> Place | None:
    root = _folder("mesa-sid")
    return Place(root=root) if debian_root.is_made(root) else None


def _fetch_unstable() -> Place:
    root = _folder("mesa-sid")
    debian_root.make(root, "sid")
    return Place(root=root)


DRIVERS = {
    driver.name: driver
    for driver in (
        Driver("system", "what this machine has", _find_system, _cannot_install, _fetch_system),
        Driver(
            "mesa-25",
            "lavapipe of Debian 12's backports, unpacked beside the system",
            _find_backport,
            _cannot_backport,
            _fetch_backport,
        ),
        Driver(
            "mesa-sid",
            "lavapipe, Python and validation layer of Debian unstable, in a folder",
            _find_unstable,
            debian_root.cannot,
            _fetch_unstable,
        ),
        Driver(
            "swiftshader",
            "the feature floor: Vulkan 1.1 and little more",
            _find_swiftshader,
            _cannot_unpack,
            _fetch_swiftshader,
        ),
    )
}


def chosen(name: str) -> tuple[Driver, bool]:
    """Return the driver of a name, and whether it is reached through Kompute.

    Raises:
        TaskError: there is no such driver.
    """
    base, plus, binding = name.partition("+")
    if name == KOMPUTE:
        base, plus, binding = "system", "+", KOMPUTE
    if base not in DRIVERS or binding != (KOMPUTE if plus else ""):
        known = ", ".join([*DRIVERS, KOMPUTE])
        raise TaskError(f"there is no driver '{name}': {known}, or one with +{KOMPUTE}")
    return DRIVERS[base], bool(binding)
