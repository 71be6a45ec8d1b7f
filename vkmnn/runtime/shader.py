"""A compiled shader variant: its bindings, requirements and SPIR-V."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from vkmnn.base.records import dataclass
from vkmnn.errors import ShaderError

TEXEL_SIZES = {
    "rgba32f": 16,
    "rg32f": 8,
    "r32f": 4,
    "rgba16f": 8,
    "rg16f": 4,
    "r16f": 2,
    "r16i": 2,
    "r16ui": 2,
    "rgba32i": 16,
    "rg32i": 8,
    "r32i": 4,
    "rgba32ui": 16,
    "rg32ui": 8,
    "r32ui": 4,
    "rgba16i": 8,
    "rgba16ui": 8,
    "rgba8": 4,
    "rgba8_snorm": 4,
    "rgba8i": 4,
    "rgba8ui": 4,
    "r8i": 1,
    "r8ui": 1,
}
"""Image format of a TEXEL binding -> bytes a texel."""


class BindingType(enum.Enum):
    """Descriptor type of a binding."""

    STORAGE = "storage"
    TEXEL = "texel"
    """Storage texel buffer (`imageBuffer`)."""
    IMAGE = "image"
    """2-D image, bound as a whole: sampled to read, stored to write."""


IMAGE_FORMATS = ("rgba32f", "rgba16f")
"""Formats of 2-D images; feature "images" means that they can be sampled, stored and copied."""


@dataclass(frozen=True, slots=True)
class ShaderBinding:
    """A binding of descriptor set 0.

    `access` is "r", "w" or "rw"; "" if the order of accesses does not matter. `format` is the
    element type ("f32", "i32", "vec4") of a STORAGE binding, the image format ("rgba32f") of a
    TEXEL or IMAGE binding.
    """

    name: str
    index: int
    type: BindingType
    access: str
    format: str


@dataclass(frozen=True, slots=True)
class SpecConstant:
    """A specialization constant; `type` is "uint", "int", "float" or "bool"."""

    name: str
    id: int
    type: str
    default: int | float | bool


@dataclass(frozen=True, eq=False)
class Shader:
    """A shader variant; two are equal if name and SPIR-V digest are.

    `spirv` returns the SPIR-V module and is called when a pipeline is built, `digest` is the
    module's SHA-256 in hexadecimal, or the digest of its source if it is compiled on demand
    (`by_source`), `push_constant_size` is in bytes, `requires` names device features.
    `subgroup_size` requires that size and full subgroups (0: the driver chooses); it needs the
    feature "subgroup_size_control".
    """

    name: str
    bindings: tuple[ShaderBinding, ...]
    push_constant_size: int
    spec_constants: tuple[SpecConstant, ...]
    requires: frozenset[str]
    local_size: tuple[int, int, int]
    spirv: Callable[[], bytes]
    digest: str
    subgroup_size: int = 0
    by_source: bool = False
    watched: bool = False
    """Whether a binding, `overflow`, is a word that is set when a float16 overflows."""
    flagged: frozenset[int] | None = None
    """The bindings that no dispatch writes, if its workgroups wait for each other by flags, in the
    last two bindings (`flags.py`); else None."""

    @cached_property
    def constant_names(self) -> frozenset[str]:
        """The names of the specialization constants."""
        return frozenset(constant.name for constant in self.spec_constants)

    @cached_property
    def reads(self) -> tuple[bool, ...]:
        """Whether each binding is read."""
        return tuple("r" in binding.access for binding in self.bindings)

    @cached_property
    def written(self) -> tuple[int, ...]:
        """The numbers of the bindings that are written."""
        return tuple(i for i, binding in enumerate(self.bindings) if "w" in binding.access)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shader):
            return NotImplemented
        return (self.digest, self.name, self.watched, self.flagged) == (
            *(other.digest, other.name, other.watched, other.flagged),
        )

    def __hash__(self) -> int:
        return hash((self.digest, self.name))

    def index_of(self, name: str) -> int:
        """Return the number of a binding."""
        return next(one.index for one in self.bindings if one.name == name)


def watched(shader: Shader) -> Shader:
    """Return a shader that reports float16 overflow in a further binding, `overflow`.

    Reports need no order, so recorders treat it as neither read nor written.
    """
    word = ShaderBinding("overflow", len(shader.bindings), BindingType.STORAGE, "", "u32")
    return replace(shader, bindings=(*shader.bindings, word), watched=True)


def flagged(shader: Shader, constants: frozenset[int]) -> Shader:
    """Return a shader whose workgroups wait for those of other dispatches by flags.

    Its last two bindings are those of a recorder's `FlagLine`, which alone knows their order.

    Args:
        shader: the shader; the last change to it.
        constants: its bindings that no dispatch writes.
    """
    count = len(shader.bindings)
    words = [
        ShaderBinding(name, count + number, BindingType.STORAGE, "", "u32")
        for number, name in enumerate(("flags", "late"))
    ]
    return replace(shader, bindings=(*shader.bindings, *words), flagged=constants)


_SPIRV_MAGIC = 0x07230203
_HEADER_BYTES = 20


def checked_spirv(shader: Shader) -> bytes:
    """Return the SPIR-V module.

    Raises:
        ShaderError: it does not match the digest, or is not a SPIR-V module.
    """
    code = shader.spirv()
    # A library checks the shaders that it has compiled.
    digest = shader.digest if shader.by_source else hashlib.sha256(code).hexdigest()
    if digest != shader.digest:
        raise ShaderError(
            f"shader {shader.name}: its SPIR-V has the digest {digest[:16]}..., not the expected "
            f"{shader.digest[:16]}...",
            hint="the installed files are damaged or out of step: install vkmnn again, or run "
            "`python -m vkmnn.codegen`",
        )
    magic = int.from_bytes(code[:4], "little")
    if len(code) % 4 or len(code) < _HEADER_BYTES or magic != _SPIRV_MAGIC:
        raise ShaderError(f"shader {shader.name}: its code is not a SPIR-V module")
    return code
