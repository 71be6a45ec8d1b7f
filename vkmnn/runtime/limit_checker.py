"""Checks every call to a driver against the device's reported limits and features.

A device profile lowers limits below those of the real device, which only enforces its own:
violations of the profile have to be detected here. The rules above the driver observe the limits;
this does not trust them. Ranges of flushes need no check: a driver flushes whole allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vkmnn.errors import DeviceLimitError
from vkmnn.runtime.drivers.base import (
    EMPTY_RANGE_BYTES,
    DriverCommands,
    DriverDevice,
    DriverPipeline,
    DriverRecorder,
)
from vkmnn.runtime.drivers.buffer import DriverBuffer
from vkmnn.runtime.footprint import Footprint, MatrixType, footprint
from vkmnn.runtime.shader import TEXEL_SIZES, BindingType, Shader

if TYPE_CHECKING:
    from vkmnn.runtime.device_info import DeviceInfo
    from vkmnn.runtime.memory import BufferRange, MemoryKind

CAPABILITIES: Mapping[int, str | None] = {
    0: None,  # Matrix
    1: None,  # Shader
    9: "float16",
    10: "float64",
    11: "int64",
    12: "atomic_int64",
    22: "int16",
    39: "int8",
    47: None,  # ImageBuffer
    49: "storage_formats",
    50: None,  # ImageQuery
    55: "storage_read_without_format",
    56: "storage_write_without_format",
    61: "subgroup_basic",
    62: "subgroup_vote",
    63: "subgroup_arithmetic",
    64: "subgroup_ballot",
    65: "subgroup_shuffle",
    66: "subgroup_shuffle_relative",
    67: "subgroup_clustered",
    68: "subgroup_quad",
    4428: "workgroup_layout",
    4429: "workgroup_layout8",
    4430: "workgroup_layout16",
    4433: "storage16",
    4435: "push_constant16",
    4448: "storage8",
    4450: "push_constant8",
    5116: "bfloat16",
    5118: "bfloat16_cooperative_matrix",
    5345: "vulkan_memory_model",
    5346: "vulkan_memory_model_device_scope",
    6016: "integer_dot",
    6017: "integer_dot",
    6018: "integer_dot",
    6019: "integer_dot",
    6022: "cooperative_matrix",
    6026: "subgroup_rotate",
    6033: "atomic_float_add",
}
"""SPIR-V capability -> required feature; None if every device supports it."""

_VERSIONS = {(1, 4): "spirv_1_4", (1, 5): "spirv_1_5", (1, 6): "spirv_1_6"}

Check = tuple[str, int, int]
"""Name of a limit, requested value, allowed value."""


class CheckedDevice(DriverDevice):
    """A driver's device whose calls are checked against `info`."""

    def __init__(self, inner: DriverDevice, info: DeviceInfo) -> None:
        self.inner = inner
        self.info = info
        self.validation = inner.validation
        self.messages = inner.messages

    def allocate(self, nbytes: int, kind: MemoryKind) -> DriverBuffer:
        limits = self.info.limits
        live = _allocations(self.inner)
        what = f"a buffer of {nbytes} bytes"
        _check(what, [("max_allocation_count", live + 1, limits.max_allocation_count)])
        buffer = self.inner.allocate(nbytes, kind)
        size = buffer.empty_offset + EMPTY_RANGE_BYTES
        _check(what, [("max_allocation_bytes", size, limits.max_allocation_bytes)])
        return buffer

    def allocate_image(self, width: int, height: int, texel_format: str) -> DriverBuffer:
        limits = self.info.limits
        what = f"an image of {width} x {height} texels"
        if "images" not in self.info.features:
            raise DeviceLimitError(f"{what}: the device lacks images", "images")
        live = _allocations(self.inner)
        checks = [("max_allocation_count", live + 1, limits.max_allocation_count)]
        checks += [
            ("max_image_dimension", size, limits.max_image_dimension) for size in (width, height)
        ]
        _check(what, checks)
        return self.inner.allocate_image(width, height, texel_format)

    def create_pipeline(
        self, shader: Shader, code: bytes, spec: Mapping[str, int | float | bool]
    ) -> CheckedPipeline:
        numbers = {
            constant.id: int(spec[constant.name])
            for constant in shader.spec_constants
            if constant.type != "float"
        }
        check_shader(shader, footprint(code, numbers), self.info)
        return CheckedPipeline(self.inner.create_pipeline(shader, code, spec), shader)

    def recorder(self, timestamps: bool) -> CheckedRecorder:
        if timestamps and "timestamps" not in self.info.features:
            raise DeviceLimitError("recording timestamps", "timestamps")
        return CheckedRecorder(self.inner.recorder(timestamps), self.info)

    def wait_idle(self) -> None:
        self.inner.wait_idle()

    def load_cache(self, data: bytes) -> None:
        self.inner.load_cache(data)

    def cache_data(self) -> bytes:
        return self.inner.cache_data()

    def live_objects(self) -> dict[str, int]:
        return self.inner.live_objects()

    def lost_callback(self, callback: Callable[[str], None]) -> None:
        self.inner.lost_callback(callback)

    def stop_waiting(self) -> None:
        self.inner.stop_waiting()

    def destroy(self, *, hung: bool) -> bool:
        return self.inner.destroy(hung=hung)


class CheckedPipeline(DriverPipeline):
    """A pipeline and its shader."""

    __slots__ = ("__weakref__", "inner", "shader")

    def __init__(self, inner: DriverPipeline, shader: Shader) -> None:
        self.inner = inner
        self.shader = shader

    def destroy(self) -> None:
        self.inner.destroy()


class CheckedRecorder(DriverRecorder):
    """A recorder that rejects commands beyond the limits."""

    def __init__(self, inner: DriverRecorder, info: DeviceInfo) -> None:
        self._inner = inner
        self._limits = info.limits

    def dispatch(
        self,
        pipeline: CheckedPipeline,  # type: ignore[override]  # its own, as every driver's
        ranges: Sequence[BufferRange],
        params: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        limits, shader = self._limits, pipeline.shader
        checks = [
            ("max_push_constants", len(params), limits.max_push_constants),
            *(
                ("max_workgroup_count", count, largest)
                for count, largest in zip(groups, limits.max_workgroup_count, strict=True)
            ),
        ]
        for bound, binding in zip(ranges, shader.bindings, strict=True):
            if binding.type is BindingType.IMAGE:
                continue
            if binding.type is BindingType.TEXEL:
                texels = bound.nbytes // TEXEL_SIZES[binding.format]
                checks += [
                    ("max_texel_buffer_elements", texels, limits.max_texel_buffer_elements),
                    ("texel_offset_alignment", bound.offset % limits.texel_offset_alignment, 0),
                ]
            else:
                checks += [
                    ("max_storage_buffer_range", bound.nbytes, limits.max_storage_buffer_range),
                    ("storage_offset_alignment", bound.offset % limits.storage_offset_alignment, 0),
                ]
        _check(f"a dispatch of {shader.name}", checks, shader.name)
        self._inner.dispatch(pipeline.inner, ranges, params, groups)

    def copy(self, src: BufferRange, dst: BufferRange) -> None:
        self._inner.copy(src, dst)

    def fill(self, dst: BufferRange, value: int) -> None:
        self._inner.fill(dst, value)

    def barrier(self, src: int, dst: int) -> None:
        self._inner.barrier(src, dst)

    def timestamp(self) -> None:
        self._inner.timestamp()

    def finish(self, buffers: Sequence[DriverBuffer]) -> DriverCommands:
        return self._inner.finish(buffers)


def _allocations(device: DriverDevice) -> int:
    """Return the number of memory allocations: one for each buffer and image."""
    live = device.live_objects()
    return live.get("buffers", 0) + live.get("images", 0)


def check_shader(shader: Shader, needs: Footprint, info: DeviceInfo) -> None:
    """Check the requirements of a shader's module.

    Raises:
        DeviceLimitError: it breaks a limit, or uses a feature that the device lacks.
    """
    limits = info.limits
    what = f"shader {shader.name}"
    for capability in sorted(needs.capabilities):
        feature = CAPABILITIES.get(capability, f"capability {capability}")
        if feature and feature not in info.features:
            raise DeviceLimitError(
                f"{what} needs features that the device lacks: {feature}", feature
            )
    formats = (item.format for item in shader.bindings if item.type is BindingType.TEXEL)
    wanted = {*(f"texel_{name}" for name in formats), *_version_feature(needs)}
    if any(item.type is BindingType.IMAGE for item in shader.bindings):
        wanted.add("images")
    if shader.subgroup_size:
        wanted |= {"subgroup_size_control", "full_subgroups"}
    for feature in sorted(wanted - info.features):
        raise DeviceLimitError(f"{what} needs features that the device lacks: {feature}", feature)
    x, y, z = needs.local_size
    checks = [
        ("max_workgroup_invocations", x * y * z, limits.max_workgroup_invocations),
        *(
            ("max_workgroup_size", size, largest)
            for size, largest in zip(needs.local_size, limits.max_workgroup_size, strict=True)
        ),
        ("max_shared_memory", needs.shared_memory, limits.max_shared_memory),
        ("max_push_constants", needs.push_constants, limits.max_push_constants),
        ("max_storage_bindings", needs.storage_bindings, limits.max_storage_bindings),
        ("max_texel_bindings", needs.texel_bindings, limits.max_texel_bindings),
        (
            "max_bindings",
            needs.storage_bindings + needs.texel_bindings + needs.sampled_images,
            limits.max_bindings,
        ),
    ]
    smallest, largest = limits.subgroup_size_range
    if shader.subgroup_size:
        checks.append(("subgroup_size_range", shader.subgroup_size, largest))
        checks.append(("subgroup_size_range", smallest, shader.subgroup_size))
    _check(what, checks, shader.name)
    sides = {
        side
        for shape in info.cooperative_matrices
        for side in (
            MatrixType(shape.a, shape.m, shape.k, 0),
            MatrixType(shape.b, shape.k, shape.n, 1),
            MatrixType(shape.c, shape.m, shape.n, 2),
            MatrixType(shape.result, shape.m, shape.n, 2),
        )
    }
    if needs.matrices - sides:
        text = ", ".join(sorted(map(str, needs.matrices - sides)))
        message = f"{what} uses matrices that are not among cooperative_matrices: {text}"
        raise DeviceLimitError(message, "cooperative_matrices", op=shader.name)


def _version_feature(needs: Footprint) -> set[str]:
    return {_VERSIONS[needs.version]} if needs.version in _VERSIONS else set()


def _check(what: str, checks: Iterable[Check], op: str | None = None) -> None:
    for limit, asked, allowed in checks:
        if asked > allowed:
            raise DeviceLimitError(f"{what} breaks {limit}: {asked} > {allowed}", limit, op=op)
