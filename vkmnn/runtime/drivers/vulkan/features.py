"""Features and limits of a physical device, read through `pNext` chains.

`tables.py` lists them.
"""

from __future__ import annotations

import struct as pystruct
import uuid
from collections.abc import Iterable
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import (
    CooperativeMatrixShape,
    DeviceInfo,
    DeviceType,
    Limits,
    MemoryType,
)
from vkmnn.runtime.drivers.vulkan.api import NULL, address, enumerate_array, ffi, lib, struct
from vkmnn.runtime.drivers.vulkan.tables import (
    COMPONENT_TYPES,
    CORE_FEATURES,
    FEATURE_STRUCTS,
    SCOPES,
    SPIRV_VERSIONS,
    SUBGROUP_OPERATIONS,
    TEXEL_FORMATS,
    VENDORS,
    FeatureStruct,
    Version,
)
from vkmnn.runtime.shader import IMAGE_FORMATS

_TYPES = {
    0: DeviceType.OTHER,
    1: DeviceType.INTEGRATED,
    2: DeviceType.DISCRETE,
    3: DeviceType.VIRTUAL,
    4: DeviceType.CPU,
}
_CPU = 4
_DEVICE_LOCAL = 1
_COMPUTE_STAGE = 0x20
_QUEUE_GRAPHICS, _QUEUE_COMPUTE = 1, 2
_STORAGE_TEXEL_BUFFER = 0x10  # VK_FORMAT_FEATURE_STORAGE_TEXEL_BUFFER_BIT
_IMAGE_USES = 0x1 | 0x2 | 0x4000 | 0x8000  # SAMPLED_IMAGE, STORAGE_IMAGE, TRANSFER_SRC and _DST


HOST_MEMORY = "VK_EXT_external_memory_host"
GLOBAL_PRIORITY = ("VK_KHR_global_priority", "VK_EXT_global_priority")
"""Two names of the same extension, the newer one first."""


@dataclass(slots=True)
class FeatureChain:
    """The VkPhysicalDeviceFeatures2 chain and the extensions for VkDeviceCreateInfo."""

    head: Any
    keep: list[Any]
    extensions: list[str]


@dataclass(slots=True)
class PhysicalDevice:
    """A physical device of one instance, with the data that opening it needs."""

    handle: Any
    info: DeviceInfo
    extensions: frozenset[str]
    queue_family: int
    timestamp_bits: int

    def enable(self, disabled: frozenset[str]) -> FeatureChain:
        """Build the chain that enables every feature of `info` except those `disabled`."""
        wanted = self.info.features - disabled
        version = self.info.api_version[:2]
        head = struct("VkPhysicalDeviceFeatures2", lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
        for member, name in CORE_FEATURES.items():
            setattr(head.features, member, name in wanted)
        # Software devices check bounds anyway; on GPUs the checks cost time.
        if self.info.type is DeviceType.CPU:
            head.features.robustBufferAccess = 1
        keep, extensions = [], []
        for row in _usable(version, self.extensions):
            values = [name in wanted for name in row.members.values()]
            if any(values):
                blob = _blob(row, values, head.pNext)
                head.pNext = blob
                keep.append(blob)
                if not _core(version, row.core):
                    extensions.append(row.extension)
        for name, (core, extension) in SPIRV_VERSIONS.items():
            if extension and name in wanted and not _core(version, core):
                extensions += [extension, "VK_KHR_shader_float_controls"]
        if "file_memory" in wanted:
            extensions.append(HOST_MEMORY)
        if "queue_priority" in wanted:
            extensions += [name for name in GLOBAL_PRIORITY if name in self.extensions][:1]
        # The specification requires this one to be enabled if it is available.
        if "VK_KHR_portability_subset" in self.extensions:
            extensions.append("VK_KHR_portability_subset")
        return FeatureChain(head, keep, extensions)


def fast_dots(dots: Any) -> set[str]:
    """Return which dot products of four bytes each a device has instructions for."""
    fast = {
        "integer_dot_accelerated": dots.integerDotProduct4x8BitPackedSignedAccelerated,
        "integer_dot_mixed_accelerated": (
            dots.integerDotProduct4x8BitPackedMixedSignednessAccelerated
        ),
    }
    return {name for name, present in fast.items() if present}


def query(instance: Any, handle: Any, index: int) -> PhysicalDevice | None:
    """Query a physical device; None if it has no Vulkan 1.1 or no compute."""
    plain = ffi.new("VkPhysicalDeviceProperties *")
    lib.vkGetPhysicalDeviceProperties(handle, plain)
    raw = plain.apiVersion
    version = (raw >> 22 & 0x7F, raw >> 12 & 0x3FF, raw & 0xFFF)
    family = _queue_family(handle)
    if version < (1, 1) or family is None:
        return None
    extensions = frozenset(
        ffi.string(item.extensionName).decode()
        for item in enumerate_array(
            "VkExtensionProperties", lib.vkEnumerateDeviceExtensionProperties, handle, NULL
        )
    )
    core = version[:2]
    properties = _properties(handle, core, extensions)
    limits = properties.base.limits
    queue_family, timestamp_bits = family
    features = _features(handle, core, extensions)
    if properties.subgroup.supportedStages & _COMPUTE_STAGE:
        operations = properties.subgroup.supportedOperations
        features |= {name for bit, name in SUBGROUP_OPERATIONS.items() if operations & bit}
    features |= _texel_features(handle)
    if "integer_dot" in features:
        features |= fast_dots(properties.dots)
    if timestamp_bits and limits.timestampPeriod:
        features.add("timestamps")
    # Others would read files through the bus, or refuse memory that they cannot write.
    if HOST_MEMORY in extensions and properties.base.deviceType == _CPU:
        features.add("file_memory")
    if not extensions.isdisjoint(GLOBAL_PRIORITY):
        features.add("queue_priority")
    size = properties.subgroup.subgroupSize
    controlled = "subgroup_size_control" in features
    size_control = properties.size_control
    required = size_control.requiredSubgroupSizeStages & _COMPUTE_STAGE
    # Where there is one size only, as on Windows with AMD's driver, every shader has it.
    only = size_control.minSubgroupSize == size_control.maxSubgroupSize == size
    if controlled and not required and not only:
        features.discard("subgroup_size_control")
        controlled = False
    base = properties.base
    driver_info = _text(properties.driver.driverInfo)
    memory_bytes, memory_types = _memory(handle)
    info = DeviceInfo(
        index=index,
        name=_text(base.deviceName),
        vendor_id=base.vendorID,
        vendor=VENDORS.get(base.vendorID, f"0x{base.vendorID:04X}"),
        device_id=base.deviceID,
        driver_name=_text(properties.driver.driverName),
        driver_version=driver_info or _driver_version(base.vendorID, base.driverVersion),
        api_version=version,
        type=_TYPES.get(base.deviceType, DeviceType.OTHER),
        uuid=str(uuid.UUID(bytes=bytes(ffi.buffer(properties.ids.deviceUUID)))),
        driver_uuid=str(uuid.UUID(bytes=bytes(ffi.buffer(properties.ids.driverUUID)))),
        memory_bytes=memory_bytes,
        subgroup_size=size,
        features=frozenset(features),
        limits=Limits(
            max_storage_buffer_range=limits.maxStorageBufferRange,
            max_texel_buffer_elements=limits.maxTexelBufferElements,
            max_image_dimension=limits.maxImageDimension2D,
            max_push_constants=limits.maxPushConstantsSize,
            max_workgroup_count=tuple(limits.maxComputeWorkGroupCount),
            max_workgroup_size=tuple(limits.maxComputeWorkGroupSize),
            max_workgroup_invocations=limits.maxComputeWorkGroupInvocations,
            max_shared_memory=limits.maxComputeSharedMemorySize,
            max_storage_bindings=min(
                limits.maxPerStageDescriptorStorageBuffers, limits.maxDescriptorSetStorageBuffers
            ),
            max_texel_bindings=min(
                limits.maxPerStageDescriptorStorageImages, limits.maxDescriptorSetStorageImages
            ),
            max_bindings=limits.maxPerStageResources,
            max_allocation_bytes=properties.maintenance3.maxMemoryAllocationSize,
            max_allocation_count=limits.maxMemoryAllocationCount,
            storage_offset_alignment=limits.minStorageBufferOffsetAlignment,
            texel_offset_alignment=limits.minTexelBufferOffsetAlignment,
            non_coherent_atom_size=limits.nonCoherentAtomSize,
            subgroup_size_range=(size_control.minSubgroupSize, size_control.maxSubgroupSize)
            if controlled
            else (size, size),
            timestamp_period_ns=limits.timestampPeriod if timestamp_bits else 0.0,
        ),
        cooperative_matrices=_cooperative_matrices(instance, handle)
        if "cooperative_matrix" in features
        else (),
        multiprocessors=properties.multiprocessors,
        memory_types=memory_types,
    )
    return PhysicalDevice(handle, info, extensions, queue_family, timestamp_bits)


# Sources of the number of multiprocessors: structure without its prefix, type, extension.
CORE_COUNTS = (
    (
        "ShaderSMBuiltinsPropertiesNV",
        lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV,
        "VK_NV_shader_sm_builtins",
    ),
    (
        "ShaderCorePropertiesAMD",
        lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD,
        "VK_AMD_shader_core_properties",
    ),
    (
        "ShaderCoreBuiltinsPropertiesARM",
        lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM,
        "VK_ARM_shader_core_builtins",
    ),
)


@dataclass(slots=True)
class _Properties:
    base: Any
    subgroup: Any
    ids: Any
    maintenance3: Any
    driver: Any
    size_control: Any
    dots: Any
    nvidia: Any
    amd: Any
    arm: Any

    @property
    def multiprocessors(self) -> int:
        """Return the number of multiprocessors; 0 if the driver does not report it."""
        amd = self.amd
        units = amd.shaderEngineCount * amd.shaderArraysPerEngineCount
        units *= amd.computeUnitsPerShaderArray
        return int(self.nvidia.shaderSMCount or units or self.arm.shaderCoreCount)


def _properties(handle: Any, version: Version, extensions: frozenset[str]) -> _Properties:
    head = struct("VkPhysicalDeviceProperties2", lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2)

    def chained(name: str, stype: int, core: Version | None, extension: str = "") -> Any:
        result = struct(name, stype)
        if _core(version, core) or extension in extensions:
            result.pNext = head.pNext
            head.pNext = result
        return result

    result = _Properties(
        head.properties,
        chained(
            "VkPhysicalDeviceSubgroupProperties",
            lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES,
            (1, 1),
        ),
        chained(
            "VkPhysicalDeviceIDProperties",
            lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES,
            (1, 1),
        ),
        chained(
            "VkPhysicalDeviceMaintenance3Properties",
            lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES,
            (1, 1),
        ),
        chained(
            "VkPhysicalDeviceDriverProperties",
            lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES,
            (1, 2),
            "VK_KHR_driver_properties",
        ),
        chained(
            "VkPhysicalDeviceSubgroupSizeControlProperties",
            lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES,
            (1, 3),
            "VK_EXT_subgroup_size_control",
        ),
        chained(
            "VkPhysicalDeviceShaderIntegerDotProductProperties",
            lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES,
            (1, 3),
            "VK_KHR_shader_integer_dot_product",
        ),
        *(
            chained(f"VkPhysicalDevice{name}", stype, None, extension)
            for name, stype, extension in CORE_COUNTS
        ),
    )
    lib.vkGetPhysicalDeviceProperties2(handle, head)
    # head.properties is a view into `head`: copied so that it outlives this function.
    result.base = ffi.new("VkPhysicalDeviceProperties *", head.properties)
    return result


def _core(version: Version, core: Version | None) -> bool:
    return core is not None and version >= core


def _usable(version: Version, extensions: frozenset[str]) -> Iterable[FeatureStruct]:
    return (
        row for row in FEATURE_STRUCTS if _core(version, row.core) or row.extension in extensions
    )


def _blob(row: FeatureStruct, values: list[bool], next_pointer: Any) -> Any:
    """Lay out a feature structure in the C ABI of a 64-bit platform, padded to 8 bytes."""
    data = pystruct.pack(
        f"=iiQ{len(values)}I", row.stype, 0, address(next_pointer), *map(int, values)
    )
    data += bytes(-len(data) % 8)
    return ffi.new("uint64_t[]", list(pystruct.unpack(f"={len(data) // 8}Q", data)))


def _features(handle: Any, version: Version, extensions: frozenset[str]) -> set[str]:
    head = struct("VkPhysicalDeviceFeatures2", lib.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
    blobs = []
    for row in _usable(version, extensions):
        blob = _blob(row, [False] * len(row.members), head.pNext)
        head.pNext = blob
        blobs.append((row, blob))
    lib.vkGetPhysicalDeviceFeatures2(handle, head)
    found = {name for member, name in CORE_FEATURES.items() if getattr(head.features, member)}
    for row, blob in blobs:
        values = pystruct.unpack_from(f"={len(row.members)}I", ffi.buffer(blob), 16)
        pairs = zip(row.members.values(), values, strict=True)
        found |= {name for name, value in pairs if name and value}
    for name, (core, extension) in SPIRV_VERSIONS.items():
        if _core(version, core) or extension in extensions:
            found.add(name)
    return found


def _texel_features(handle: Any) -> set[str]:
    found: set[str] = set()
    usable = True
    properties = ffi.new("VkFormatProperties *")
    for name, vk_format in TEXEL_FORMATS.items():
        lib.vkGetPhysicalDeviceFormatProperties(handle, vk_format, properties)
        if properties.bufferFeatures & _STORAGE_TEXEL_BUFFER:
            found.add(f"texel_{name}")
        if name in IMAGE_FORMATS:
            usable &= properties.optimalTilingFeatures & _IMAGE_USES == _IMAGE_USES
    return found | ({"images"} if usable else set())


def _queue_family(handle: Any) -> tuple[int, int] | None:
    """Return (index, timestamp bits) of the family to use: compute without graphics first."""
    families = enumerate_array(
        "VkQueueFamilyProperties", lib.vkGetPhysicalDeviceQueueFamilyProperties, handle
    )
    candidates = [
        (bool(family.queueFlags & _QUEUE_GRAPHICS), index, family.timestampValidBits)
        for index, family in enumerate(families)
        if family.queueFlags & _QUEUE_COMPUTE
    ]
    if not candidates:
        return None
    _graphics, index, bits = min(candidates)
    return index, bits


def _memory(handle: Any) -> tuple[int, tuple[MemoryType, ...]]:
    """Return the bytes of the largest device-local heap, and every memory type."""
    memory = ffi.new("VkPhysicalDeviceMemoryProperties *")
    lib.vkGetPhysicalDeviceMemoryProperties(handle, memory)
    heaps = [memory.memoryHeaps[i] for i in range(memory.memoryHeapCount)]
    largest = max((heap.size for heap in heaps if heap.flags & _DEVICE_LOCAL), default=0)
    types = [memory.memoryTypes[i] for i in range(memory.memoryTypeCount)]
    return largest, tuple(
        MemoryType(index, item.propertyFlags, item.heapIndex, heaps[item.heapIndex].size)
        for index, item in enumerate(types)
    )


def _cooperative_matrices(instance: Any, handle: Any) -> tuple[CooperativeMatrixShape, ...]:
    pointer = lib.vkGetInstanceProcAddr(
        instance, b"vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    )
    if not pointer:
        return ()
    get = ffi.cast("VkResult (*)(VkPhysicalDevice, uint32_t *, void *)", pointer)
    count = ffi.new("uint32_t *")
    if get(handle, count, NULL) < 0 or not count[0]:
        return ()
    # VkCooperativeMatrixPropertiesKHR: sType, pNext, three sizes, four types, saturating, scope.
    size = 56
    raw = ffi.new("uint8_t[]", size * count[0])
    view = ffi.buffer(raw)
    for i in range(count[0]):
        pystruct.pack_into("=i", view, size * i, 1000506001)
    if get(handle, count, raw) < 0:
        return ()
    shapes = []
    for i in range(count[0]):
        m, n, k, *types, saturating, scope = pystruct.unpack_from("=9I", view, size * i + 16)
        a, b, c, result = (COMPONENT_TYPES.get(code, f"type{code}") for code in types)
        name = SCOPES.get(scope, f"scope{scope}")
        shapes.append(CooperativeMatrixShape(m, n, k, a, b, c, result, name, bool(saturating)))
    return tuple(shapes)


def _text(array: Any) -> str:
    text: bytes = ffi.string(array)
    return text.decode(errors="replace")


def _driver_version(vendor_id: int, raw: int) -> str:
    """Decode a driver version; NVIDIA packs it as 10.8.8.6 bits, others as Vulkan does."""
    if vendor_id == 0x10DE:
        return f"{raw >> 22}.{raw >> 14 & 0xFF}.{raw >> 6 & 0xFF}.{raw & 0x3F}"
    return f"{raw >> 22}.{raw >> 12 & 0x3FF}.{raw & 0xFFF}"
