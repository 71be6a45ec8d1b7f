"""Places the tensors of a plan: activations by lifetime, constants shared, I/O apart."""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.base.lazy_array import let_go, root_of
from vkmnn.base.mapped_files import MappedFile, give_back_freed, let_go_of_pages, place_in_file
from vkmnn.base.records import dataclass
from vkmnn.base.threads import Workers
from vkmnn.core.backend import MemoryUse
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.tensor import Tensor
from vkmnn.errors import OutOfDeviceMemoryError
from vkmnn.ir import Array, Layout
from vkmnn.runtime.device import Device
from vkmnn.runtime.memory import Buffer, BufferRange, Image, MemoryKind
from vkmnn.runtime.memory_plan import Lifetime, plan_buffers, plan_offsets
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.device_storage import place_on
from vkmnn.vulkan.forms import NO_FORMS, Forms
from vkmnn.vulkan.images.place import place_of
from vkmnn.vulkan.recording import PackedConstant, Recording
from vkmnn.vulkan.storage import VECTOR_BYTES, storage_bytes

# One allocation must stay well under maxMemoryAllocationSize, whose spec minimum is 1 GiB.
MAX_ARENA_BYTES = 512 << 20
# Bytes packed at a time: packed forms take host memory until they are uploaded.
BATCH_BYTES = 16 << 20
# Threads cost more than they save below this size; with more than a few, memory is the limit.
PARALLEL_BYTES = 1 << 20
MAX_THREADS = 4

T = TypeVar("T")

_Key = tuple[int, str, FloatElement]  # identity of the source, packing, how floats are stored


class ConstantArena:
    """A buffer of constants; freed when no plan uses any of them.

    `file` is the mapped file that contains it, if any.
    """

    def __init__(self, buffer: Buffer, file: MappedFile | None = None) -> None:
        self.buffer = buffer
        self.file = file

    def __del__(self) -> None:
        """Free the device memory."""
        self.buffer.destroy()


@dataclass(eq=False)
class ConstantStorage:
    """Place of a constant; `source` keeps the array alive that its key identifies."""

    __slots__ = ("__weakref__", "arena", "range", "source")

    range: BufferRange
    arena: ConstantArena
    source: Array


class ConstantStore:
    """The constants on a device, shared by plans and sessions, freed with the last plan."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._stored: weakref.WeakValueDictionary[_Key, ConstantStorage] = (
            weakref.WeakValueDictionary()
        )
        # An arena keeps its file mapped, and with it the key.
        self._files: weakref.WeakValueDictionary[int, ConstantArena] = weakref.WeakValueDictionary()

    def place(
        self, constants: Mapping[Tensor, PackedConstant], forms: Forms = NO_FORMS
    ) -> dict[Tensor, ConstantStorage]:
        """Upload missing constants and return the places of all.

        Args:
            constants: the constants of the plan.
            forms: forms that are packed already.

        Raises:
            ModelError: the size of a form differs from what kernels read.
        """
        with self._lock:
            return self._place(constants, forms)

    def forget(self, stored: Sequence[ConstantStorage]) -> None:
        """Forget the arrays of constants; a later user of them uploads them again."""
        with self._lock:
            gone = set(map(id, stored))
            for key in [key for key, one in self._stored.items() if id(one) in gone]:
                del self._stored[key]
            for one in stored:
                one.source = np.empty(0)

    def _place(
        self, constants: Mapping[Tensor, PackedConstant], forms: Forms
    ) -> dict[Tensor, ConstantStorage]:
        placed: dict[Tensor, ConstantStorage] = {}
        missing: dict[_Key, tuple[PackedConstant, str]] = {}
        for tensor, constant in constants.items():
            stored = self._stored.get(_key(constant))
            if stored is not None:
                placed[tensor] = stored
            else:
                missing.setdefault(_key(constant), (constant, tensor.name))
        if not missing:  # as for all plans of a session except the first
            return placed
        fresh: dict[_Key, ConstantStorage] = {}
        total = sum(constant.source.nbytes for constant, _ in missing.values())
        threads = min(MAX_THREADS, os.cpu_count() or 1) if total > PARALLEL_BYTES else 0
        with Workers(threads, "vkmnn-pack") as workers:
            readers = Counter(key for item in missing.values() for key in _arrays_of(item[0]))
            for batch in _batches(missing.values(), _source_bytes, BATCH_BYTES):
                packed = [workers.submit(_pack, item, forms) for item in batch]
                fresh.update(self._upload([done.result() for done in packed], workers))
                del packed
                for constant, _ in batch:
                    if fresh[_key(constant)].arena.file is not None:
                        continue  # the device reads the file's pages
                    for key, array in _arrays_of(constant).items():
                        readers[key] -= 1
                        if not readers[key]:
                            let_go(array)
        if total > BATCH_BYTES:
            give_back_freed()
        for tensor, constant in constants.items():
            if tensor not in placed:
                placed[tensor] = fresh[_key(constant)]
        return placed

    def _upload(
        self, packed: Sequence[tuple[PackedConstant, Array]], workers: Workers
    ) -> dict[_Key, ConstantStorage]:
        alignment = _alignment(self._device)
        stored: dict[_Key, ConstantStorage] = {}
        for constant, array in packed:
            if constant.image:
                place = image_with(self._device, array, constant.element)
                key = _key(constant)
                arena = ConstantArena(place.buffer)
                self._stored[key] = stored[key] = ConstantStorage(place, arena, constant.source)
            elif (found := self._in_file(array)) is not None:
                arena, place = found
                key = _key(constant)
                self._stored[key] = stored[key] = ConstantStorage(place, arena, constant.source)
        packed = [item for item in packed if _key(item[0]) not in stored]
        limit = 0 if self._device.info.limits.whole_buffers else MAX_ARENA_BYTES
        writes: list[tuple[Buffer, int, Array]] = []
        for group in _batches(packed, lambda item: _room(item[1], alignment), limit):
            total = sum(_room(array, alignment) for _, array in group)
            arena = ConstantArena(self._device.allocate(total, MemoryKind.WEIGHTS))
            offset = 0
            for constant, array in group:
                writes.append((arena.buffer, offset, array))
                size = max(array.nbytes, VECTOR_BYTES)
                place = BufferRange(arena.buffer, offset, _aligned(size, VECTOR_BYTES))
                key = _key(constant)
                self._stored[key] = stored[key] = ConstantStorage(place, arena, constant.source)
                offset += _room(array, alignment)
        for done in [workers.submit(_write, *write) for write in writes]:
            done.result()
        for _, array in packed:
            let_go_of_pages(array)
        return stored

    def _in_file(self, array: Array) -> tuple[ConstantArena, BufferRange] | None:
        """Return the device's view of an array in a mapped file, if it can read it there."""
        limits = self._device.info.limits
        found = None if limits.whole_buffers else place_in_file(array)
        if found is None:
            return None
        file, offset = found
        if offset % max(limits.storage_offset_alignment, limits.texel_offset_alignment):
            return None
        arena = self._files.get(id(file))
        if arena is None:
            buffer = self._device.import_file(file)
            if buffer is None:
                return None
            arena = self._files[id(file)] = ConstantArena(buffer, file)
        nbytes = _aligned(max(array.nbytes, VECTOR_BYTES), VECTOR_BYTES)
        if offset + nbytes > arena.buffer.nbytes:
            return None
        return arena, BufferRange(arena.buffer, offset, nbytes)


_STORES: weakref.WeakValueDictionary[int, ConstantStore] = weakref.WeakValueDictionary()
_STORES_LOCK = threading.Lock()


def constants_of(device: Device) -> ConstantStore:
    """Return the constants of a device, shared by all sessions of a network."""
    with _STORES_LOCK:
        # The store keeps the device alive, and with it the key.
        store = _STORES.get(id(device))
        if store is None:
            store = _STORES[id(device)] = ConstantStore(device)
        return store


def _key(constant: PackedConstant) -> _Key:
    return id(constant.source), constant.key, constant.element


def _source_bytes(item: tuple[PackedConstant, str]) -> int:
    return item[0].source.nbytes


def _pack(item: tuple[PackedConstant, str], forms: Forms) -> tuple[PackedConstant, Array]:
    """Return a constant with its packed form; the text names the tensor."""
    constant, name = item
    return constant, forms.packed(constant, name)


def _arrays_of(constant: PackedConstant) -> dict[int, Array]:
    """Return the arrays that a packing reads, by identity."""
    return {id(root_of(array)): array for array in (constant.source, *constant.others)}


def _room(array: Array, alignment: int) -> int:
    return _aligned(max(array.nbytes, VECTOR_BYTES), alignment)


def _write(buffer: Buffer, offset: int, array: Array) -> None:
    """Write an array with any strides; mapped memory needs no copy in between."""
    if array.nbytes == 0:
        return
    host = buffer.coherent_host
    if host is None:
        buffer.write(offset, np.ascontiguousarray(array))
        return
    raw = host[offset : offset + array.nbytes]
    np.copyto(raw.view(array.dtype).reshape(array.shape), array)


def _batches(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterable[list[T]]:
    """Split items into batches of at most `limit` bytes, or of a single item."""
    batch: list[T] = []
    total = 0
    for item in items:
        if batch and total + size(item) > limit:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


@dataclass(slots=True)
class PlanMemory:
    """Places of the tensors of a plan.

    `ranges` is keyed by root tensor (see `Recording.root`); `readback` holds host-readable copies
    of kept tensors that are not in host-readable memory themselves.
    """

    ranges: dict[Tensor, BufferRange]
    readback: dict[Tensor, BufferRange]
    buffers: list[Buffer]
    constants: list[ConstantStorage]
    activation_bytes: int
    activation_lower_bound: int
    device: Device

    def place_on_device(self, tensor: DeviceTensor) -> BufferRange | None:
        """Return a tensor's place on this device; None if it is elsewhere."""
        return place_on(self.device, tensor)

    def copy_on_device(self, tensor: DeviceTensor, place: BufferRange, view: Array | None) -> bool:
        """Copy a tensor of this device into a range of the plan; False if it is elsewhere.

        Args:
            tensor: has the shape of the data in that range.
            place: the range.
            view: the same range as an array, if the host can access it.
        """
        source = place_on(self.device, tensor)
        if source is None:
            return False
        host = source.buffer.coherent_host if view is not None else None
        if host is not None and view is not None:
            raw = host[source.offset : source.offset + view.nbytes]
            np.copyto(view, raw.view(view.dtype).reshape(view.shape))
        elif source.nbytes != place.nbytes:
            return False
        else:
            self.device.copy(source, place)
        return True

    def forget_arrays(self) -> None:
        """Forget the arrays of constants; nothing can be recorded again afterwards."""
        self.ranges.clear()
        constants_of(self.device).forget(self.constants)

    def count_host_copy(self) -> None:
        """Count that the host wrote or read a tensor."""
        self.device.counts["host_copies"] += 1

    def use(self) -> MemoryUse:
        """Return the plan's device memory in bytes."""
        return MemoryUse(
            self.activation_bytes,
            self.activation_lower_bound,
            sum(storage.range.nbytes for storage in dict.fromkeys(self.constants)),
            sum(buffer.nbytes for buffer in self.buffers) - self.activation_bytes,
        )

    def close(self) -> None:
        """Free the plan's own buffers."""
        for buffer in self.buffers:
            buffer.destroy()
        self.buffers.clear()
        self.ranges.clear()
        self.readback.clear()
        self.constants.clear()


def plan_memory(
    device: Device,
    store: ConstantStore,
    recording: Recording,
    kept: Sequence[Tensor],
    provided: Sequence[Tensor],
    forms: Forms = NO_FORMS,
    stored_bytes: int | None = None,
    eager: bool = False,
) -> PlanMemory:
    """Place every tensor that the recorded dispatches touch.

    Args:
        device: the device.
        store: the session's constants.
        recording: the recording of all segments of the plan, in running order.
        kept: tensors that the host reads.
        provided: tensors that the host writes.
        forms: constants that are packed already.
        stored_bytes: size up to which kernels store to host memory; default: by device class.
        eager: place tensors in the order of their first uses, not once all are known.

    Raises:
        ModelError: the size of a form differs from what kernels read.
        OutOfDeviceMemoryError: there is not enough memory; the message lists the plan's needs.
    """
    alignment = _alignment(device)
    uses = uses_of(recording)
    constants = constants_used(recording, [*uses.spans, *map(recording.root, kept)])
    placed = store.place(constants, forms)
    ranges = {tensor: storage.range for tensor, storage in placed.items()}

    uploads = [recording.root(tensor) for tensor in provided]
    limit = class_of(device.info).stored_bytes if stored_bytes is None else stored_bytes
    direct = [tensor for tensor in kept if _is_direct(tensor, recording, uses, ranges, limit)]
    copied = [tensor for tensor in kept if tensor not in direct]

    buffers: list[Buffer] = []
    ranges.update(_separate(device, uploads, MemoryKind.UPLOAD, alignment, buffers))
    ranges.update(_separate(device, direct, MemoryKind.READBACK, alignment, buffers))
    if recording.status is not None:
        status = [recording.status]
        ranges.update(_separate(device, status, MemoryKind.READBACK, alignment, buffers))
    counters = _separate(device, recording.counters, MemoryKind.DEVICE, alignment, buffers)
    for place in counters.values():
        place.buffer.write(place.offset, np.zeros(place.nbytes, np.uint8))
    ranges.update(counters)
    images, pooled = _place_images(device, uses)
    ranges.update(images)
    image_bytes = sum(image.nbytes for image in pooled)
    lifetimes = _lifetimes(recording, uses, ranges, copied, alignment)
    whole = device.info.limits.whole_buffers
    spots, sizes, bound = _spots(list(lifetimes.values()), whole, eager)
    device.check_room(sum(sizes) + image_bytes + sum(buffer.nbytes for buffer in buffers))
    stored = sum(storage.range.nbytes for storage in dict.fromkeys(placed.values()))
    shared = _shared(device, sizes, bound, stored, buffers)
    buffers += [*shared, *pooled]
    for (tensor, life), (number, offset) in zip(lifetimes.items(), spots, strict=True):
        ranges[tensor] = BufferRange(shared[number], offset, life.nbytes)
    readback = _separate(device, copied, MemoryKind.READBACK, alignment, buffers)
    return PlanMemory(
        ranges,
        readback,
        buffers,
        list(placed.values()),
        sum(sizes) + image_bytes,
        bound + image_bytes,
        device,
    )


def _shared(
    device: Device, sizes: Sequence[int], bound: int, stored: int, others: Sequence[Buffer]
) -> list[Buffer]:
    """Return the buffers that activations share.

    Args:
        device: the device.
        sizes: sizes of the buffers, in bytes.
        bound: bytes of activations that are alive at the busiest step.
        stored: bytes of constants.
        others: buffers of inputs and outputs.

    Raises:
        OutOfDeviceMemoryError: there is not enough memory; the message lists the plan's needs.
    """
    try:
        return [device.allocate(size, MemoryKind.DEVICE) for size in sizes]
    except OutOfDeviceMemoryError as error:
        raise OutOfDeviceMemoryError(
            f"{error.message}; the plan needs {sum(sizes)} bytes for activations (at the busiest "
            f"step {bound} are alive), {stored} for constants and "
            f"{sum(buffer.nbytes for buffer in others)} for inputs and outputs",
            hint="run a smaller batch, or smaller images",
        ) from error


def _is_direct(
    tensor: Tensor,
    recording: Recording,
    uses: Uses,
    placed: Mapping[Tensor, BufferRange],
    limit: int,
) -> bool:
    """Return whether a kernel stores a result, up to `limit` bytes, in host-readable memory."""
    own = recording.root(tensor) is tensor and tensor not in uses.read and tensor not in placed
    return own and storage_bytes(tensor) <= limit


def image_with(device: Device, array: Array, element: FloatElement) -> BufferRange:
    """Return an image that holds the texels [height, width, 4]."""
    height, width, _ = array.shape
    image = device.allocate_image(width, height, FLOATS[element].image)
    image.write(0, np.ascontiguousarray(array))
    return BufferRange(image, 0, image.nbytes)


def _place_images(device: Device, uses: Uses) -> tuple[dict[Tensor, BufferRange], list[Image]]:
    """Return the places of tensors in images, and these images.

    Tensors whose lifetimes do not overlap share an image if they need the same size.
    """
    spans = {t: span for t, span in uses.spans.items() if t.layout is Layout.IMAGE}
    images: list[Image] = []
    idle: dict[tuple[int, int, FloatElement], list[tuple[int, Image]]] = {}
    places: dict[Tensor, BufferRange] = {}
    for tensor, (first, last) in sorted(spans.items(), key=lambda item: item[1][0]):
        place = place_of(tensor.shape, device.info.limits.max_image_dimension)
        assert place is not None, f"{tensor.name} does not fit into an image"
        key = (place.width, place.height, tensor.element)
        waiting = idle.setdefault(key, [])
        free = next((item for item in waiting if item[0] < first), None)
        if free is None:
            image = device.allocate_image(place.width, place.height, FLOATS[tensor.element].image)
            images.append(image)
        else:
            waiting.remove(free)
            image = free[1]
        waiting.append((last, image))
        places[tensor] = BufferRange(image, 0, image.nbytes)
    return places, images


def _spots(
    lifetimes: Sequence[Lifetime], whole_buffers: bool, eager: bool
) -> tuple[list[tuple[int, int]], list[int], int]:
    """Return each tensor's (buffer number, offset), the buffers' sizes, and the lower bound."""
    if whole_buffers:
        numbers, sizes, bound = plan_buffers(lifetimes)
        return [(number, 0) for number in numbers], sizes, bound
    offsets, total, bound = plan_offsets(lifetimes, eager)
    return [(0, offset) for offset in offsets], [total] if total else [], bound


def constants_used(recording: Recording, roots: Iterable[Tensor]) -> dict[Tensor, PackedConstant]:
    """Return the constants among tensors that own storage, in their bound form."""
    used: dict[Tensor, PackedConstant] = {}
    for root in roots:
        if root.value is None or root in used:
            continue
        packed = recording.packed.get(root)
        if packed is None:
            packed = PackedConstant(root.value, "plain", lambda array: array, root.element)
        used[root] = packed
    return used


@dataclass(frozen=True, slots=True)
class Uses:
    """Uses of storage-owning tensors by dispatches.

    Attributes:
        spans: the steps of first and last use, in the order of first uses.
        read: tensors that dispatches read.
    """

    spans: dict[Tensor, tuple[int, int]]
    read: set[Tensor]


def uses_of(recording: Recording) -> Uses:
    """Return the uses of tensors by the dispatches."""
    spans: dict[Tensor, tuple[int, int]] = {}
    read: set[Tensor] = set()
    aliases = recording.aliases
    for dispatch in recording.dispatches:
        step = dispatch.step
        for tensor, reads in zip(dispatch.tensors, dispatch.shader.reads, strict=True):
            root = recording.root(tensor) if tensor in aliases else tensor
            spans[root] = (spans[root][0] if root in spans else step, step)
            if reads:
                read.add(root)
    return Uses(spans, read)


def _lifetimes(
    recording: Recording,
    uses: Uses,
    placed: Mapping[Tensor, BufferRange],
    copied: Sequence[Tensor],
    alignment: int,
) -> dict[Tensor, Lifetime]:
    """Return the first and last step of every tensor without a place."""
    spans = {root: span for root, span in uses.spans.items() if root not in placed}
    end = len(recording.dispatches)
    for tensor in copied:
        root = recording.root(tensor)
        if root not in placed:
            # The copy to host memory happens after the segment's last dispatch.
            spans[root] = (spans.get(root, (0, 0))[0], end)
    return {
        root: Lifetime(first, last, storage_bytes(root), alignment)
        for root, (first, last) in spans.items()
    }


def _separate(
    device: Device,
    tensors: Iterable[Tensor],
    kind: MemoryKind,
    alignment: int,
    buffers: list[Buffer],
) -> dict[Tensor, BufferRange]:
    """Place tensors without aliasing: side by side in one buffer, or in one each."""
    unique = list(dict.fromkeys(tensors))
    whole = device.info.limits.whole_buffers
    groups = [[tensor] for tensor in unique] if whole else [unique] if unique else []
    places: dict[Tensor, BufferRange] = {}
    for group in groups:
        sizes = [storage_bytes(tensor) for tensor in group]
        buffer = device.allocate(sum(_aligned(size, alignment) for size in sizes), kind)
        buffers.append(buffer)
        offset = 0
        for tensor, size in zip(group, sizes, strict=True):
            places[tensor] = BufferRange(buffer, offset, size)
            offset += _aligned(size, alignment)
    return places


def _alignment(device: Device) -> int:
    limits = device.info.limits
    return max(
        256,
        limits.storage_offset_alignment,
        limits.texel_offset_alignment,
        limits.non_coherent_atom_size,
    )


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
