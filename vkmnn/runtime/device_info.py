"""Properties of a device that are known before it is opened: identity, features and limits."""

from __future__ import annotations

import enum
from typing import Literal

from vkmnn.base.records import dataclass

Priority = Literal["low", "normal", "high"]
"""Priority of the device's work among all programs that use it."""


class DeviceType(enum.Enum):
    """Kind of a device, in the order in which "auto" prefers them."""

    DISCRETE = "discrete"
    INTEGRATED = "integrated"
    VIRTUAL = "virtual"
    OTHER = "other"
    CPU = "cpu"

    @property
    def rank(self) -> int:
        """Position in the order of preference; 0 is best."""
        return list(DeviceType).index(self)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that decide whether a kernel may run; sizes in bytes, grids in workgroups.

    `storage_offset_alignment` and `texel_offset_alignment` apply to the offset of every bound
    range. `subgroup_size_range` is the (smallest, largest) size that a pipeline may require; both
    equal the device's subgroup size if it cannot be chosen. `timestamp_period_ns` is the length of
    one tick, 0 if the queue has no timestamps. `whole_buffers` says that the driver binds a buffer
    only as a whole: the ranges of a dispatch must begin at 0, and the length of an array in the
    shader is that of the buffer. `max_image_dimension` bounds width and height of 2-D images.
    """

    max_storage_buffer_range: int
    max_texel_buffer_elements: int
    max_push_constants: int
    max_workgroup_count: tuple[int, int, int]
    max_workgroup_size: tuple[int, int, int]
    max_workgroup_invocations: int
    max_shared_memory: int
    max_storage_bindings: int
    max_texel_bindings: int
    max_bindings: int
    max_allocation_bytes: int
    max_allocation_count: int
    storage_offset_alignment: int
    texel_offset_alignment: int
    non_coherent_atom_size: int
    subgroup_size_range: tuple[int, int]
    timestamp_period_ns: float
    whole_buffers: bool = False
    max_image_dimension: int = 4096


@dataclass(frozen=True, slots=True)
class CooperativeMatrixShape:
    """One product supported by cooperative matrices: A (M x K) * B (K x N) + C.

    Types are named as in shaders ("f16", "bf16", "f32", "i8", "u8", "i32", ...); `scope` is
    "subgroup", "workgroup" or another scope of the SPIR-V specification.
    """

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str
    scope: str
    saturating: bool


class MemoryFlag(enum.IntFlag):
    """Properties of a memory type, with Vulkan's numbers (VkMemoryPropertyFlagBits)."""

    DEVICE_LOCAL = 1
    HOST_VISIBLE = 2
    HOST_COHERENT = 4
    HOST_CACHED = 8


@dataclass(frozen=True, slots=True)
class MemoryType:
    """One memory type: its index in the driver's list and its `MemoryFlag` bits.

    Types with the same `heap` share its `heap_bytes`.
    """

    index: int
    flags: int
    heap: int
    heap_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Identity, features and limits of one device.

    `features` holds only features that `open_device` really enables; the names are listed in
    `drivers/vulkan/tables.py`. `memory_bytes` is the size of the largest device-local heap.
    `multiprocessors` is the number of workgroups that run without sharing one, 0 if unknown.
    `device_profile` names the emulated device, empty without emulation.
    """

    index: int
    name: str
    vendor_id: int
    vendor: str
    device_id: int
    driver_name: str
    driver_version: str
    api_version: tuple[int, int, int]
    type: DeviceType
    uuid: str
    driver_uuid: str
    memory_bytes: int
    subgroup_size: int
    features: frozenset[str]
    limits: Limits
    cooperative_matrices: tuple[CooperativeMatrixShape, ...] = ()
    driver: str = "vulkan"
    multiprocessors: int = 0
    memory_types: tuple[MemoryType, ...] = ()
    device_profile: str = ""

    def __repr__(self) -> str:
        """Return a short readable description; `vkmnn devices --json` shows all properties."""
        profile = f", as {self.device_profile}" if self.device_profile else ""
        return f"<vkmnn.DeviceInfo {self.index}: {self.name} ({self.type.value}{profile})>"
