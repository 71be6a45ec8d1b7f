"""onnxruntime's Python API on any Vulkan device.

    import vkmnn.onnxruntime as ort

    session = ort.InferenceSession("model.onnx", providers=["VulkanExecutionProvider"])
    (y,) = session.run(None, {"x": x})

`python -m vkmnn.onnxruntime app.py` runs a program that imports onnxruntime itself. The differences
are in docs/coming-from-onnxruntime.md.
"""

from __future__ import annotations

import logging
from typing import NoReturn

from vkmnn import _version
from vkmnn.errors import page
from vkmnn.onnxruntime.binding import IOBinding
from vkmnn.onnxruntime.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtMemType,
)
from vkmnn.onnxruntime.errors import Fail
from vkmnn.onnxruntime.options import RunOptions, SessionOptions
from vkmnn.onnxruntime.providers import get_all_providers, get_available_providers, get_device
from vkmnn.onnxruntime.session import InferenceSession, ModelMetadata, NodeArg, Session
from vkmnn.onnxruntime.values import OrtDevice, OrtValue

__version__ = "1.32.0"  # of the onnxruntime whose calls these are
version = __version__
package_name = "vkmnn"

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "RunOptions",
    "Session",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_version_string() -> str:
    """Return the version of onnxruntime whose calls these are."""
    return __version__


def get_build_info() -> str:
    """Return the build information of vkmnn."""
    return f"vkmnn {_version.__version__}, with the API of onnxruntime {__version__}"


def set_default_logger_severity(severity: int) -> None:
    """Set vkmnn's log level: 0 everything, 1 information, 2 warnings, 3 errors, 4 fatal errors.

    Raises:
        RuntimeError: none of these.
    """
    if not 0 <= severity < len(_LEVELS):
        raise RuntimeError(
            "Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal"
        )
    logging.getLogger("vkmnn").setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: there is one level of detail."""


def set_seed(seed: int) -> None:
    """Do nothing: no operator of vkmnn draws random numbers."""


def set_global_thread_pool_sizes(intra_op: int, inter_op: int) -> None:
    """Do nothing: the device schedules itself."""


def preload_dlls(*arguments: object, **options: object) -> None:
    """Do nothing: there is nothing of CUDA to load."""


def print_debug_info() -> None:
    """Print the report of `vkmnn doctor`."""
    from vkmnn.runtime.device import enumerate_devices

    lines = [get_build_info(), *(f"device {d.index}: {d.name}" for d in enumerate_devices(None))]
    print("\n".join(lines))  # noqa: T201 - this is what the caller asks for


def disable_telemetry_events() -> None:
    """Do nothing: vkmnn sends nothing anywhere."""


def enable_telemetry_events() -> None:
    """Do nothing: vkmnn sends nothing anywhere."""


def has_collective_ops() -> bool:
    """Return False."""
    return False


def get_ep_devices() -> list[object]:
    """Return an empty list: there are no plug-in providers; `vkmnn.devices()` lists devices."""
    return []


def register_execution_provider_library(name: str, path: str) -> NoReturn:
    """Unsupported: the library is built for onnxruntime.

    Raises:
        Fail: always.
    """
    raise Fail(f"Failed to load library {path} with error: it is a provider of onnxruntime")


def __getattr__(name: str) -> NoReturn:
    """Raise for a missing name, with a hint on the alternative."""
    raise AttributeError(
        f"module 'vkmnn.onnxruntime' has no attribute '{name}': it covers running models only; see "
        f"{page('coming-from-onnxruntime')}"
    )
