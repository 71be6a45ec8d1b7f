"""Shader data for kp; the VkPipeline is created per use, since kp ties it to its tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.errors import ShaderError
from vkmnn.runtime.drivers.base import DriverPipeline
from vkmnn.runtime.shader import BindingType, Shader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vkmnn.runtime.drivers.kompute.owner import Owner

_MAX_CONSTANT_ID = 1023
_SPEC_FORMATS = {"uint": "I", "int": "i", "float": "f", "bool": "I"}


class KomputePipeline(DriverPipeline):
    """A module with its specialization constants, as the words that kp passes on.

    kp numbers constants and bindings from 0 without gaps. `constants` has a word for every number
    up to the largest; Vulkan ignores those that the shader lacks. `order` maps binding numbers to
    the range to bind, None if the shader has no such binding.
    """

    __slots__ = (
        "__weakref__",
        "_device",
        "_finalizer",
        "code",
        "constants",
        "name",
        "order",
        "push",
    )

    def __init__(
        self,
        device: Owner,
        shader: Shader,
        code: bytes,
        spec: Mapping[str, int | float | bool],
    ) -> None:
        self.name = shader.name
        self.code = code
        self.constants = _constants(shader, spec)
        self.push = np.zeros(shader.push_constant_size // 4, np.uint32)
        self.order = _order(shader)
        self._device = device
        self._finalizer = device.own(self, "pipelines", [])

    def destroy(self) -> None:
        self._device.release(self._finalizer)


def _constants(shader: Shader, spec: Mapping[str, int | float | bool]) -> NDArray[np.uint32]:
    ids = {constant.id: constant for constant in shader.spec_constants}
    if max(ids, default=0) > _MAX_CONSTANT_ID:
        raise ShaderError(
            f"shader {shader.name} has a specialization constant of the id {max(ids)}; Kompute "
            "numbers them from 0",
            hint=f"number the constants from 0, below {_MAX_CONSTANT_ID + 1}",
        )
    words = np.zeros(max(ids, default=-1) + 1, np.uint32)
    for number, constant in ids.items():
        packed = struct.pack(f"={_SPEC_FORMATS[constant.type]}", spec[constant.name])
        words[number] = np.frombuffer(packed, np.uint32)[0]
    return words


def _order(shader: Shader) -> tuple[int | None, ...]:
    texel = [b.name for b in shader.bindings if b.type is not BindingType.STORAGE]
    if texel:
        raise ShaderError(
            f"shader {shader.name} binds texel buffers ({', '.join(texel)}); Kompute has none",
            hint="choose the variant that loads from storage buffers",
        )
    place = {binding.index: place for place, binding in enumerate(shader.bindings)}
    return tuple(place.get(index) for index in range(max(place, default=-1) + 1))
