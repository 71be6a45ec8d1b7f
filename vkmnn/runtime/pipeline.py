"""Pipelines for the recorder, and the check whether a device can run a shader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from vkmnn.errors import InvalidInputError
from vkmnn.runtime.device_info import DeviceInfo, Limits
from vkmnn.runtime.drivers.base import COMPUTE_READ, COMPUTE_WRITE
from vkmnn.runtime.shader import TEXEL_SIZES, BindingType, Shader, ShaderBinding, SpecConstant

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.base import DriverPipeline

SpecValues = Mapping[str, int | float | bool]


class Slot(NamedTuple):
    """Checks and hazard tracking of one binding; `unit` divides the size of a range.

    `image` says that it takes an image rather than a buffer.

    A tuple, because the recorder unpacks it for every binding of every dispatch.
    """

    name: str
    reads: bool
    writes: bool
    alignment: int
    max_bytes: int
    unit: int
    image: bool = False


class Pipeline:
    """A shader with its specialization constants fixed, ready to be dispatched.

    Created by `Device.pipeline`; `PipelineStore` decides how long it is kept. `warm` says that
    `Device.warm_up` has run. The bindings of flags have no `slots`: the recorder adds them.
    """

    __slots__ = (
        "__weakref__",
        "driver_pipeline",
        "params_size",
        "scope",
        "shader",
        "slots",
        "spec",
        "warm",
    )

    def __init__(
        self, shader: Shader, spec: SpecValues, driver_pipeline: DriverPipeline, limits: Limits
    ) -> None:
        self.shader = shader
        self.spec = spec
        self.driver_pipeline = driver_pipeline
        self.params_size = shader.push_constant_size
        self.warm = False
        bindings = shader.bindings if shader.flagged is None else shader.bindings[:-2]
        accesses = "".join(binding.access for binding in bindings)
        self.scope = COMPUTE_READ * ("r" in accesses) | COMPUTE_WRITE * ("w" in accesses)
        self.slots = tuple(_slot(binding, limits) for binding in bindings)

    @property
    def image_formats(self) -> tuple[str | None, ...]:
        """Return the image format of each binding, None for buffers."""
        return tuple(
            binding.format if binding.type is BindingType.IMAGE else None
            for binding in self.shader.bindings
        )

    def __repr__(self) -> str:
        return f"Pipeline({self.shader.name}, {dict(self.spec)})"


_ANY_SIZE = 1 << 62
_ZERO_ALONE = 1 << 62
"""The alignment that only offset 0 has."""


def max_range_bytes(binding: ShaderBinding, limits: Limits) -> int:
    """Return how many bytes a device can bind to it at once."""
    if binding.type is BindingType.IMAGE:
        return _ANY_SIZE  # images are bound within their creation limits
    if binding.type is BindingType.TEXEL:
        return limits.max_texel_buffer_elements * TEXEL_SIZES[binding.format]
    return limits.max_storage_buffer_range


def _slot(binding: ShaderBinding, limits: Limits) -> Slot:
    reads, writes = "r" in binding.access, "w" in binding.access
    if binding.type is BindingType.TEXEL:
        size = TEXEL_SIZES[binding.format]
        return Slot(
            binding.name,
            reads,
            writes,
            limits.texel_offset_alignment,
            max_range_bytes(binding, limits),
            size,
        )
    whole = limits.whole_buffers or binding.type is BindingType.IMAGE
    return Slot(
        binding.name,
        reads,
        writes,
        _ZERO_ALONE if whole else limits.storage_offset_alignment,
        max_range_bytes(binding, limits),
        1,
        binding.type is BindingType.IMAGE,
    )


_LOCAL_SIZE_NAMES = ("local_size_x", "local_size_y", "local_size_z")
"""Specialization constants of these names set the local size."""

_NO_SPEC: SpecValues = {}


def missing(shader: Shader, info: DeviceInfo, spec: SpecValues = _NO_SPEC) -> str | None:
    """Return why a device cannot run a shader with some constants set, or None."""
    limits = info.limits
    texel = [binding for binding in shader.bindings if binding.type is BindingType.TEXEL]
    required = shader.requires | {f"texel_{binding.format}" for binding in texel}
    images = [binding for binding in shader.bindings if binding.type is BindingType.IMAGE]
    if images:
        required |= {"images"}
    stored = len(texel) + sum("w" in binding.access for binding in images)
    if shader.subgroup_size:
        required |= {"subgroup_size_control", "full_subgroups"}
    absent = sorted(required - info.features)
    if absent:
        return f"{info.name} lacks {', '.join(absent)}"
    x, y, z = (
        int(spec.get(name, size))
        for name, size in zip(_LOCAL_SIZE_NAMES, shader.local_size, strict=True)
    )
    smallest, largest = limits.subgroup_size_range
    checks = (
        (shader.push_constant_size, limits.max_push_constants, "bytes of push constants"),
        (x, limits.max_workgroup_size[0], "invocations along x"),
        (y, limits.max_workgroup_size[1], "invocations along y"),
        (z, limits.max_workgroup_size[2], "invocations along z"),
        (x * y * z, limits.max_workgroup_invocations, "invocations a workgroup"),
        (
            len(shader.bindings) - len(texel) - len(images),
            limits.max_storage_bindings,
            "storage buffers",
        ),
        (stored, limits.max_texel_bindings, "storage texel buffers and images"),
        (len(shader.bindings), limits.max_bindings, "bindings"),
    )
    for needed, limit, what in checks:
        if needed > limit:
            return f"{shader.name} needs {needed} {what}, {info.name} allows {limit}"
    if shader.subgroup_size and not smallest <= shader.subgroup_size <= largest:
        return (
            f"{shader.name} needs subgroups of {shader.subgroup_size}, {info.name} has "
            f"{smallest} to {largest}"
        )
    return None


def complete_spec(shader: Shader, given: SpecValues) -> dict[str, int | float | bool]:
    """Return a value for every specialization constant, of its type.

    Raises:
        InvalidInputError: `given` names an unknown constant, or a value does not fit its type.
    """
    unknown = sorted(set(given) - {constant.name for constant in shader.spec_constants})
    if unknown:
        known = ", ".join(constant.name for constant in shader.spec_constants) or "none"
        raise InvalidInputError(
            f"shader {shader.name} has no specialization constant {', '.join(unknown)}",
            hint=f"it has: {known}",
        )
    return {
        constant.name: _convert(shader, constant, given.get(constant.name, constant.default))
        for constant in shader.spec_constants
    }


_INTEGER_RANGES = {"uint": (0, 2**32 - 1), "int": (-(2**31), 2**31 - 1)}


def _convert(shader: Shader, constant: SpecConstant, value: float | bool) -> int | float | bool:
    if constant.type == "float":
        return float(value)
    if constant.type == "bool":
        return bool(value)
    low, high = _INTEGER_RANGES[constant.type]
    if int(value) != value or not low <= value <= high:
        raise InvalidInputError(
            f"shader {shader.name}: {constant.name} = {value!r} is not {constant.type}"
        )
    return int(value)
