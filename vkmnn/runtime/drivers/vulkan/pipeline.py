"""Compute pipelines, their layouts and the VkPipelineCache."""

from __future__ import annotations

import logging
import struct as pystruct
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vkmnn.errors import DeviceError, DeviceLostError, OutOfDeviceMemoryError, ShaderError
from vkmnn.runtime.drivers.base import DriverPipeline
from vkmnn.runtime.drivers.vulkan.api import NULL, ffi, lib, struct
from vkmnn.runtime.drivers.vulkan.handles import Handles
from vkmnn.runtime.shader import BindingType, Shader, ShaderBinding

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.vulkan.owner import Owner

log = logging.getLogger(__name__)

# VK_DESCRIPTOR_TYPE_*
SAMPLED_IMAGE, STORAGE_IMAGE, STORAGE_TEXEL_BUFFER, STORAGE_BUFFER = 2, 3, 5, 7
COMPUTE_STAGE = 0x20
SETS_PER_CALL = 16
"""Number of descriptor sets allocated at a time."""

_DESCRIPTOR_TYPES = {
    BindingType.STORAGE: STORAGE_BUFFER,
    BindingType.TEXEL: STORAGE_TEXEL_BUFFER,
}
# Data of an update template per descriptor: VkDescriptorBufferInfo, a VkBufferView, or
# VkDescriptorImageInfo (sampler, view, layout and padding).
_DATA_FORMATS = {
    STORAGE_BUFFER: ("QQQ", 24),
    STORAGE_TEXEL_BUFFER: ("Q", 8),
    SAMPLED_IMAGE: ("QQQ", 24),
    STORAGE_IMAGE: ("QQQ", 24),
}
_SPEC_FORMATS = {"uint": "I", "int": "i", "float": "f", "bool": "I"}
_FULL_SUBGROUPS = 2  # VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT

LayoutKey = tuple[tuple[tuple[int, int], ...], int]


class Layout:
    """Descriptor-set layout, pipeline layout and update template of one list of bindings.

    `pack` converts the numbers of all bindings to the template's data; a storage binding takes
    (buffer, offset, size), a texel binding one view, an image (0, view, layout). `counts` is the
    number of bindings of each type.
    """

    __slots__ = (
        "__weakref__",
        "counts",
        "pack",
        "pipeline_layout",
        "set_layouts",
        "template",
    )
    pack: Callable[..., bytes]

    def __init__(self, device: Owner, key: LayoutKey) -> None:
        bindings, push_size = key
        kinds = [kind for _index, kind in bindings]
        self.counts = {kind: kinds.count(kind) for kind in _DATA_FORMATS}
        formats = [_DATA_FORMATS[kind] for _index, kind in bindings]
        self.pack = pystruct.Struct("=" + "".join(code for code, _size in formats)).pack
        handles = Handles(device)
        device.own(self, "layouts", handles.destroy)
        set_layout = _create_set_layout(handles, bindings)
        self.set_layouts = ffi.new("VkDescriptorSetLayout[]", [set_layout] * SETS_PER_CALL)
        self.pipeline_layout = _create_pipeline_layout(handles, self.set_layouts, push_size)
        self.template = _create_template(handles, bindings, set_layout) if bindings else NULL


class VulkanPipeline(DriverPipeline):
    """A VkPipeline and the data for recording it."""

    __slots__ = (
        "__weakref__",
        "_device",
        "_finalizer",
        "_handles",
        "handle",
        "layout",
        "pipeline_layout",
        "texel_formats",
    )

    def __init__(self, device: Owner, layout: Layout, shader: Shader) -> None:
        self._device = device
        self.layout = layout
        self.pipeline_layout = layout.pipeline_layout
        self.texel_formats = tuple(
            None if binding.type is BindingType.STORAGE else binding.format
            for binding in shader.bindings
        )
        handles = Handles(device)
        self._finalizer = device.own(self, "pipelines", handles.destroy)
        self._handles = handles

    def build(self, cache: Any, info: Any, call: str) -> None:
        """Create the VkPipeline; raises the driver's error for `call`."""
        cell = self._handles.cell("VkPipeline")
        result = lib.vkCreateComputePipelines(self._device.handle, cache, 1, info, NULL, cell)
        self.handle = self._handles.made(cell, result, call)

    def destroy(self) -> None:
        self._device.release(self._finalizer)


class PipelineFactory:
    """Creates the pipelines of one device; pipelines with the same bindings share layouts."""

    def __init__(self, device: Owner) -> None:
        self._device = device
        self._layouts: dict[LayoutKey, Layout] = {}
        self._lock = threading.Lock()
        handles = Handles(device)
        self._finalizer = device.own(self, "pipeline_caches", handles.destroy)
        self._cache = _create_cache(handles, b"")

    def create(
        self, shader: Shader, code: bytes, spec: Mapping[str, int | float | bool]
    ) -> VulkanPipeline:
        """Build a pipeline.

        Raises:
            ShaderError: the driver refuses the module.
        """
        device = self._device
        key = (
            tuple((binding.index, _descriptor_type(binding)) for binding in shader.bindings),
            shader.push_constant_size,
        )
        with self._lock:
            layout = self._layouts.get(key)
            if layout is None:
                layout = self._layouts[key] = Layout(device, key)
        pipeline = VulkanPipeline(device, layout, shader)
        temporary = Handles(device)
        try:
            module = _create_module(temporary, code)
            info, _keep = _pipeline_info(shader, spec, module, layout)
            smallest, largest = device.info.limits.subgroup_size_range
            if smallest == largest:  # required sizes may be unsupported then
                info.stage.pNext = NULL
            pipeline.build(self._cache, info, f"vkCreateComputePipelines for shader {shader.name}")
        except (DeviceLostError, OutOfDeviceMemoryError):
            raise
        except DeviceError as error:
            raise ShaderError(
                f"the driver of {device.info.name} refuses shader {shader.name}: {error.message}",
                hint="update the driver, or choose another device",
            ) from error
        finally:
            temporary.destroy()
        return pipeline

    def load_cache(self, data: bytes) -> None:
        """Merge the data of an earlier run into the cache, unless its header does not match."""
        device = self._device
        own_header = self.cache_data()[:32]
        # VkPipelineCacheHeaderVersionOne: size, version, vendor, device, UUID of the cache.
        if len(data) < 32 or data[:32] != own_header:
            log.info("pipeline cache of %s ignored: written by another driver", device.info.name)
            return
        temporary = Handles(device)
        try:
            source = _create_cache(temporary, data)
            device.check(
                lib.vkMergePipelineCaches(
                    device.handle, self._cache, 1, ffi.new("VkPipelineCache[]", [source])
                ),
                "vkMergePipelineCaches",
            )
        except DeviceLostError:
            raise
        except DeviceError as error:
            log.warning("pipeline cache of %s ignored: %s", device.info.name, error.message)
        finally:
            temporary.destroy()

    def cache_data(self) -> bytes:
        """Return the cache's content as the driver serialises it."""
        device = self._device
        size = ffi.new("size_t *")
        device.check(
            lib.vkGetPipelineCacheData(device.handle, self._cache, size, NULL),
            "vkGetPipelineCacheData",
        )
        data = ffi.new("uint8_t[]", size[0])
        device.check(
            lib.vkGetPipelineCacheData(device.handle, self._cache, size, data),
            "vkGetPipelineCacheData",
        )
        return bytes(ffi.buffer(data, size[0]))


def _descriptor_type(binding: ShaderBinding) -> int:
    if binding.type is BindingType.IMAGE:
        return STORAGE_IMAGE if "w" in binding.access else SAMPLED_IMAGE
    return _DESCRIPTOR_TYPES[binding.type]


def _create_set_layout(handles: Handles, bindings: tuple[tuple[int, int], ...]) -> Any:
    array = ffi.new("VkDescriptorSetLayoutBinding[]", len(bindings))
    for item, (index, kind) in zip(array, bindings, strict=True):
        item.binding = index
        item.descriptorType = kind
        item.descriptorCount = 1
        item.stageFlags = COMPUTE_STAGE
    info = struct(
        "VkDescriptorSetLayoutCreateInfo",
        lib.VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
        bindingCount=len(bindings),
        pBindings=array,
    )
    return handles.create("VkDescriptorSetLayout", info)


def _create_pipeline_layout(handles: Handles, set_layouts: Any, push_size: int) -> Any:
    push = ffi.new("VkPushConstantRange *")
    push.stageFlags = COMPUTE_STAGE
    push.size = push_size
    info = struct(
        "VkPipelineLayoutCreateInfo",
        lib.VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        setLayoutCount=1,
        pSetLayouts=set_layouts,
        pushConstantRangeCount=int(push_size > 0),
        pPushConstantRanges=push,
    )
    return handles.create("VkPipelineLayout", info)


def _create_template(
    handles: Handles, bindings: tuple[tuple[int, int], ...], set_layout: Any
) -> Any:
    entries = ffi.new("VkDescriptorUpdateTemplateEntry[]", len(bindings))
    offset = 0
    for entry, (index, kind) in zip(entries, bindings, strict=True):
        size = _DATA_FORMATS[kind][1]
        entry.dstBinding = index
        entry.descriptorCount = 1
        entry.descriptorType = kind
        entry.offset = offset
        entry.stride = size
        offset += size
    info = struct(
        "VkDescriptorUpdateTemplateCreateInfo",
        lib.VK_STRUCTURE_TYPE_DESCRIPTOR_UPDATE_TEMPLATE_CREATE_INFO,
        descriptorUpdateEntryCount=len(bindings),
        pDescriptorUpdateEntries=entries,
        templateType=0,
        descriptorSetLayout=set_layout,
    )
    return handles.create("VkDescriptorUpdateTemplate", info)


def _create_module(handles: Handles, code: bytes) -> Any:
    words = ffi.new("uint32_t[]", len(code) // 4)
    ffi.memmove(words, code, len(code))
    info = struct(
        "VkShaderModuleCreateInfo",
        lib.VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
        codeSize=len(code),
        pCode=words,
    )
    return handles.create("VkShaderModule", info)


def _pipeline_info(
    shader: Shader, spec: Mapping[str, int | float | bool], module: Any, layout: Layout
) -> tuple[Any, list[Any]]:
    constants = shader.spec_constants
    entries = ffi.new("VkSpecializationMapEntry[]", len(constants))
    for position, (entry, constant) in enumerate(zip(entries, constants, strict=True)):
        entry.constantID = constant.id
        entry.offset = 4 * position
        entry.size = 4
    data = pystruct.pack(
        "=" + "".join(_SPEC_FORMATS[constant.type] for constant in constants),
        *(spec[constant.name] for constant in constants),
    )
    values = ffi.new("uint8_t[]", data)
    specialization = ffi.new("VkSpecializationInfo *")
    specialization.mapEntryCount = len(constants)
    specialization.pMapEntries = entries
    specialization.dataSize = len(data)
    specialization.pData = values
    entry_point = ffi.new("char[]", b"main")
    subgroups = struct(
        "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo",
        lib.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        requiredSubgroupSize=shader.subgroup_size,
    )
    info = struct(
        "VkComputePipelineCreateInfo",
        lib.VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        layout=layout.pipeline_layout,
    )
    info.stage.sType = lib.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO
    info.stage.stage = COMPUTE_STAGE
    info.stage.module = module
    info.stage.pName = entry_point
    info.stage.pSpecializationInfo = specialization if constants else NULL
    if shader.subgroup_size:
        info.stage.pNext = subgroups
        info.stage.flags = _FULL_SUBGROUPS
    return info, [entries, values, specialization, entry_point, subgroups]


def _create_cache(handles: Handles, data: bytes) -> Any:
    raw = ffi.new("uint8_t[]", data) if data else NULL
    info = struct(
        "VkPipelineCacheCreateInfo",
        lib.VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
        initialDataSize=len(data),
        pInitialData=raw,
    )
    return handles.create("VkPipelineCache", info)
