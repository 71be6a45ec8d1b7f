"""Devices that are not here, as they would describe themselves: for rules and checks."""

from __future__ import annotations

from dataclasses import replace

from vkmnn.runtime.device_info import DeviceInfo, DeviceType, Limits
from vkmnn.testing.emulation import COOPMAT_SHAPE
from vkmnn.vulkan.gemm.coop_tiles import FEATURES

LARGE_GPU = DeviceInfo(
    index=0,
    name="large GPU",
    vendor_id=1,
    vendor="somebody",
    device_id=1,
    driver_name="driver",
    driver_version="1",
    api_version=(1, 3, 0),
    type=DeviceType.DISCRETE,
    uuid="",
    driver_uuid="",
    memory_bytes=1 << 37,
    subgroup_size=32,
    features=frozenset(),
    limits=Limits(
        max_storage_buffer_range=1 << 32,
        max_texel_buffer_elements=1 << 27,
        max_push_constants=256,
        max_workgroup_count=(2**31 - 1, 65535, 65535),
        max_workgroup_size=(1024, 1024, 64),
        max_workgroup_invocations=1024,
        max_shared_memory=49152,
        max_storage_bindings=1 << 20,
        max_texel_bindings=1 << 20,
        max_bindings=1 << 20,
        max_allocation_bytes=1 << 40,
        max_allocation_count=1 << 20,
        storage_offset_alignment=16,
        texel_offset_alignment=16,
        non_coherent_atom_size=64,
        subgroup_size_range=(32, 32),
        timestamp_period_ns=1.0,
    ),
    multiprocessors=132,
)
"""As an H200 describes itself, with 132 multiprocessors and 48 KiB of shared memory."""

COOPMAT_GPU = replace(
    LARGE_GPU,
    features=FEATURES,
    cooperative_matrices=(COOPMAT_SHAPE,),
)
"""The same with cooperative matrices of 16x16x16."""

FLOOR = DeviceInfo(
    index=0,
    name="Floor",
    vendor_id=1,
    vendor="Somebody",
    device_id=2,
    driver_name="floor",
    driver_version="1.0",
    api_version=(1, 1, 0),
    type=DeviceType.DISCRETE,
    uuid="00000000-0000-0000-0000-000000000001",
    driver_uuid="00000000-0000-0000-0000-000000000002",
    memory_bytes=1 << 30,
    subgroup_size=1,
    features=frozenset({"subgroup_basic", "texel_rgba32f"}),
    limits=Limits(
        max_storage_buffer_range=1 << 27,
        max_texel_buffer_elements=65536,
        max_push_constants=128,
        max_workgroup_count=(65535, 65535, 65535),
        max_workgroup_size=(128, 128, 64),
        max_workgroup_invocations=128,
        max_shared_memory=16384,
        max_storage_bindings=4,
        max_texel_bindings=4,
        max_bindings=128,
        max_allocation_bytes=1 << 30,
        max_allocation_count=4096,
        storage_offset_alignment=256,
        texel_offset_alignment=256,
        non_coherent_atom_size=256,
        subgroup_size_range=(1, 1),
        timestamp_period_ns=0.0,
    ),
)
"""The minimum that Vulkan requires of a device."""
