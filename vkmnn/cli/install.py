"""Installation advice by operating system."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping

_SDK = "install the Vulkan SDK: https://vulkan.lunarg.com/sdk/home"

REMEDIES: Mapping[str, Mapping[str, str]] = {
    "driver": {
        "debian": "sudo apt install libvulkan1 mesa-vulkan-drivers   (NVIDIA: nvidia-driver)",
        "fedora": "sudo dnf install vulkan-loader mesa-vulkan-drivers   (NVIDIA: akmod-nvidia)",
        "arch": "sudo pacman -S vulkan-icd-loader and one of vulkan-radeon, vulkan-intel, "
        "nvidia-utils, vulkan-swrast (software)",
        "linux": "install the Vulkan loader (libvulkan.so.1) and a driver: Mesa's, or the GPU "
        "vendor's",
        "macos": "brew install vulkan-loader molten-vk, or " + _SDK,
        "windows": "install the driver of the GPU's vendor: it brings vulkan-1.dll",
    },
    "validation": {
        "debian": "sudo apt install vulkan-validationlayers",
        "fedora": "sudo dnf install vulkan-validation-layers",
        "arch": "sudo pacman -S vulkan-validation-layers",
        "linux": _SDK,
        "macos": _SDK,
        "windows": _SDK,
    },
}
"""Missing item -> operating system -> advice."""

_FAMILIES = {
    "debian": "debian",
    "ubuntu": "debian",
    "fedora": "fedora",
    "rhel": "fedora",
    "centos": "fedora",
    "arch": "arch",
    "archlinux": "arch",
}


def system() -> str:
    """Return "debian", "fedora", "arch", "linux" (another or unknown one), "macos" or "windows"."""
    if sys.platform in ("darwin", "win32"):
        return "macos" if sys.platform == "darwin" else "windows"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "linux"
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return next((_FAMILIES[name] for name in names if name in _FAMILIES), "linux")


def remedy(what: str) -> str:
    """Return the advice for this system if `what`, a key of REMEDIES, is missing."""
    return REMEDIES[what][system()]
