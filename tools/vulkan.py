"""Vulkan on this machine: its devices, the validation layer and spirv-val."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tools import apt
from tools.process import CannotError, say

PATIENCE_S = 300  # a loaded machine is slow
VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"

NO_VULKAN_HINT = {
    "apt-get": "sudo apt-get install libvulkan1 mesa-vulkan-drivers",
    "dnf": "sudo dnf install vulkan-loader mesa-vulkan-drivers",
    "pacman": "sudo pacman -S vulkan-icd-loader vulkan-swrast",
    "apk": "sudo apk add vulkan-loader mesa-vulkan-swrast",
    "zypper": "sudo zypper install libvulkan1 libvulkan_lvp",
    "brew": "brew install vulkan-loader molten-vk",
}

# Asks the Vulkan loader through ctypes. Run in a child process, since a broken driver may crash it.
PROBE = r"""
import ctypes as c, json, sys

NAMES = {"win32": ["vulkan-1.dll"], "darwin": ["libvulkan.1.dylib", "libMoltenVK.dylib"]}
TYPES = ["other", "integrated", "discrete", "virtual", "software"]

def load():
    for name in NAMES.get(sys.platform, ["libvulkan.so.1"]):
        try:
            return c.CDLL(name)
        except OSError:
            pass

class InstanceInfo(c.Structure):
    _fields_ = [("s_type", c.c_int), ("next", c.c_void_p), ("flags", c.c_uint32),
                ("app", c.c_void_p), ("layer_count", c.c_uint32), ("layers", c.c_void_p),
                ("extension_count", c.c_uint32), ("extensions", c.POINTER(c.c_char_p))]

found = {"loader": False, "devices": [], "layers": []}
vk = load()
if vk:
    found["loader"] = True
    count = c.c_uint32()
    vk.vkEnumerateInstanceLayerProperties(c.byref(count), None)
    layers = c.create_string_buffer(520 * count.value)  # sizeof(VkLayerProperties)
    vk.vkEnumerateInstanceLayerProperties(c.byref(count), layers)
    for i in range(count.value):
        found["layers"].append(layers.raw[520 * i:][:256].split(b"\0")[0].decode())
    info = InstanceInfo(s_type=1)
    if sys.platform == "darwin":  # MoltenVK is a portability driver: it must be asked for
        info.flags, info.extension_count = 1, 1
        info.extensions = (c.c_char_p * 1)(b"VK_KHR_portability_enumeration")
    instance = c.c_void_p()
    if vk.vkCreateInstance(c.byref(info), None, c.byref(instance)) == 0:
        vk.vkEnumeratePhysicalDevices(instance, c.byref(count), None)
        devices = (c.c_void_p * count.value)()
        vk.vkEnumeratePhysicalDevices(instance, c.byref(count), devices)
        for device in devices:
            raw = c.create_string_buffer(4096)  # VkPhysicalDeviceProperties, with room to spare
            vk.vkGetPhysicalDeviceProperties(c.c_void_p(device), raw)
            kind = int.from_bytes(raw.raw[16:20], sys.byteorder)
            name = raw.raw[20:276].split(b"\0")[0].decode(errors="replace")
            found["devices"].append([name, TYPES[kind] if kind < len(TYPES) else "other"])
print(json.dumps(found))
"""


def probe_vulkan(env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return Vulkan's state: {"loader": bool, "devices": [[name, type]], "layers": [name]}."""
    nothing = {"loader": False, "devices": [], "layers": []}
    try:
        asked = subprocess.run(
            [sys.executable, "-c", PROBE],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"the Vulkan driver did not answer for {PATIENCE_S} s")
        return nothing
    if asked.returncode:
        say(f"the Vulkan driver failed (status {asked.returncode}): {asked.stderr.strip()[-300:]}")
        return nothing
    # A driver may write to the standard output too: the answer is the last line.
    answer: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return answer


def vulkan_hint() -> str:
    """Return the command that installs a Vulkan driver on a system like this."""
    for tool, command in NO_VULKAN_HINT.items():
        if shutil.which(tool):
            return f"{command}    (a software driver; for a GPU, its vendor's driver)"
    return "install the driver of your GPU's vendor: it brings Vulkan"


def ensure_vulkan() -> bool:
    """Find a Vulkan device, or install Mesa's drivers; return False, with advice, without one."""
    found = probe_vulkan()
    if not found["devices"] and apt.install(["libvulkan1", "mesa-vulkan-drivers"]):
        found = probe_vulkan()
    for name, kind in found["devices"]:
        say(f"Vulkan device: {name} ({kind})")
    if found["devices"]:
        return True
    say("no Vulkan device: " + ("no driver" if found["loader"] else "no loader (libvulkan)"))
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        if variable in os.environ:
            say(f"{variable}={os.environ[variable]} decides which drivers are seen")
    say(f"to get one:  {vulkan_hint()}")
    return False


def ensure_loader() -> None:
    """Find the Vulkan loader, or install it: a driver that is fetched beside the system needs it.

    Raises:
        CannotError: there is none, and none can be installed.
    """
    if not probe_vulkan()["loader"] and not apt.install(["libvulkan1"]):
        raise CannotError(f"no Vulkan loader; to get one:  {vulkan_hint()}")


def ensure_validation() -> bool:
    """Find the Khronos validation layer, or install it; False, with the loss said, without it."""
    if VALIDATION_LAYER in probe_vulkan()["layers"]:
        return True
    if apt.install(["vulkan-validationlayers"]) and VALIDATION_LAYER in probe_vulkan()["layers"]:
        return True
    say("no Khronos validation layer (package vulkan-validationlayers): its tests are skipped")
    return False


def ensure_spirv_val() -> bool:
    """Find spirv-val, or install it; False, with the loss said, without it."""
    if shutil.which("spirv-val") or (apt.install(["spirv-tools"]) and shutil.which("spirv-val")):
        return True
    say("no spirv-val (package spirv-tools): the test that validates the shaders is skipped")
    return False
