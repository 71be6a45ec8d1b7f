"""The types of the package `vulkan` are loaded without the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vkmnn.runtime.device import enumerate_devices

ROOT = Path(__file__).resolve().parents[2]

ALONE = """
import sys
from vkmnn.runtime.drivers.vulkan.api import ffi, lib
assert "vulkan" not in sys.modules
import vulkan
assert vulkan.ffi is ffi, "what others get has the same types"
"""
SECOND = """
import sys
import vulkan
from vkmnn.runtime.drivers.vulkan.api import ffi, lib
assert ffi is vulkan.ffi and lib is vulkan.lib
"""
ANOTHER_BUILD = """
import sys
from vkmnn.runtime.drivers.vulkan import package
package._TYPES = "vulkan.elsewhere"
from vkmnn.runtime.drivers.vulkan.api import ffi, lib
assert ffi is sys.modules["vulkan"].ffi
"""
MISSING = """
import sys
sys.modules["vulkan"] = None
from vkmnn.runtime.drivers import DriverUnavailableError
try:
    import vkmnn.runtime.drivers.vulkan.api
except DriverUnavailableError as error:
    assert "cannot be imported" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize("code", [ALONE, SECOND, ANOTHER_BUILD, MISSING])
def test_in_a_process_of_its_own(code: str) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("system", "found", "tried"),
    [
        ("win32", "vulkan-1.dll", ["vulkan-1.dll"]),
        ("linux", "libvulkan.so", ["libvulkan.so.1", "libvulkan.so"]),
        ("darwin", "libvulkan.dylib", ["libvulkan.dylib"]),
        (
            "darwin",
            "/opt/homebrew/lib/libvulkan.dylib",
            ["libvulkan.dylib", "/sdk/lib/libvulkan.dylib", "/opt/homebrew/lib/libvulkan.dylib"],
        ),
        ("darwin", "/usr/local/lib/libMoltenVK.dylib", None),
    ],
)
def test_the_loader_is_looked_for_where_systems_have_it(
    system: str, found: str, tried: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vkmnn.runtime.drivers.vulkan import package

    names = []

    class Types:
        def dlopen(self, name: str) -> str:
            names.append(name)
            if name != found:
                raise OSError(name)
            return name

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setenv("VULKAN_SDK", "/sdk")
    monkeypatch.setattr(package, "_types", Types)
    monkeypatch.delitem(sys.modules, "vulkan", raising=False)
    _, library = package.raw_vulkan()
    assert library == found
    assert tried in (None, names)
