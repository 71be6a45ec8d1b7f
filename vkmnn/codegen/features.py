"""Device features a variant may require, and how SPIR-V shows that it needs them.

The names are the vocabulary of the runtime's `DeviceInfo.features`. The floor, needed by no name,
is Vulkan 1.1 with SPIR-V 1.3: 32-bit types, storage buffers, and storage texel buffers of the
formats that every device supports (Vulkan spec, "Required Format Support").
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Feature:
    """One name: the SPIR-V capabilities that it covers and the SPIR-V version that it asks for.

    `optimize` is False if optimisers are known to fail on the modules.
    """

    name: str
    capabilities: tuple[str, ...] = ()
    spirv: tuple[int, int] = (1, 3)
    optimize: bool = True


# Texel formats that a device may lack as storage texel buffers or as SPIR-V image formats.
OPTIONAL_TEXEL_FORMATS = (
    "rg32f", "rg32i", "rg32ui", "rg16f", "r16f", "r16i", "r16ui", "r8i", "r8ui",
)  # fmt: skip

# Formats of 2-D images (`vkmnn.runtime.shader.IMAGE_FORMATS`).
IMAGE_FORMATS = ("rgba32f", "rgba16f")

FEATURES: dict[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature("storage16", ("StorageBuffer16BitAccess",)),
        Feature("storage8", ("StorageBuffer8BitAccess",)),
        Feature("push_constant16", ("StoragePushConstant16",)),
        Feature("push_constant8", ("StoragePushConstant8",)),
        Feature("float16", ("Float16",)),
        Feature("float64", ("Float64",)),
        Feature("int8", ("Int8",)),
        Feature("int16", ("Int16",)),
        Feature("int64", ("Int64",)),
        Feature("atomic_int64", ("Int64Atomics",)),
        Feature("atomic_float_add", ("AtomicFloat32AddEXT",)),
        Feature("bfloat16", ("BFloat16TypeKHR",), optimize=False),
        Feature("bfloat16_cooperative_matrix", ("BFloat16CooperativeMatrixKHR",), optimize=False),
        Feature("subgroup_basic", ("GroupNonUniform",)),
        Feature("subgroup_vote", ("GroupNonUniformVote",)),
        Feature("subgroup_arithmetic", ("GroupNonUniformArithmetic",)),
        Feature("subgroup_ballot", ("GroupNonUniformBallot",)),
        Feature("subgroup_shuffle", ("GroupNonUniformShuffle",)),
        Feature("subgroup_shuffle_relative", ("GroupNonUniformShuffleRelative",)),
        Feature("subgroup_clustered", ("GroupNonUniformClustered",)),
        Feature("subgroup_quad", ("GroupNonUniformQuad",)),
        Feature("subgroup_rotate", ("GroupNonUniformRotateKHR",)),
        Feature("subgroup_extended_types"),
        Feature("subgroup_size_control"),
        Feature("full_subgroups"),
        Feature("scalar_layout"),
        Feature(
            "integer_dot", ("DotProduct", "DotProductInput4x8Bit", "DotProductInput4x8BitPacked")
        ),
        Feature("cooperative_matrix", ("CooperativeMatrixKHR",), spirv=(1, 6), optimize=False),
        Feature("vulkan_memory_model", ("VulkanMemoryModel",)),
        Feature("vulkan_memory_model_device_scope", ("VulkanMemoryModelDeviceScope",)),
        Feature("workgroup_layout", ("WorkgroupMemoryExplicitLayoutKHR",)),
        Feature("workgroup_layout8", ("WorkgroupMemoryExplicitLayout8BitAccessKHR",)),
        Feature("workgroup_layout16", ("WorkgroupMemoryExplicitLayout16BitAccessKHR",)),
        Feature("maintenance4"),
        Feature("spirv_1_5", spirv=(1, 5)),
        Feature("spirv_1_6", spirv=(1, 6)),
        Feature("storage_formats", ("StorageImageExtendedFormats",)),
        *(Feature(f"texel_{name}") for name in OPTIONAL_TEXEL_FORMATS),
    )
}

# Every Vulkan 1.1 device has these for compute shaders.
FLOOR_CAPABILITIES = frozenset({"Matrix", "Shader", "ImageBuffer", "ImageQuery", "SampledBuffer"})

CAPABILITY_FEATURE: dict[str, str] = {
    capability: feature.name for feature in FEATURES.values() for capability in feature.capabilities
}

# What comes with a SPIR-V version: 1.6 modules state their workgroup size by LocalSizeId.
_IMPLIED = {(1, 5): {"spirv_1_5"}, (1, 6): {"spirv_1_6", "maintenance4"}}

# Vulkan spec, "Vulkan Environment for SPIR-V": the core version that brought a SPIR-V version.
_VULKAN_OF_SPIRV = {(1, 3): (1, 1), (1, 5): (1, 2), (1, 6): (1, 3)}


@dataclass(frozen=True, slots=True)
class Target:
    """SPIR-V version and the Vulkan version that accepts it."""

    spirv: tuple[int, int]
    vulkan: tuple[int, int]

    def __str__(self) -> str:
        """Return e.g. `vulkan1.1 spirv1.3`."""
        return "vulkan{}.{} spirv{}.{}".format(*self.vulkan, *self.spirv)


def target_for(requires: frozenset[str]) -> Target:
    """Return the lowest target that a variant with these requirements may use."""
    spirv = max((FEATURES[name].spirv for name in requires), default=(1, 3))
    return Target(spirv, _VULKAN_OF_SPIRV[spirv])


def with_implied(requires: frozenset[str]) -> frozenset[str]:
    """Return the requirements and those that follow from the SPIR-V version they ask for."""
    return requires | _IMPLIED.get(target_for(requires).spirv, set())


def default_optimize(requires: frozenset[str]) -> str:
    """Return `"-O"`, or `"none"` if optimisers are known to fail (coopmat, bfloat16)."""
    return "-O" if all(FEATURES[name].optimize for name in requires) else "none"
