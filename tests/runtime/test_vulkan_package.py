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
