"""The Vulkan runtime: devices, memory, pipelines, recording. It knows nothing of operators."""

from __future__ import annotations

from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.runtime.device_info import CooperativeMatrixShape, DeviceInfo, DeviceType, Limits
from vkmnn.runtime.memory import Buffer, BufferRange, Image, MemoryKind
from vkmnn.runtime.memory_plan import Lifetime, plan_buffers, plan_offsets
from vkmnn.runtime.pipeline import Pipeline
from vkmnn.runtime.recorder import CommandBuffer, CommandRecorder, linear_groups
from vkmnn.runtime.shader import BindingType, Shader, ShaderBinding, SpecConstant

__all__ = [
    "BindingType",
    "Buffer",
    "BufferRange",
    "CommandBuffer",
    "CommandRecorder",
    "CooperativeMatrixShape",
    "Device",
    "DeviceInfo",
    "DeviceType",
    "Image",
    "Lifetime",
    "Limits",
    "MemoryKind",
    "Pipeline",
    "Shader",
    "ShaderBinding",
    "SpecConstant",
    "enumerate_devices",
    "linear_groups",
    "open_device",
    "plan_buffers",
    "plan_offsets",
]
