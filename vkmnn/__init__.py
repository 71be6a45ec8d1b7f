"""vkmnn runs neural networks on any Vulkan device, from Python."""

from vkmnn.errors import (
    ConversionError,
    DeviceError,
    DeviceLostError,
    DeviceNotFoundError,
    InvalidInputError,
    ModelError,
    OutOfDeviceMemoryError,
    PlacementError,
    PluginError,
    ShaderError,
    ShapeError,
    UnsupportedOpError,
    ValidationLayerError,
    VkmnnError,
)
from vkmnn.inference_session import InferenceSession, NodeArg
from vkmnn.interpreter import Interpreter, ScheduleConfig, Session, SessionTensor

__version__ = "0.1.0"

__all__ = [
    "ConversionError",
    "DeviceError",
    "DeviceLostError",
    "DeviceNotFoundError",
    "InferenceSession",
    "Interpreter",
    "InvalidInputError",
    "ModelError",
    "NodeArg",
    "OutOfDeviceMemoryError",
    "PlacementError",
    "PluginError",
    "ScheduleConfig",
    "Session",
    "SessionTensor",
    "ShaderError",
    "ShapeError",
    "UnsupportedOpError",
    "ValidationLayerError",
    "VkmnnError",
]
