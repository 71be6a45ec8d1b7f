"""Emulation of features that a kernel needs and a device lacks.

A kernel for subgroups of a size that a device does not have runs with its subgroups, and its
cooperative matrices, emulated in shared memory (see `vkmnn.codegen.emulation`): its logic is
tested, not its speed. Kernels that load
from texel buffers run, on small tensors, where those buffers are too short for ordinary ones.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from vkmnn.base.elements import FLOATS
from vkmnn.errors import ShaderError
from vkmnn.runtime.device import Device, PipelineBatch
from vkmnn.runtime.device_info import CooperativeMatrixShape, DeviceInfo
from vkmnn.runtime.pipeline import SpecValues
from vkmnn.runtime.shader import BindingType, Shader
from vkmnn.shaders.library import BUILTIN, ShaderLibrary, shader_from_entry
from vkmnn.testing.case import Variant
from vkmnn.vulkan.encoder import MIN_TEXELS, loads_of

# Features required by kernels for cooperative matrices, and the shared memory of devices with them.
COOPMAT_SHAPE = CooperativeMatrixShape(16, 16, 16, "f16", "f16", "f32", "f32", "subgroup", False)
BYTES_SHAPE = CooperativeMatrixShape(16, 16, 32, "i8", "i8", "i32", "i32", "subgroup", False)
_MATRIX = re.compile(r"m(\d+)x(\d+)x(\d+)s\d+")
MATRIX_FEATURES = frozenset({"cooperative_matrix", "float16", "int8", "vulkan_memory_model"})
SHARED_MEMORY = 49_152


class Bench(NamedTuple):
    """The test bench of a variant; `emulated` means that a stand-in runs instead of its SPIR-V.

    `most_texels` is the driver's limit where `device` claims longer texel buffers, else None.
    """

    device: Device
    emulated: bool
    most_texels: int | None = None


class _WishedDevice(Device):
    """A device that reports the properties in `info` and runs stand-ins for unsupported kernels."""

    def __init__(self, real: Device, info: DeviceInfo, library: ShaderLibrary) -> None:
        self.__dict__.update(vars(real))
        self.info = info
        self._real = real
        self._libraries = (library, BUILTIN)

    def start_pipelines(
        self, wanted: Iterable[tuple[Shader, SpecValues]], *, warm_up: bool = False
    ) -> PipelineBatch:
        """Build pipelines in the background, with stand-ins where needed."""
        return self._real.start_pipelines(
            [(self._runnable(shader), spec) for shader, spec in wanted], warm_up=warm_up
        )

    def _runnable(self, shader: Shader) -> Shader:
        if not shader.subgroup_size or lacking(self._real, shader) is None:
            return shader
        return next(
            stand_in(library, shader.name)
            for library in self._libraries
            if shader.name in _templates(library)
        )


@functools.cache
def _templates(library: ShaderLibrary) -> dict[str, str]:
    return {name: template for name, template, _ in library.variants()}


@functools.cache
def stand_in(library: ShaderLibrary, name: str) -> Shader:
    """Return a variant with its subgroups and matrices emulated, compiled from its template.

    Raises:
        ShaderError: there is no template or no compiler.
    """
    try:
        from vkmnn.codegen.emulation import compile_emulated
    except ModuleNotFoundError as error:
        raise ShaderError(
            f"{name} cannot be emulated: {error.name} is not installed",
            hint="pip install 'vkmnn[codegen]'",
        ) from None
    entry, spirv = compile_emulated(library.folder / "glsl", _templates(library)[name], name)
    return shader_from_entry(name, entry, lambda: spirv)


def lacking(device: Device, shader: Shader) -> str | None:
    """Return why a kernel cannot run directly: features, limits, or sizes of matrices; or None.

    Sizes are an axis of the kernels for cooperative matrices; shaders do not declare them.
    """
    reason = device.supports(shader)
    if reason or "cooperative_matrix" not in shader.requires:
        return reason
    wanted = _shape_of(shader)
    if wanted in device.info.cooperative_matrices:
        return None
    sizes = wanted.m, wanted.n, wanted.k
    return f"{shader.name} needs matrices of {sizes}, which are not listed"


def bench_for(variant: Variant, device: Device) -> Bench | str:
    """Return where to test a variant, or why it cannot run on the device."""
    shader = variant.library.load(variant.name)
    info, emulated = device.info, False
    reason = lacking(device, shader)
    if reason and not shader.subgroup_size:
        return reason
    lacks = sorted({*FLOATS[variant.floats].needs} - info.features)
    if lacks:
        return f"{info.name} lacks {lacks[0]}, without which no network is in {variant.floats}"
    if reason:
        try:
            other = device.supports(stand_in(variant.library, variant.name))
        except ShaderError as error:
            other = f"{reason}; {error}"
        if other:
            return other
        info, emulated = _with_subgroups(info, shader.subgroup_size), True
        if "cooperative_matrix" in shader.requires:
            info = _with_coopmat(info, shader)
    most_texels = None
    texels = any(binding.type is BindingType.TEXEL for binding in shader.bindings)
    if texels and "texel" not in loads_of(info):
        most_texels = info.limits.max_texel_buffer_elements
        longer = max(MIN_TEXELS, most_texels)
        info = replace(info, limits=replace(info.limits, max_texel_buffer_elements=longer))
    if info is device.info:
        return Bench(device, False)
    return Bench(_WishedDevice(device, info, variant.library), emulated, most_texels)


def _with_subgroups(info: DeviceInfo, size: int) -> DeviceInfo:
    names = ("basic", "shuffle", "size_control")
    return replace(
        info,
        subgroup_size=size,
        features=info.features | {*(f"subgroup_{name}" for name in names), "full_subgroups"},
        limits=replace(info.limits, subgroup_size_range=(size, size)),
    )


def _shape_of(shader: Shader) -> CooperativeMatrixShape:
    """Return the matrices of a variant: of bytes if it needs these, else as `tile` names them."""
    shape = BYTES_SHAPE if "int8" in shader.requires else COOPMAT_SHAPE
    found = _MATRIX.search(shader.name)
    if found is None:
        return shape
    m, n, k = map(int, found.groups())
    return replace(shape, m=m, n=n, k=k)


def _with_coopmat(info: DeviceInfo, shader: Shader) -> DeviceInfo:
    """Return a device that has the matrices of a variant."""
    shared = max(SHARED_MEMORY, info.limits.max_shared_memory)
    return replace(
        info,
        cooperative_matrices=(_shape_of(shader),),
        features=info.features | MATRIX_FEATURES,
        limits=replace(info.limits, max_shared_memory=shared),
    )
