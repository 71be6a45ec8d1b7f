"""The target of a ranking: device, float storage and loads, and a job's traits."""

from __future__ import annotations

from dataclasses import field

from vkmnn.base.elements import FloatElement
from vkmnn.base.records import dataclass
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.cost.devices import class_of
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.encoder import Load, VulkanEncoder
from vkmnn.vulkan.gemm.traits import Trait
from vkmnn.vulkan.storage import FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class Target:
    """All inputs of ranking rules besides the problem.

    Args:
        info: the device.
        element: storage of floats.
        load: preferred way of loading floats.
        loads: allowed ways of loading floats.
        weight_bytes: size of all constants of the network. Targets that differ only in it are equal
            unless one is `cold`, since constants that depend on the input shape vary slightly.
        needs: traits that kernels must support.
        allows: traits that kernels may use.
    """

    info: DeviceInfo = field(hash=False)
    element: FloatElement = "f32"
    load: Load = "buffer"
    loads: tuple[Load, ...] = ("buffer",)
    weight_bytes: int = field(default=0, compare=False)
    needs: Trait = Trait.NONE
    allows: Trait = Trait.NONE
    cold: bool = field(init=False, repr=False)
    """Whether the network's weights exceed the device's caches."""
    traits: str = field(init=False, repr=False, compare=False)
    """Needed and allowed traits, as named in the tuner's table."""

    @classmethod
    def of(
        cls, encoder: VulkanEncoder, needs: Trait = Trait.NONE, allows: Trait = Trait.NONE
    ) -> Target:
        """Return the target of an encoder; arithmetic other than float32 depends on the session."""
        arithmetic, given = encoder.arithmetic, (encoder.element, encoder.load, encoder.loads)
        if arithmetic == "limbs":
            allows |= Trait.LIMBS
        return encoder.once(
            ("target", *given, encoder.weight_bytes, arithmetic, needs, allows),
            lambda: cls(
                encoder.info,
                *given,
                encoder.weight_bytes,
                needs,
                allows & ~Trait.FP16_MATH if arithmetic != "f16" else allows,
            ),
        )

    def __post_init__(self) -> None:
        """Compare the weights with the caches, and name the traits."""
        cold = self.weight_bytes > class_of(self.info).cache_bytes
        object.__setattr__(self, "cold", cold)
        object.__setattr__(self, "traits", (self.needs | self.allows).label)

    @property
    def gpu(self) -> bool:
        """Whether shared memory is fast."""
        return is_gpu(self.info)

    @property
    def element_bytes(self) -> int:
        """Bytes of a float in memory."""
        return FLOAT_BYTES[self.element]
