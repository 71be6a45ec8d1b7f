"""Recording, submitting and awaiting command buffers.

Recording calls the raw functions with structures built beforehand: a dispatch with its barrier
costs about four times its five Vulkan calls. Measure before adding anything to `dispatch`.
"""

from __future__ import annotations

import logging
import struct as pystruct
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vkmnn.errors import DeviceError, DeviceLostError
from vkmnn.runtime.device_info import DeviceType
from vkmnn.runtime.drivers.base import (
    COMPUTE,
    COMPUTE_READ,
    COMPUTE_WRITE,
    EMPTY_RANGE_BYTES,
    HOST_READ,
    TRANSFER,
    TRANSFER_READ,
    TRANSFER_WRITE,
    WRITES,
    DriverCommands,
    DriverRecorder,
)
from vkmnn.runtime.drivers.buffer import DriverBuffer
from vkmnn.runtime.drivers.vulkan.api import NULL, ffi, lib, struct
from vkmnn.runtime.drivers.vulkan.handles import Handles
from vkmnn.runtime.drivers.vulkan.image import GENERAL, VulkanImage, fill_range
from vkmnn.runtime.drivers.vulkan.pipeline import (
    SETS_PER_CALL,
    STORAGE_BUFFER,
    STORAGE_TEXEL_BUFFER,
    Layout,
    VulkanPipeline,
)

if TYPE_CHECKING:
    from vkmnn.runtime.drivers.vulkan.owner import Owner
    from vkmnn.runtime.memory import BufferRange

log = logging.getLogger(__name__)

COMMAND_BUFFERS = "command_buffers"

_BIND_POINT = 1  # VK_PIPELINE_BIND_POINT_COMPUTE
_COMPUTE_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
_STAGES = {COMPUTE: 0x800, TRANSFER: 0x1000, HOST_READ: 0x4000}  # VK_PIPELINE_STAGE_*
_ACCESSES = {
    COMPUTE_READ: 0x20,
    COMPUTE_WRITE: 0x40,
    TRANSFER_READ: 0x800,
    TRANSFER_WRITE: 0x1000,
    HOST_READ: 0x2000,
}
_TOP_OF_PIPE, _BOTTOM_OF_PIPE = 0x1, 0x2000
_NO_FAMILY = 0xFFFF_FFFF
_QUERY_64, _QUERY_AVAILABILITY = 1, 4
_QUERIES_PER_POOL = 128
# Polling detects the end some 50 µs before a sleeping thread does; longer runs are not worth a core
# for that.
_POLL_S = 0.002
_SLICE_NS = 100_000_000
_SUCCESS, _TIMEOUT = 0, 2
_IDLE, _PENDING, _UNKNOWN = range(3)  # whether commands were submitted and not awaited

# Read on every dispatch: module globals are looked up faster than attributes of `lib`.
_bind_pipeline = lib.vkCmdBindPipeline
_bind_sets = lib.vkCmdBindDescriptorSets
_push = lib.vkCmdPushConstants
_dispatch = lib.vkCmdDispatch
_pipeline_barrier = lib.vkCmdPipelineBarrier
_update_set = lib.vkUpdateDescriptorSetWithTemplate


def _make_barrier(src: int, dst: int) -> tuple[int, int, Any]:
    """Cache and return (source stages, destination stages, VkMemoryBarrier) of two scopes."""
    stages = [
        sum(stage for group, stage in _STAGES.items() if scope & group) for scope in (src, dst)
    ]
    barrier = struct("VkMemoryBarrier", lib.VK_STRUCTURE_TYPE_MEMORY_BARRIER)
    barrier.srcAccessMask = sum(bit for flag, bit in _ACCESSES.items() if src & WRITES & flag)
    barrier.dstAccessMask = sum(bit for flag, bit in _ACCESSES.items() if dst & flag)
    if not barrier.srcAccessMask:  # an execution dependency alone
        barrier.dstAccessMask = 0
    made = _barriers[src, dst] = stages[0], stages[1], barrier
    return made


_barriers: dict[tuple[int, int], tuple[int, int, Any]] = {}


class Parts:
    """A command pool with its command buffer and fence.

    The device keeps some for copies, which are recorded, run and discarded: creating and freeing
    them takes NVIDIA's driver half a millisecond. The holder of `taken` uses them.
    """

    def __init__(self, device: Owner) -> None:
        self.handles = Handles(device)
        self.fences = self.handles.cell("VkFence")
        self.commands = ffi.new("VkCommandBuffer[1]")
        self.pool: Any = None
        self.taken = threading.Lock()


class _State:
    """All objects of one command buffer; they outlive their Python wrappers."""

    __slots__ = ("_abandoned", "_device", "_parts", "fences", "handles", "keep", "progress")

    def __init__(self, device: Owner, parts: Parts | None = None) -> None:
        self._device = device
        self._abandoned = False
        self._parts = parts
        self.handles = Handles(device)
        self.fences = parts.fences if parts is not None else self.handles.cell("VkFence")
        self.keep: set[Any] = set()
        self.progress = _IDLE

    def wait(self, timeout_ns: int) -> bool:
        """Wait until the device is done with the commands; False on timeout."""
        if self.progress == _IDLE:
            return True
        device = self._device
        if self.progress == _UNKNOWN:
            self._drain()
        end, remaining = time.perf_counter_ns() + timeout_ns, timeout_ns
        while True:  # in slices, so that Ctrl-C is handled
            part = min(remaining, _SLICE_NS)
            result = lib.vkWaitForFences(device.handle, 1, self.fences, 1, part)
            if result == _SUCCESS:
                self.progress = _IDLE
                return True
            if result != _TIMEOUT:
                device.check(result, "vkWaitForFences")
            if remaining <= _SLICE_NS:
                return False
            remaining = max(0, end - time.perf_counter_ns())

    def _drain(self) -> None:
        """Wait from now on for everything submitted so far.

        An interruption has hidden whether the commands were; their own fence cannot tell.
        """
        device = self._device
        info = struct("VkFenceCreateInfo", lib.VK_STRUCTURE_TYPE_FENCE_CREATE_INFO)
        cell = self.handles.cell("VkFence")
        self.handles.create("VkFence", info, cell)
        with device.queue_lock:
            result = lib.vkQueueSubmit(device.queue, 0, NULL, cell[0])
        device.check(result, "vkQueueSubmit")
        self.fences = cell
        self.progress = _PENDING

    def release(self) -> bool:
        """Free everything, or return False if the device still uses it after a while."""
        try:
            done = self.wait(0 if self._abandoned else self._device.release_wait_ns)
        except DeviceLostError:
            done = True  # a lost device works no more
        except DeviceError as error:
            log.warning("%s: commands are freed later: %s", self._device.info.name, error.message)
            done = False
        if not done:
            if not self._abandoned:
                name = self._device.info.name
                log.warning("commands still run on %s: all is freed when they are done", name)
            self._abandoned = True
            return False
        self.handles.destroy()
        self.keep.clear()
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.taken.release()
        return True


class VulkanRecorder(DriverRecorder):
    """Records one primary command buffer for replay.

    Args:
        device: the device on which it runs.
        timestamps: whether `timestamp` will be called.
        parts: objects to record with, owned by the caller; None creates some.
    """

    def __init__(self, device: Owner, timestamps: bool, parts: Parts | None = None) -> None:
        self._device = device
        self._timestamps = timestamps
        self._count = 0
        self._pipeline: VulkanPipeline | None = None
        self._set: Any = None
        self._sets: defaultdict[Layout, dict[bytes, Any]] = defaultdict(dict)
        self._free_sets: defaultdict[Layout, list[Any]] = defaultdict(list)
        self._set_arrays: list[Any] = []
        self._sets_left = 0
        self._left: dict[int, int] = {}  # descriptors of each type in the current pool
        self._pool_sets = 32
        self._state = _State(device, parts)
        commands = ffi.new("VkCommandBuffer[1]") if parts is None else parts.commands
        self._result = VulkanCommands(device, self._state, commands)
        if parts is None:
            _new_pool(device, self._state.handles, commands)
        elif parts.pool is None:
            parts.pool = _new_pool(device, parts.handles, commands)
        else:
            result = lib.vkResetCommandPool(device.handle, parts.pool, 0)
            device.check(result, "vkResetCommandPool")
        self._command = commands[0]
        begin = struct("VkCommandBufferBeginInfo", lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO)
        device.check(lib.vkBeginCommandBuffer(self._command, begin), "vkBeginCommandBuffer")
        self._set_info = struct(
            "VkDescriptorSetAllocateInfo",
            lib.VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
            descriptorSetCount=SETS_PER_CALL,
        )

    def dispatch(
        self,
        pipeline: VulkanPipeline,  # type: ignore[override]  # its own; a check costs time
        ranges: Sequence[BufferRange],
        params: bytes,
        groups: tuple[int, int, int],
    ) -> None:
        command = self._command
        layout = pipeline.layout
        if pipeline is not self._pipeline:
            _bind_pipeline(command, _BIND_POINT, pipeline.handle)
            self._pipeline = pipeline
            self._state.keep.add(pipeline)
        if ranges:
            numbers: list[int] = []
            for bound, texel_format in zip(ranges, pipeline.texel_formats):  # noqa: B905 - time
                buffer: Any = bound.buffer.driver_buffer
                if not bound.nbytes:
                    offset, nbytes = buffer.empty_offset, EMPTY_RANGE_BYTES
                else:
                    offset, nbytes = bound.offset, bound.nbytes
                if texel_format is None:
                    numbers += (buffer.number, offset, nbytes)
                elif buffer.number:
                    numbers.append(buffer.views[offset, nbytes, texel_format])
                else:
                    numbers += (0, buffer.image_view(texel_format), GENERAL)
            data = layout.pack(*numbers)
            sets = self._sets[layout]
            if data not in sets:
                sets[data] = self._new_set(layout, data)
            bound_set = sets[data]
            if bound_set is not self._set:
                _bind_sets(command, _BIND_POINT, pipeline.pipeline_layout, 0, 1, bound_set, 0, NULL)
                self._set = bound_set
        if params:
            _push(
                command,
                pipeline.pipeline_layout,
                _COMPUTE_STAGE,
                0,
                len(params),
                params,
            )
        _dispatch(command, *groups)

    def _new_set(self, layout: Layout, data: bytes) -> Any:
        """Return a pointer to a new descriptor set with the bindings in `data`."""
        free = self._free_sets[layout]
        if not free:
            free += self._allocate_sets(layout)
        result = free.pop()
        _update_set(self._device.handle, result[0], layout.template, data)
        return result

    def _allocate_sets(self, layout: Layout) -> list[Any]:
        if self._sets_left < SETS_PER_CALL or any(
            self._left.get(kind, 0) < count * SETS_PER_CALL for kind, count in layout.counts.items()
        ):
            self._new_pool(layout)
        self._sets_left -= SETS_PER_CALL
        for kind, count in layout.counts.items():
            if count:
                self._left[kind] -= count * SETS_PER_CALL
        self._set_info.pSetLayouts = layout.set_layouts
        sets = ffi.new("VkDescriptorSet[]", SETS_PER_CALL)
        self._device.check(
            lib.vkAllocateDescriptorSets(self._device.handle, self._set_info, sets),
            "vkAllocateDescriptorSets",
        )
        self._set_arrays.append(sets)
        return [sets + i for i in range(SETS_PER_CALL)]

    def _new_pool(self, layout: Layout) -> None:
        sets = self._pool_sets
        self._pool_sets = min(2 * sets, 1024)
        self._sets_left = sets
        usual = {STORAGE_BUFFER: 5 * sets, STORAGE_TEXEL_BUFFER: 3 * sets}
        self._left = {
            kind: max(usual.get(kind, 5 * sets * (count > 0)), count * SETS_PER_CALL)
            for kind, count in layout.counts.items()
            if kind in usual or count or kind in self._left
        }
        sizes = ffi.new("VkDescriptorPoolSize[]", len(self._left))
        for size, (kind, count) in zip(sizes, self._left.items(), strict=True):
            size.type = kind
            size.descriptorCount = max(count, SETS_PER_CALL)
        info = struct(
            "VkDescriptorPoolCreateInfo",
            lib.VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
            maxSets=sets,
            poolSizeCount=len(self._left),
            pPoolSizes=sizes,
        )
        self._set_info.descriptorPool = self._state.handles.create("VkDescriptorPool", info)

    def copy(self, src: BufferRange, dst: BufferRange) -> None:
        source: Any = src.buffer.driver_buffer
        target: Any = dst.buffer.driver_buffer
        if not source.number:
            lib.vkCmdCopyImageToBuffer(
                self._command, source.image, GENERAL, target.handle, 1, source.rows(src, dst)
            )
            return
        if not target.number:
            lib.vkCmdCopyBufferToImage(
                self._command, source.handle, target.image, GENERAL, 1, target.rows(dst, src)
            )
            return
        region = ffi.new("VkBufferCopy *")
        region.srcOffset = src.offset
        region.dstOffset = dst.offset
        region.size = src.nbytes
        lib.vkCmdCopyBuffer(self._command, source.handle, target.handle, 1, region)

    def fill(self, dst: BufferRange, value: int) -> None:
        target: Any = dst.buffer.driver_buffer
        lib.vkCmdFillBuffer(
            self._command, target.handle, dst.offset, dst.nbytes, value & 0xFFFF_FFFF
        )

    def barrier(self, src: int, dst: int) -> None:
        made = _barriers[src, dst] if (src, dst) in _barriers else _make_barrier(src, dst)
        _pipeline_barrier(self._command, made[0], made[1], 0, 1, made[2], 0, NULL, 0, NULL)

    def open_image(self, image: VulkanImage) -> None:
        """Transition a new image to its permanent layout."""
        barrier = struct(
            "VkImageMemoryBarrier",
            lib.VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
            dstAccessMask=sum(_ACCESSES[flag] for flag in (COMPUTE_READ, COMPUTE_WRITE)),
            newLayout=GENERAL,
            srcQueueFamilyIndex=_NO_FAMILY,
            dstQueueFamilyIndex=_NO_FAMILY,
            image=image.image,
        )
        fill_range(barrier.subresourceRange)
        _pipeline_barrier(
            self._command, _TOP_OF_PIPE, _STAGES[COMPUTE], 0, 0, NULL, 0, NULL, 1, barrier
        )

    def timestamp(self) -> None:
        index = self._count % _QUERIES_PER_POOL
        if index == 0:
            info = struct(
                "VkQueryPoolCreateInfo",
                lib.VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                queryType=lib.VK_QUERY_TYPE_TIMESTAMP,
                queryCount=_QUERIES_PER_POOL,
            )
            pool = self._state.handles.create("VkQueryPool", info)
            self._result.query_pools.append(pool)
            lib.vkCmdResetQueryPool(self._command, pool, 0, _QUERIES_PER_POOL)
        lib.vkCmdWriteTimestamp(self._command, _BOTTOM_OF_PIPE, self._result.query_pools[-1], index)
        self._count += 1

    def finish(self, buffers: Sequence[DriverBuffer]) -> VulkanCommands:
        self._device.check(lib.vkEndCommandBuffer(self._command), "vkEndCommandBuffer")
        self._state.keep.update(buffers)
        self._result.prepare(self._count)
        return self._result


def _new_pool(device: Owner, handles: Handles, commands: Any) -> Any:
    """Create a command pool, write its one command buffer to `commands`, and return it."""
    info = struct(
        "VkCommandPoolCreateInfo",
        lib.VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        queueFamilyIndex=device.queue_family,
    )
    pool = handles.create("VkCommandPool", info)
    allocation = struct(
        "VkCommandBufferAllocateInfo",
        lib.VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        commandPool=pool,
        commandBufferCount=1,
    )
    result = lib.vkAllocateCommandBuffers(device.handle, allocation, commands)
    device.check(result, "vkAllocateCommandBuffers")
    return pool


class VulkanCommands(DriverCommands):
    """A recorded command buffer with its fence."""

    def __init__(self, device: Owner, state: _State, commands: Any) -> None:
        self._device = device
        self._state = state
        self._commands = commands
        self._timestamps = 0
        self.query_pools: list[Any] = []
        # Polling would take a core from a device that computes on the CPU.
        self._poll_s = 0.0 if device.info.type is DeviceType.CPU else _POLL_S
        self._is_long = False  # the last run
        self._finalizer = device.own(self, COMMAND_BUFFERS, state.release)

    def prepare(self, timestamps: int) -> None:
        """Create the objects for submission after recording, which wrote `timestamps` queries."""
        self._timestamps = timestamps
        if not self._state.fences[0]:
            info = struct("VkFenceCreateInfo", lib.VK_STRUCTURE_TYPE_FENCE_CREATE_INFO)
            self._state.handles.create("VkFence", info, self._state.fences)
        self._submit_info = struct(
            "VkSubmitInfo",
            lib.VK_STRUCTURE_TYPE_SUBMIT_INFO,
            commandBufferCount=1,
            pCommandBuffers=self._commands,
        )

    def submit(self) -> None:
        device, state = self._device, self._state
        fences = state.fences
        result = lib.vkResetFences(device.handle, 1, fences)
        if result:
            device.check(result, "vkResetFences")
        state.progress = _UNKNOWN  # until the result is known, which Ctrl-C may hide
        with device.queue_lock:
            result = lib.vkQueueSubmit(device.queue, 1, self._submit_info, fences[0])
        if result < 0:
            state.progress = _IDLE
            device.check(result, "vkQueueSubmit")
        state.progress = _PENDING

    def wait(self, timeout_s: float) -> bool:
        if not self._poll_s:
            return self._state.wait(int(timeout_s * 1e9))
        start = time.perf_counter()
        done = self._poll(start, timeout_s) or self._state.wait(int(timeout_s * 1e9))
        self._is_long = time.perf_counter() - start > _POLL_S
        return done

    def _poll(self, now: float, timeout_s: float) -> bool:
        """Return whether the commands end while polled; False after a long run."""
        device, state = self._device, self._state
        poll_end = now + min(0.0 if self._is_long else self._poll_s, timeout_s)
        while now < poll_end and state.progress == _PENDING:
            result = lib.vkGetFenceStatus(device.handle, state.fences[0])
            if result == _SUCCESS:
                state.progress = _IDLE
                return True
            device.check(result, "vkGetFenceStatus")
            now = time.perf_counter()
        return False

    def timestamps_ns(self) -> list[float | None]:
        device = self._device
        period = device.info.limits.timestamp_period_ns
        mask = (1 << device.timestamp_bits) - 1
        times: list[float | None] = []
        for first, pool in enumerate(self.query_pools):
            count = min(_QUERIES_PER_POOL, self._timestamps - first * _QUERIES_PER_POOL)
            raw = ffi.new("uint64_t[]", 2 * count)
            result = lib.vkGetQueryPoolResults(
                device.handle,
                pool,
                0,
                count,
                16 * count,
                raw,
                16,
                _QUERY_64 | _QUERY_AVAILABILITY,
            )
            device.check(result, "vkGetQueryPoolResults")
            words = pystruct.unpack(f"={2 * count}Q", ffi.buffer(raw))
            times += [
                (ticks & mask) * period if available else None
                for ticks, available in zip(words[::2], words[1::2], strict=True)
            ]
        return times

    def destroy(self) -> None:
        self._device.release(self._finalizer)
