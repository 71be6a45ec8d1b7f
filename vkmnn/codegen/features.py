"""Device features a variant may require, and how SPIR-V shows that it needs them.

The names are the vocabulary that `Shader.requires` and the runtime's device description share.
The floor, needed by no name, is Vulkan 1.1 with SPIR-V 1.3: 32-bit types, storage buffers and
storage texel buffers of the formats every device supports (Vulkan spec, "Required Format Support").
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Feature:
    """One name: the SPIR-V capabilities that it covers and the SPIR-V version that it needs."""

    name: str
    capabilities: tuple[str, ...]
    doc: str
    spirv: tuple[int, int] = (1, 3)
    optimize: bool = True


# Subgroup features follow VkSubgroupFeatureFlagBits, the rest the Vulkan feature structs.
FEATURES: dict[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature("storage16", ("StorageBuffer16BitAccess",), "16-bit types in storage buffers"),
        Feature("storage8", ("StorageBuffer8BitAccess",), "8-bit types in storage buffers"),
        Feature("push16", ("StoragePushConstant16",), "16-bit types in push constants"),
        Feature("float16", ("Float16",), "shaderFloat16: half arithmetic"),
        Feature("float64", ("Float64",), "shaderFloat64"),
        Feature("int8", ("Int8",), "shaderInt8: 8-bit arithmetic"),
        Feature("int16", ("Int16",), "shaderInt16"),
        Feature("int64", ("Int64",), "shaderInt64"),
        Feature("bfloat16", ("BFloat16TypeKHR",), "VK_KHR_shader_bfloat16 type", optimize=False),
        Feature("subgroup_basic", ("GroupNonUniform",), "subgroup ids and barriers in compute"),
        Feature("subgroup_vote", ("GroupNonUniformVote",), "subgroupAll, subgroupAny"),
        Feature("subgroup_arithmetic", ("GroupNonUniformArithmetic",), "subgroupAdd, Max, ..."),
        Feature("subgroup_ballot", ("GroupNonUniformBallot",), "subgroupBallot, Broadcast"),
        Feature("subgroup_shuffle", ("GroupNonUniformShuffle",), "subgroupShuffle, ShuffleXor"),
        Feature(
            "subgroup_shuffle_relative", ("GroupNonUniformShuffleRelative",), "subgroupShuffleUp"
        ),
        Feature("subgroup_clustered", ("GroupNonUniformClustered",), "subgroupClusteredAdd, ..."),
        Feature("subgroup_quad", ("GroupNonUniformQuad",), "subgroupQuadSwap..."),
        Feature("subgroup_size_control", (), "a pipeline may demand its subgroup size"),
        Feature(
            "integer_dot",
            ("DotProduct", "DotProductInput4x8Bit", "DotProductInput4x8BitPacked"),
            "VK_KHR_shader_integer_dot_product, 8-bit inputs",
        ),
        Feature(
            "coopmat",
            ("CooperativeMatrixKHR",),
            "VK_KHR_cooperative_matrix",
            spirv=(1, 6),
            optimize=False,
        ),
        Feature("coopmat_bfloat16", ("BFloat16CooperativeMatrixKHR",), "bfloat16 matrices"),
        Feature("memory_model", ("VulkanMemoryModel",), "vulkanMemoryModel"),
        Feature(
            "memory_model_device_scope",
            ("VulkanMemoryModelDeviceScope",),
            "vulkanMemoryModelDeviceScope",
        ),
        Feature("buffer_address", ("PhysicalStorageBufferAddresses",), "bufferDeviceAddress"),
        Feature("atomic_float_add", ("AtomicFloat32AddEXT",), "VK_EXT_shader_atomic_float"),
        Feature(
            "texel_extended",
            ("StorageImageExtendedFormats",),
            "shaderStorageImageExtendedFormats: r16f, rg32f and the like",
        ),
    )
}

# Every Vulkan 1.1 device has these for compute shaders (or they are implied by the ones above).
FLOOR_CAPABILITIES = frozenset({"Matrix", "Shader", "ImageBuffer", "ImageQuery", "SampledBuffer"})

CAPABILITY_FEATURE: dict[str, str] = {
    capability: feature.name for feature in FEATURES.values() for capability in feature.capabilities
}


@dataclass(frozen=True, slots=True)
class Target:
    """SPIR-V version and the Vulkan version that accepts it."""

    spirv: tuple[int, int]
    vulkan: tuple[int, int]

    def __str__(self) -> str:
        """Return e.g. `vulkan1.1 spirv1.3`."""
        return "vulkan{}.{} spirv{}.{}".format(*self.vulkan, *self.spirv)


# Vulkan spec, "Vulkan Environment for SPIR-V": the highest SPIR-V version of each core version.
_VULKAN_OF_SPIRV = {(1, 3): (1, 1), (1, 5): (1, 2), (1, 6): (1, 3)}


def target_for(requires: frozenset[str]) -> Target:
    """Return the lowest target that a variant with these requirements may use."""
    spirv = max((FEATURES[name].spirv for name in requires), default=(1, 3))
    return Target(spirv, _VULKAN_OF_SPIRV[spirv])


def default_optimize(requires: frozenset[str]) -> str:
    """Return `"-O"`, or `"none"` where optimisers are known to trip (coopmat, bfloat16)."""
    return "-O" if all(FEATURES[name].optimize for name in requires) else "none"
