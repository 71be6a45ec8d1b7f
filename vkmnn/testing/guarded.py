"""Memory for kernel tests: each tensor in its own poisoned buffer with guard words.

Elements that a kernel fails to write, or reads past a tensor, are then NaN or a large number, and
writes past a tensor are visible afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from vkmnn.base.elements import FLOATS, Arithmetic, FloatElement
from vkmnn.core.execution import Command
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback.registry import AnyArray
from vkmnn.ir import Layout, storage_elements
from vkmnn.runtime.device import Device
from vkmnn.runtime.memory import Buffer, BufferRange, MemoryKind
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.backend import VulkanBackend
from vkmnn.vulkan.choice import Chooser
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.images.place import place_of
from vkmnn.vulkan.plan.memory import PlanMemory, constants_used, image_with, uses_of
from vkmnn.vulkan.recording import Recording, specialized
from vkmnn.vulkan.storage import VECTOR_BYTES, storage_bytes

POISONS = (0x7FD5A5C3, 0x7F05A5C3)
"""Content of every word before a run: NaN as a float, a large integer.

A new copy of each tensor, so that reads and writes of poison show.
"""

_HALF_POISONS = {POISONS[0]: 0x7FD5, POISONS[1]: 0x7B05}
"""The same of two bytes."""

GUARD_BYTES = 4096
"""After each tensor, within the range that is bound, so that drivers let kernels write there."""

FOLD = 2
"""Maximum adjacent workgroups before a grid is folded."""

_NONE: Mapping[str, Shader] = MappingProxyType({})


class GuardedBackend(VulkanBackend):
    """A backend for one plan that reveals mistakes of kernels.

    Args:
        device: the device.
        chooser: decides between kernels.
        replaced: shaders to run in the place of those of these names.
        element: how floats are stored, from the inputs on; see `VulkanBackend`.
        storage: how tensors are stored; see `VulkanBackend`.
        arithmetic: what kernels may compute in; see `VulkanBackend`.
    """

    def __init__(
        self,
        device: Device,
        chooser: Chooser,
        replaced: Mapping[str, Shader] = _NONE,
        element: FloatElement = "f32",
        storage: str = "buffer",
        arithmetic: Arithmetic = "f32",
    ) -> None:
        super().__init__(
            device,
            chooser=chooser,
            element=element,
            narrow_inputs=element != "f32",
            storage=storage,
            spacious=True,  # kernels that take much memory are tested too
            arithmetic=arithmetic,
        )
        self._replaced = replaced
        self._written: list[Tensor] = []
        self._variable: list[Tensor] = []
        self._counters: list[Tensor] = []
        self._ranges: dict[Tensor, BufferRange] = {}
        self.dispatched: frozenset[str] = frozenset()
        """Names of the kernels that run."""

    def new_encoder(self, weight_bytes: int) -> VulkanEncoder:
        encoder = super().new_encoder(weight_bytes)
        # Grids of workgroups are folded here as they are on large tensors only.
        limits = encoder.info.limits
        folded = replace(limits, max_workgroup_count=(FOLD, *limits.max_workgroup_count[1:]))
        encoder.info = replace(encoder.info, limits=folded)
        return encoder

    def encode(self, segments: Sequence[Sequence[Command]]) -> tuple[Recording, list[int]]:
        recording, ends = super().encode(segments)
        self.dispatched = frozenset(dispatch.shader.name for dispatch in recording.dispatches)
        for dispatch in recording.dispatches:
            dispatch.shader = self._replaced.get(dispatch.shader.name, dispatch.shader)
            dispatch.pipeline = specialized(dispatch.shader, dispatch.spec)
            dispatch.tensors = tuple(_whole(t, recording) for t in dispatch.tensors)
        return recording, ends

    def place(
        self, recording: Recording, kept: Sequence[Tensor], provided: Sequence[Tensor]
    ) -> PlanMemory:
        """Allocate a separate buffer for every tensor."""
        bound = [tensor for dispatch in recording.dispatches for tensor in dispatch.tensors]
        bound += [*kept, *provided, *([recording.status] if recording.status else [])]
        constants = {
            tensor: constant.array(tensor.name)
            for tensor, constant in constants_used(
                recording, [*uses_of(recording).spans, *map(recording.root, kept)]
            ).items()
        }
        ranges: dict[Tensor, BufferRange] = {}
        for tensor in dict.fromkeys(map(recording.root, bound)):
            array = constants.get(tensor)
            packed = recording.packed.get(tensor)
            if array is not None and packed is not None and packed.image:
                ranges[tensor] = image_with(self.device, array, packed.element)
                continue
            if tensor.layout is Layout.IMAGE:
                ranges[tensor] = self._image(tensor, len(ranges))
                continue
            size = storage_bytes(tensor) if array is None else _vectors(array.nbytes)
            buffer = self.device.allocate(size + GUARD_BYTES, MemoryKind.READBACK)
            buffer.write(0, _filled(buffer, POISONS[0], len(ranges), tensor.element))
            if array is not None and array.size:
                buffer.write(0, np.ascontiguousarray(array))
            ranges[tensor] = BufferRange(buffer, 0, buffer.nbytes)
        written = [
            recording.root(tensor)
            for dispatch in recording.dispatches
            for tensor, binding in zip(dispatch.tensors, dispatch.shader.bindings, strict=True)
            if "w" in binding.access
        ]
        self._written = list(dict.fromkeys(written))
        self._ranges = ranges
        self._counters = recording.counters
        for tensor in recording.counters:
            ranges[tensor].buffer.write(0, np.zeros(storage_bytes(tensor), np.uint8))
        lasting = {*constants, *recording.counters}
        self._variable = [tensor for tensor in ranges if tensor not in lasting]
        buffers = [place.buffer for place in ranges.values()]
        total = sum(buffer.nbytes for buffer in buffers)
        return PlanMemory(ranges, {}, buffers, [], total, total, self.device)

    def _image(self, tensor: Tensor, number: int) -> BufferRange:
        place = place_of(tensor.shape, self.device.info.limits.max_image_dimension)
        assert place is not None
        image = self.device.allocate_image(place.width, place.height, FLOATS[tensor.element].image)
        image.write(0, _filled(image, POISONS[0], number, tensor.element))
        return BufferRange(image, 0, image.nbytes)

    def poison(self, poison: int) -> None:
        """Fill the memory of everything but constants and counters; call it before a run."""
        for number, tensor in enumerate(self._variable):
            buffer = self._ranges[tensor].buffer
            buffer.write(0, _filled(buffer, poison, number, tensor.element))

    def check_memory(self) -> None:
        """Check for writes outside the results; call it after a run, before `close`.

        Raises:
            AssertionError: something was written past a tensor, lanes of a channel-blocked tensor
                past its last channel are not zero, or a counter is not zero again.
        """
        for tensor in self._written:
            words = self._words(tensor)
            if tensor.layout is Layout.IMAGE:
                self._check_lanes(tensor, words)
                continue
            size = storage_bytes(tensor) // 4
            touched = np.flatnonzero(words[size:] != words[-1])
            assert touched.size == 0, (
                f"'{tensor.name}' has {size} words, and word {size + touched[0]} was written"
            )
            if tensor.layout is Layout.NC4HW4 and tensor.shape[1] % 4:
                elements = _elements(tensor, words)
                elements = elements[: storage_elements(tensor.shape, tensor.layout)]
                blocks = elements.reshape(-(-tensor.shape[1] // 4), -1, 4)
                tail = blocks[-1, :, tensor.shape[1] % 4 :]
                assert not tail.any(), f"lanes past the last channel of '{tensor.name}' are set"
        for tensor in self._counters:
            words = self._words(tensor)[: storage_bytes(tensor) // 4]
            assert not words.any(), f"'{tensor.name}' is not zero again"

    def _check_lanes(self, tensor: Tensor, words: AnyArray) -> None:
        """Check that an image's lanes past the last channel are zero."""
        place = place_of(tensor.shape, self.device.info.limits.max_image_dimension)
        assert place is not None
        texels = words.view(_bits(tensor.element)).reshape(place.height, -1, 4)
        last = texels[:, -1:] if place.folded else texels[:, -place.columns :]
        valid = tensor.shape[1] - 4 * (place.blocks - 1)
        tail = last[..., valid:] << 1  # without the sign
        assert not tail.any(), f"lanes past the last channel of '{tensor.name}' are set"

    def _words(self, tensor: Tensor) -> AnyArray:
        place = self._ranges[tensor]
        return place.buffer.read(0, place.nbytes).view(np.int32)


def _elements(tensor: Tensor, words: AnyArray) -> AnyArray:
    """Return numbers that are zero where a tensor's elements are."""
    if tensor.codes is not None:
        return words.view(np.int8).astype(np.int32) + tensor.codes
    without_sign: AnyArray = words.view(_bits(tensor.element)) << 1
    return without_sign


def _whole(tensor: Tensor, recording: Recording) -> Tensor:
    """Return the tensor whose whole storage, guard included, another one shares."""
    root, offset = recording.placement(tensor)
    same = offset == 0 and storage_bytes(root) == storage_bytes(tensor)
    return root if same and root.layout is tensor.layout else tensor


def _filled(buffer: Buffer, poison: int, number: int, element: FloatElement) -> AnyArray:
    if FLOATS[element].bytes == 2:
        return np.full(buffer.nbytes // 2, _HALF_POISONS[poison] + number % 32, np.int16)
    return np.full(buffer.nbytes // 4, poison + number, np.int32)


def _bits(element: FloatElement) -> np.dtype[Any]:
    """Return the integers of an element's size."""
    return np.dtype(f"i{FLOATS[element].bytes}")


def _vectors(nbytes: int) -> int:
    return max(VECTOR_BYTES, -(-nbytes // VECTOR_BYTES) * VECTOR_BYTES)
