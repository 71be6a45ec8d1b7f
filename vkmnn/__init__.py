"""vkmnn runs neural networks on any Vulkan device, from Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vkmnn._version import __version__ as __version__
from vkmnn.errors import (
    BudgetError,
    ConversionError,
    DeviceError,
    DeviceLostError,
    DeviceNotFoundError,
    Float16OverflowError,
    HostError,
    IntegerRangeError,
    InvalidInputError,
    MissingExtraError,
    ModelError,
    ModelFileError,
    OutOfDeviceMemoryError,
    OutOfHostMemoryError,
    PlacementError,
    PluginError,
    ShaderError,
    ShapeError,
    StateLostError,
    UnsupportedOpError,
    ValidationLayerError,
    VkmnnError,
)

if TYPE_CHECKING:
    from vkmnn import llm as llm
    from vkmnn import ray as ray
    from vkmnn import torch as torch
    from vkmnn.base.budget import Budget
    from vkmnn.batch import SessionPool
    from vkmnn.comparison import Comparison, compare
    from vkmnn.core.bound_run import BoundRun
    from vkmnn.core.device_tensor import DeviceTensor
    from vkmnn.core.futures import RunFuture
    from vkmnn.core.profile import Profile
    from vkmnn.core.watched import Decision, OpCall
    from vkmnn.decoding.session_state import SessionState
    from vkmnn.discovery import Plugin, load_plugin
    from vkmnn.inference_session import InferenceSession, NodeArg
    from vkmnn.interpreter import (
        Interpreter,
        Session,
        SessionInfo,
        SessionModes,
        SessionStatus,
        SessionTensor,
    )
    from vkmnn.model import Model, load
    from vkmnn.opening.saving import convert
    from vkmnn.pipelines import pipeline
    from vkmnn.runtime.device_info import DeviceInfo
    from vkmnn.schedule_config import NetworkPath, PathNames
    from vkmnn.shader_function import ShaderFunction, shader

__all__ = [
    "BoundRun",
    "Budget",
    "BudgetError",
    "Comparison",
    "ConversionError",
    "Decision",
    "DeviceError",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceNotFoundError",
    "DeviceTensor",
    "Float16OverflowError",
    "HostError",
    "InferenceSession",
    "IntegerRangeError",
    "Interpreter",
    "InvalidInputError",
    "MissingExtraError",
    "Model",
    "ModelError",
    "ModelFileError",
    "NetworkPath",
    "NodeArg",
    "OpCall",
    "OutOfDeviceMemoryError",
    "OutOfHostMemoryError",
    "PathNames",
    "PlacementError",
    "Plugin",
    "PluginError",
    "Profile",
    "RunFuture",
    "ScheduleConfig",
    "Session",
    "SessionInfo",
    "SessionModes",
    "SessionPool",
    "SessionState",
    "SessionStatus",
    "SessionTensor",
    "ShaderError",
    "ShaderFunction",
    "ShapeError",
    "StateLostError",
    "UnsupportedOpError",
    "ValidationLayerError",
    "VkmnnError",
    "compare",
    "convert",
    "devices",
    "load",
    "load_plugin",
    "pipeline",
    "quantize",
    "shader",
]

# The engine is imported when one of its names is first used: tools that need only part of the
# package, such as the shader generator, start without it.
_LAZY = {
    "PathNames": "vkmnn.schedule_config",
    "NetworkPath": "vkmnn.schedule_config",
    "SessionStatus": "vkmnn.interpreter",
    "SessionModes": "vkmnn.interpreter",
    "SessionInfo": "vkmnn.interpreter",
    "BoundRun": "vkmnn.core.bound_run",
    "Budget": "vkmnn.base.budget",
    "Comparison": "vkmnn.comparison",
    "Decision": "vkmnn.core.watched",
    "DeviceInfo": "vkmnn.runtime.device_info",
    "DeviceTensor": "vkmnn.core.device_tensor",
    "InferenceSession": "vkmnn.inference_session",
    "Interpreter": "vkmnn.interpreter",
    "Model": "vkmnn.model",
    "NodeArg": "vkmnn.inference_session",
    "OpCall": "vkmnn.core.watched",
    "Plugin": "vkmnn.discovery",
    "Profile": "vkmnn.core.profile",
    "RunFuture": "vkmnn.core.futures",
    "ScheduleConfig": "vkmnn.schedule_config",
    "Session": "vkmnn.interpreter",
    "SessionPool": "vkmnn.batch",
    "SessionState": "vkmnn.decoding.session_state",
    "SessionTensor": "vkmnn.interpreter",
    "ShaderFunction": "vkmnn.shader_function",
    "compare": "vkmnn.comparison",
    "convert": "vkmnn.opening.saving",
    "quantize": "vkmnn.quantization",
    "load": "vkmnn.model",
    "load_plugin": "vkmnn.discovery",
    "pipeline": "vkmnn.pipelines",
    "shader": "vkmnn.shader_function",
}

_FACES = ("llm", "mnn", "onnxruntime", "ray", "torch")
"""Modules that are imported when they are first used."""


def devices(driver: str | None = None) -> list[DeviceInfo]:
    """List the Vulkan devices that a session can use; `device="cpu"` always works as well.

    Args:
        driver: the Vulkan binding; None uses `VKMNN_DRIVER` or the default.

    Returns:
        An empty list without a Vulkan loader or driver; `vkmnn doctor` tells what to install.
    """
    from vkmnn.runtime.device import enumerate_devices

    return enumerate_devices(driver)


def __getattr__(name: str) -> Any:
    """Import a name of the engine on first use (PEP 562)."""
    if name in _FACES:
        return importlib.import_module(f"vkmnn.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, *_FACES, *__all__})
