"""The package `kp`: guarded import, self test, and error translation."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import numpy as np

from vkmnn.errors import DeviceError, DeviceLostError, OutOfDeviceMemoryError, page
from vkmnn.runtime.drivers.base import DriverUnavailableError

VERSION = "0.9"
BUILD_HINT = (
    "build it anew: `python3 tasks.py kompute` in a checkout of vkmnn, or by hand as "
    f"{page('kompute')} says; the driver 'vulkan' needs no such thing"
)

_OUT_OF_MEMORY = ("OutOfDeviceMemory", "OutOfHostMemory", "OutOfPoolMemory", "MemoryMapFailed")


def load() -> Any:
    """Import `kp`.

    Raises:
        DriverUnavailableError: it is not installed, cannot be imported, or is another version.
    """
    root = logging.getLogger()
    handlers = root.handlers[:]
    try:
        kp = importlib.import_module("kp")
    except ImportError as error:
        raise DriverUnavailableError(
            f"the Python package 'kp' (Kompute) cannot be imported: {error}", BUILD_HINT
        ) from error
    finally:
        root.handlers[:] = handlers  # kp calls logging.basicConfig()
    version = str(getattr(kp, "__version__", "unknown"))
    if version.split(".")[:2] != VERSION.split("."):
        raise DriverUnavailableError(
            f"the package 'kp' is version {version}; the driver needs {VERSION}", BUILD_HINT
        )
    return kp


def check_build(kp: Any, manager: Any) -> None:
    """Check that tensors keep the values written to them.

    They do not, without any error, if kp was compiled against a pybind11 older than 2.12, which
    does not support numpy 2's arrays.

    Raises:
        DriverUnavailableError: they hold other values.
    """
    sent = np.arange(1, 68, dtype=np.uint32) * np.uint32(0x01020408)
    try:
        tensor = manager.tensor_t(sent, kp.TensorTypes.host)
        got = np.array(tensor.data())
        tensor.destroy()
        right = got.dtype == sent.dtype and np.array_equal(got, sent)
    except (RuntimeError, TypeError, ValueError) as error:
        raise DriverUnavailableError(
            f"the package 'kp' fails its self test: {error}", BUILD_HINT
        ) from error
    if not right:
        raise DriverUnavailableError(
            "the package 'kp' computes with wrong data: it was built with a pybind11 that does "
            f"not know numpy {np.__version__}",
            BUILD_HINT,
        )


def translated(error: RuntimeError, doing: str) -> DeviceError:
    """Convert an exception that kp raised while `doing` something to a typed error."""
    text = f"{doing} failed: {error}"
    if "DeviceLost" in str(error):
        return DeviceLostError(
            text, hint="the driver reset the device: open it again and rebuild the session"
        )
    if any(word in str(error) for word in _OUT_OF_MEMORY):
        return OutOfDeviceMemoryError(
            text, hint="close other programs that use the device, or run a smaller batch"
        )
    return DeviceError(text, hint="try the driver 'vulkan' (VKMNN_DRIVER=vulkan)")
