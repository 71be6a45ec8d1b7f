"""Meanings of Vulkan's numbers: features, formats, vendors. A new feature is a row here.

Feature structures are handled as raw bytes (`sType`, `pNext`, then one VkBool32 per member), so
that structures newer than the package `vulkan` need no support from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from vkmnn.base.records import dataclass

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FeatureStruct:
    """A Vulkan feature structure.

    `members` holds all members in order, each with our name of the feature, or None for unused
    ones, which stay off. Usable if the device's version is `core` or later, or if it has
    `extension`. `layer` is the first validation layer that supports it, if older ones are still in
    use: they report an unknown structure as a fault. (The tags of
    KhronosGroup/Vulkan-ValidationLayers; v1.3.276, v1.3.255 and v1.4.311 are the first whose
    layers/vulkan/generated/vk_extension_helper.h has the extensions.)
    """

    stype: int
    core: Version | None
    extension: str
    members: Mapping[str, str | None]
    layer: tuple[int, int, int] = (1, 0, 0)


FEATURE_STRUCTS = (
    FeatureStruct(
        1000083000,
        (1, 1),
        "VK_KHR_16bit_storage",
        {
            "storageBuffer16BitAccess": "storage16",
            "uniformAndStorageBuffer16BitAccess": None,
            "storagePushConstant16": "push_constant16",
            "storageInputOutput16": None,
        },
    ),
    FeatureStruct(
        1000177000,
        (1, 2),
        "VK_KHR_8bit_storage",
        {
            "storageBuffer8BitAccess": "storage8",
            "uniformAndStorageBuffer8BitAccess": None,
            "storagePushConstant8": "push_constant8",
        },
    ),
    FeatureStruct(
        1000082000,
        (1, 2),
        "VK_KHR_shader_float16_int8",
        {"shaderFloat16": "float16", "shaderInt8": "int8"},
    ),
    FeatureStruct(
        1000175000,
        (1, 2),
        "VK_KHR_shader_subgroup_extended_types",
        {"shaderSubgroupExtendedTypes": "subgroup_extended_types"},
    ),
    FeatureStruct(
        1000180000,
        (1, 2),
        "VK_KHR_shader_atomic_int64",
        {"shaderBufferInt64Atomics": "atomic_int64", "shaderSharedInt64Atomics": None},
    ),
    FeatureStruct(
        1000211000,
        (1, 2),
        "VK_KHR_vulkan_memory_model",
        {
            "vulkanMemoryModel": "vulkan_memory_model",
            "vulkanMemoryModelDeviceScope": "vulkan_memory_model_device_scope",
            "vulkanMemoryModelAvailabilityVisibilityChains": None,
        },
    ),
    FeatureStruct(
        1000221000,
        (1, 2),
        "VK_EXT_scalar_block_layout",
        {"scalarBlockLayout": "scalar_layout"},
    ),
    FeatureStruct(
        1000225002,
        (1, 3),
        "VK_EXT_subgroup_size_control",
        {"subgroupSizeControl": "subgroup_size_control", "computeFullSubgroups": "full_subgroups"},
    ),
    FeatureStruct(
        1000280000,
        (1, 3),
        "VK_KHR_shader_integer_dot_product",
        {"shaderIntegerDotProduct": "integer_dot"},
    ),
    # SPIR-V 1.6 modules use LocalSizeId, which maintenance4 allows.
    FeatureStruct(1000413000, (1, 3), "VK_KHR_maintenance4", {"maintenance4": "maintenance4"}),
    FeatureStruct(
        1000260000,
        None,
        "VK_EXT_shader_atomic_float",
        {
            "shaderBufferFloat32Atomics": None,
            "shaderBufferFloat32AtomicAdd": "atomic_float_add",
            "shaderBufferFloat64Atomics": None,
            "shaderBufferFloat64AtomicAdd": None,
            "shaderSharedFloat32Atomics": None,
            "shaderSharedFloat32AtomicAdd": None,
            "shaderSharedFloat64Atomics": None,
            "shaderSharedFloat64AtomicAdd": None,
            "shaderImageFloat32Atomics": None,
            "shaderImageFloat32AtomicAdd": None,
            "sparseImageFloat32Atomics": None,
            "sparseImageFloat32AtomicAdd": None,
        },
    ),
    FeatureStruct(
        1000336000,
        None,
        "VK_KHR_workgroup_memory_explicit_layout",
        {
            "workgroupMemoryExplicitLayout": "workgroup_layout",
            "workgroupMemoryExplicitLayoutScalarBlockLayout": None,
            "workgroupMemoryExplicitLayout8BitAccess": "workgroup_layout8",
            "workgroupMemoryExplicitLayout16BitAccess": "workgroup_layout16",
        },
    ),
    FeatureStruct(
        1000416000,
        None,  # core in 1.4, which the instance does not request
        "VK_KHR_shader_subgroup_rotate",
        {"shaderSubgroupRotate": "subgroup_rotate", "shaderSubgroupRotateClustered": None},
        layer=(1, 3, 276),
    ),
    FeatureStruct(
        1000506000,
        None,
        "VK_KHR_cooperative_matrix",
        {"cooperativeMatrix": "cooperative_matrix", "cooperativeMatrixRobustBufferAccess": None},
        layer=(1, 3, 255),
    ),
    FeatureStruct(
        1000141000,
        None,
        "VK_KHR_shader_bfloat16",
        {
            "shaderBFloat16Type": "bfloat16",
            "shaderBFloat16DotProduct": None,
            "shaderBFloat16CooperativeMatrix": "bfloat16_cooperative_matrix",
        },
        layer=(1, 4, 311),
    ),
)

CORE_FEATURES = {
    "shaderInt16": "int16",
    "shaderInt64": "int64",
    "shaderFloat64": "float64",
    "shaderStorageImageExtendedFormats": "storage_formats",
    "shaderStorageImageReadWithoutFormat": "storage_read_without_format",
    "shaderStorageImageWriteWithoutFormat": "storage_write_without_format",
}
"""Members of VkPhysicalDeviceFeatures -> our names."""

SUBGROUP_OPERATIONS = {
    1: "subgroup_basic",
    2: "subgroup_vote",
    4: "subgroup_arithmetic",
    8: "subgroup_ballot",
    16: "subgroup_shuffle",
    32: "subgroup_shuffle_relative",
    64: "subgroup_clustered",
    128: "subgroup_quad",
}
"""VkSubgroupFeatureFlagBits -> our names; only reported if compute shaders have them."""

SPIRV_VERSIONS: dict[str, tuple[Version, str | None]] = {
    "spirv_1_4": ((1, 2), "VK_KHR_spirv_1_4"),
    "spirv_1_5": ((1, 2), None),
    "spirv_1_6": ((1, 3), None),
}
"""Feature -> (first version with it, extension that adds it to earlier ones)."""

TEXEL_FORMATS = {
    "rgba32f": 109,
    "rg32f": 103,
    "r32f": 100,
    "rgba16f": 97,
    "rg16f": 83,
    "r16f": 76,
    "r16i": 75,
    "r16ui": 74,
    "rgba32i": 108,
    "rg32i": 102,
    "r32i": 99,
    "rgba32ui": 107,
    "rg32ui": 101,
    "r32ui": 98,
    "rgba16i": 96,
    "rgba16ui": 95,
    "rgba8": 37,
    "rgba8_snorm": 38,
    "rgba8i": 42,
    "rgba8ui": 41,
    "r8i": 14,
    "r8ui": 13,
}
"""GLSL image format -> VkFormat; feature "texel_<format>" if storage texel buffers support it."""

COMPONENT_TYPES = {
    0: "f16",
    1: "f32",
    2: "f64",
    3: "i8",
    4: "i16",
    5: "i32",
    6: "i64",
    7: "u8",
    8: "u16",
    9: "u32",
    10: "u64",
    1000141000: "bf16",
    1000491002: "f8e4m3",
    1000491003: "f8e5m2",
}
"""VkComponentTypeKHR -> type names."""

SCOPES = {1: "device", 2: "workgroup", 3: "subgroup", 5: "queue_family"}
"""VkScopeKHR -> names."""

VENDORS = {
    0x1002: "AMD",
    0x1010: "Imagination",
    0x106B: "Apple",
    0x10DE: "NVIDIA",
    0x13B5: "ARM",
    0x14E4: "Broadcom",
    0x1AE0: "Google",
    0x5143: "Qualcomm",
    0x8086: "Intel",
    0x10001: "Vivante",
    0x10002: "VeriSilicon",
    0x10005: "Mesa",
    0x10006: "PoCL",
}
"""PCI or Khronos vendor id -> name."""
