"""Storage formats of floats on a device: the single table of float elements.

Kernels compute in float32. A narrower element is widened by a load and rounded by a store; memory,
casts of constants, costs, the device features that are required and the variants of kernels follow
from its row here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

FloatElement = Literal["f32", "f16"]
"""Names of float elements: values of the kernel axis `element`."""
Arithmetic = FloatElement | Literal["limbs"]
"""What products of floats may be computed in; limbs: float32 as sums of two float16 numbers."""


@dataclass(frozen=True, slots=True)
class FloatStorage:
    """A row of the table.

    Attributes:
        label: name in tuning tables, names of tensors and reports.
        numpy: name of numpy's type of the stored elements; a build of the wheel has no numpy.
        bytes: bytes of one number.
        words: GLSL types in memory of one, two and four components.
        texels: formats of these in texel buffers and images; empty where there are none.
        extension: GLSL extension that the types need in a buffer.
        needs: device features that the types need in a buffer.
        functions: GLSL functions NAME_widened, from unsigned integers to floats, and NAME_rounded,
            back to nearest even, for one, two and four components; empty where GLSL converts
            `words` by itself.
        largest: the largest finite number.
        least_normal: the smallest number with all digits.
        whole: all whole numbers up to this are exact.
    """

    label: str
    numpy: str
    bytes: int
    words: tuple[str, str, str]
    texels: tuple[str, str, str] | tuple[()] = ()
    extension: str | None = None
    needs: tuple[str, ...] = ()
    functions: str = ""
    largest: float = (2.0 - 2.0**-23) * 2.0**127
    least_normal: float = 2.0**-126
    whole: int = 1 << 24

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the stored elements."""
        return _dtype(self.numpy)

    @property
    def image(self) -> str:
        """Format of images with texels of four numbers; empty if there is none."""
        return self.texels[-1] if self.texels else ""

    @property
    def overflows(self) -> bool:
        """Whether finite float32 numbers become infinite when stored."""
        return self.largest < 1e38


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    return np.dtype(name)


FLOATS: dict[FloatElement, FloatStorage] = {
    "f32": FloatStorage(
        "fp32", "float32", 4, ("float", "vec2", "vec4"), ("r32f", "rg32f", "rgba32f")
    ),
    "f16": FloatStorage(
        "fp16",
        "float16",
        2,
        ("float16_t", "f16vec2", "f16vec4"),
        ("r16f", "rg16f", "rgba16f"),
        "GL_EXT_shader_16bit_storage",
        ("storage16",),
        largest=65504.0,
        least_normal=2.0**-14,
        whole=2048,
    ),
}

NARROW: frozenset[str] = frozenset(name for name in FLOATS if name != "f32")
"""Elements narrower than the arithmetic of kernels."""
