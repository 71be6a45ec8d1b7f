"""The declarations of a template, and the GLSL that follows from them.

A template never numbers anything: bindings, specialization ids and offsets are assigned here, in
order of declaration, and the same declaration creates the Python side (manifest, parameter
dataclass). Element types and texel formats: Vulkan spec "Compatibility Between SPIR-V Image Formats
And Vulkan Formats", GLSL 4.60 section 4.4.6.2.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vkmnn.base.elements import FLOATS, NARROW, FloatElement
from vkmnn.codegen.features import IMAGE_FORMATS, OPTIONAL_TEXEL_FORMATS
from vkmnn.errors import ShaderError
from vkmnn.shader_files.lock import PARAM
from vkmnn.shader_files.tiles import (
    CoopTileSize,
    DotTile,
    HaloTileSize,
    SharedTile,
    parse_coop,
    parse_halo,
)

MAX_PUSH_CONSTANT_BYTES = 128  # Vulkan spec, "Required Limits": maxPushConstantsSize
LOCAL_SIZE_NAMES = ("local_size_x", "local_size_y", "local_size_z")
FIRST_SPEC_ID = 3  # 0, 1, 2 are the local sizes

RESERVED_NAMES = frozenset(
    {
        "local_size", "tensor_in", "tensor_out", "tensor_inout", "params", "spec", "extension",
        "enum", "vec", "compute_type", "weights", "words", "is_float", "is_narrow",
        "shared_tile", "dot_tile", "coop_tile", "halo_tile",
        "subgroup_size", "fail", "range", "variant", "emulated",
    }
)  # fmt: skip

SpecValue = int | float | bool
_T = TypeVar("_T")

_TAKEN_PARAMS = frozenset({"self", "pack"})  # the Python class of the block has them already
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a tensor binding.

    Attributes:
        stored: GLSL type in memory.
        computed: the GLSL type that `x_load` returns and `x_store` accepts.
        size: bytes of one element (its array stride).
        texel: texel format, or None when the type has none.
        extension: GLSL extension that the stored type needs in a buffer.
        needs: features of the device that the stored type needs in a buffer.
        decode: GLSL expression of the float or vector that a stored word "{}" holds; empty where
            GLSL converts.
        encode: GLSL expression of unsigned integers that hold the float or vector "{}"; empty where
            GLSL converts, or where elements can only be read.
        functions: GLSL functions that these two call.
        components: number of them in a stored word; 0: as many as it has lanes.
    """

    stored: str
    computed: str
    size: int
    texel: str | None = None
    extension: str | None = None
    needs: tuple[str, ...] = ()
    decode: str = ""
    encode: str = ""
    functions: str = ""
    components: int = 0

    @property
    def image(self) -> str:
        """The GLSL image type of the texel view."""
        kind = "u" if self.encode else _KIND[self.stored if self.decode else self.computed]
        return {"f": "", "i": "i", "u": "u"}[kind] + "imageBuffer"

    @property
    def lanes(self) -> int:
        """Number of components in memory."""
        if self.components:
            return self.components
        return int(self.computed[-1]) if self.computed[-1].isdigit() else 1


_KIND = {
    **dict.fromkeys(("float", "vec2", "vec4", "double"), "f"),
    **dict.fromkeys(("int", "ivec2", "ivec4", "int64_t"), "i"),
    **dict.fromkeys(("uint", "uvec2", "uvec4"), "u"),
}
# Requirements of types in a buffer: a GLSL extension, and features of the device.
_16 = ("GL_EXT_shader_16bit_storage", ("storage16",))
_8 = ("GL_EXT_shader_8bit_storage", ("storage8",))
_64 = ("GL_EXT_shader_explicit_arithmetic_types_int64", ("int64",))
_BF16 = ("GL_EXT_bfloat16", ("storage16", "bfloat16"))


def _vector_prefix(name: FloatElement) -> str:
    return "vec" if name == "f32" else f"{name}vec"


def _floats() -> dict[str, Element]:
    """Return the elements of one, two and four components that the table of floats has."""
    made: dict[str, Element] = {}
    for name, row in FLOATS.items():
        for place, lanes in enumerate((1, 2, 4)):
            computed = f"vec{lanes}" if lanes > 1 else "float"
            bits = f"uvec{lanes}" if lanes > 1 else "uint"
            made[f"{_vector_prefix(name)}{lanes}" if lanes > 1 else name] = Element(
                row.words[place],
                computed,
                row.bytes * lanes,
                row.texels[place] if row.texels else None,
                row.extension,
                row.needs,
                decode=f"{name}_widened({bits}({{}}))" if row.functions else "",
                encode=f"{name}_rounded({{}})" if row.functions else "",
                functions=row.functions,
                components=lanes,
            )
    return made


ELEMENTS: dict[str, Element] = {
    **_floats(),
    "i32": Element("int", "int", 4, "r32i"),
    "ivec2": Element("ivec2", "ivec2", 8, "rg32i"),
    "ivec4": Element("ivec4", "ivec4", 16, "rgba32i"),
    "u32": Element("uint", "uint", 4, "r32ui"),
    "uvec2": Element("uvec2", "uvec2", 8, "rg32ui"),
    "uvec4": Element("uvec4", "uvec4", 16, "rgba32ui"),
    "bf16": Element("bfloat16_t", "float", 2, None, *_BF16),
    "i16": Element("int16_t", "int", 2, "r16i", *_16),
    "i16vec4": Element("i16vec4", "ivec4", 8, "rgba16i", *_16),
    "u16": Element("uint16_t", "uint", 2, "r16ui", *_16),
    "u16vec4": Element("u16vec4", "uvec4", 8, "rgba16ui", *_16),
    "i8": Element("int8_t", "int", 1, "r8i", *_8),
    "i8vec4": Element("i8vec4", "ivec4", 4, "rgba8i", *_8),
    "u8": Element("uint8_t", "uint", 1, "r8ui", *_8),
    "u8vec4": Element("u8vec4", "uvec4", 4, "rgba8ui", *_8),
    # Four signed bytes of a word, the lowest first: every device reads words. A template that has
    # them declares the constant that is added to each.
    "c8vec4": Element(
        "int",
        "vec4",
        4,
        "r32i",
        decode="vec4((ivec4({}) << ivec4(24, 16, 8, 0) >> 24) + WEIGHT_SHIFT)",
        components=1,
    ),
    "i64": Element("int64_t", "int64_t", 8, None, *_64),
    "f64": Element("double", "double", 8, None, None, ("float64",)),
}

# vec(dtype, lanes): the vector element of a scalar element.
_VECTORS: dict[str, str] = {
    **{str(name): _vector_prefix(name) for name in FLOATS},
    "i32": "ivec", "u32": "uvec", "i16": "i16vec", "u16": "u16vec",
    "i8": "i8vec", "u8": "u8vec",
}  # fmt: skip

_SAMPLED = "GL_EXT_samplerless_texture_functions"

# Values of an axis `element` with weights narrower than floats: the type of everything else, and
# that of four weights.
_NARROW_WEIGHTS = {"w8": ("f32", "c8vec4"), "c8": ("f32", "c8vec4")}

# How a tensor is bound, by the value of an axis `load`.
LOADS = {"buffer": "storage", "texel": "texel", "image": "image"}


@dataclass(frozen=True, slots=True)
class Binding:
    """A declared tensor binding.

    `type` is "storage", "texel" or "image", `access` "r", "w" or "rw".
    """

    name: str
    index: int
    type: str
    access: str
    element: str
    line: tuple[str, int]

    @property
    def format(self) -> str | None:
        """The texel format, None for a storage buffer."""
        return None if self.type == "storage" else ELEMENTS[self.element].texel

    @property
    def needs(self) -> frozenset[str]:
        """The features that the element needs, bound like this."""
        if self.format is None:
            return frozenset(ELEMENTS[self.element].needs)
        if self.type == "image":
            return frozenset()
        optional = self.format in OPTIONAL_TEXEL_FORMATS
        return frozenset({f"texel_{self.format}", "storage_formats"}) if optional else frozenset()


@dataclass(frozen=True, slots=True)
class Param:
    """One member of the push-constant block: `count` is None for a scalar."""

    name: str
    type: str
    count: int | None
    offset: int
    default: int | float | None

    @property
    def bytes(self) -> int:
        """Size: all member types have four bytes, so std430 needs no padding."""
        return 4 * (self.count or 1)


@dataclass(frozen=True, slots=True)
class Spec:
    """A declared specialization constant."""

    name: str
    id: int
    type: str
    default: int | float | bool


@dataclass(slots=True)
class Declarations:
    """Everything that a variant declared while its template was rendered.

    `where` returns the template file and line being rendered; it is asked at each declaration.
    `defaults` are those of specialization constants that macro.json sets.
    """

    where: Callable[[], tuple[str, int]]
    defaults: Mapping[str, SpecValue] = field(default_factory=dict)
    bindings: list[Binding] = field(default_factory=list)
    views: list[Binding] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    params_line: tuple[str, int] | None = None
    specs: list[Spec] = field(default_factory=list)
    local_size: tuple[int, int, int] | None = None
    subgroup_size: int = 0
    extensions: dict[str, tuple[str, int]] = field(default_factory=dict)
    enums: dict[str, tuple[str, ...]] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    """Those of elements that the source already has."""

    def _fail(self, message: str, hint: str | None = None) -> ShaderError:
        template, line = self.where()
        return ShaderError(message, template=template, line=line, hint=hint)

    def _name(self, name: object, what: str) -> str:
        if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
            raise self._fail(f"{what} name {name!r} is not an identifier")
        taken = {
            *(binding.name for binding in (*self.bindings, *self.views)),
            *(spec.name for spec in self.specs),
            *self.enums,
        }
        if name in taken:
            raise self._fail(f"'{name}' is declared twice")
        return name

    # --- helpers of the template language ------------------------------------------------------

    def do_local_size(self, x: object = 64, y: object = 1, z: object = 1) -> str:
        """Declare the workgroup size: defaults of the specialization constants 0, 1, 2."""
        if self.local_size:
            raise self._fail("local_size is declared twice")
        if (
            not (isinstance(x, int) and isinstance(y, int) and isinstance(z, int))
            or min(x, y, z) < 1
        ):
            raise self._fail(
                f"local_size({x!r}, {y!r}, {z!r}): they must be three positive integers"
            )
        named = zip(LOCAL_SIZE_NAMES, (x, y, z), strict=True)
        x, y, z = (int(self.defaults.get(name, size)) for name, size in named)
        self.local_size = (x, y, z)
        sizes = f"local_size_x = {x}, local_size_y = {y}, local_size_z = {z}"
        ids = "local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2"
        return f"layout({sizes}, {ids}) in;"

    def do_subgroup_size(self, size: object) -> str:
        """Demand full subgroups of this size (feature subgroup_size_control)."""
        if not isinstance(size, int) or size < 1 or size & (size - 1):
            raise self._fail(f"subgroup_size({size!r}): it must be a power of two")
        self.subgroup_size = size
        return f"const uint SUBGROUP_SIZE = {size}u;"

    def do_tensor(
        self,
        access: str,
        name: object,
        element: object,
        load: object,
        restrict: bool,
        coherent: bool,
    ) -> str:
        """Declare the next binding and its accessor macros."""
        name = self._name(name, "tensor")
        if element not in ELEMENTS:
            raise self._fail(
                f"tensor '{name}': unknown element type {element!r}",
                f"one of: {', '.join(ELEMENTS)}",
            )
        if load not in LOADS:
            raise self._fail(
                f"tensor '{name}': load must be one of {', '.join(LOADS)}, not {load!r}"
            )
        how = LOADS[str(load)]
        kind = ELEMENTS[str(element)]
        if kind.decode and not kind.encode and access != "r":
            raise self._fail(f"tensor '{name}': elements '{element}' can only be read")
        if how == "texel" and kind.texel is None:
            raise self._fail(f"tensor '{name}': element type '{element}' has no texel format")
        if how == "image":
            if kind.texel not in IMAGE_FORMATS:
                raise self._fail(
                    f"tensor '{name}': images hold texels of four floats, not '{element}'",
                    'vec("f32", 4) or vec("f16", 4)',
                )
            if access == "rw":
                raise self._fail(f"tensor '{name}': an image is read or written, not both")
        index = len(self.bindings)
        binding = Binding(name, index, how, access, str(element), self.where())
        self.bindings.append(binding)
        qualifier = {"r": "readonly ", "w": "writeonly ", "rw": ""}[access]
        qualifier += "restrict " if restrict else ""
        qualifier += "coherent " if coherent else ""
        before = self._functions(kind)
        if how == "texel":
            return "\n".join([*before, *_texel(binding, kind, qualifier)])
        if how == "image":
            if access == "r":
                self.extensions.setdefault(_SAMPLED, self.where())
            return "\n".join(_image(binding, kind, qualifier))
        if kind.extension:
            self.extensions.setdefault(kind.extension, self.where())
        return "\n".join([*before, *_buffer(binding, kind, qualifier)])

    def do_view(self, access: str, name: object, element: object, of: object) -> str:
        """Declare a second element type for the buffer of an existing binding.

        A variant reads or stores it by one of them, selected by a specialization constant.
        """
        name = self._name(name, "tensor")
        if element not in ELEMENTS:
            raise self._fail(
                f"tensor '{name}': unknown element type {element!r}",
                f"one of: {', '.join(ELEMENTS)}",
            )
        base = next((binding for binding in self.bindings if binding.name == of), None)
        if base is None or base.type != "storage" or base.access != access:
            raise self._fail(
                f"tensor '{name}': view_of={of!r} names no buffer with the same access",
                "declare that first, with the same one of tensor_in, tensor_out and tensor_inout",
            )
        kind = ELEMENTS[str(element)]
        view = Binding(name, base.index, base.type, access, str(element), self.where())
        self.views.append(view)
        if kind.extension:
            self.extensions.setdefault(kind.extension, self.where())
        qualifier = {"r": "readonly ", "w": "writeonly ", "rw": ""}[access]
        return "\n".join([*self._functions(kind), *_buffer(view, kind, qualifier)])

    def _functions(self, kind: Element) -> list[str]:
        """Return the functions of an element's accessors that the source does not have yet."""
        if not kind.functions or kind.functions in self.functions:
            return []
        self.functions.add(kind.functions)
        return kind.functions.splitlines()

    def do_params(self, *members: object) -> str:
        """Declare the push-constant block from `"name:type[count]=default"` strings."""
        if self.params:
            raise self._fail("params is declared twice")
        if not members:
            raise self._fail("params needs at least one member")
        offset = 0
        for member in members:
            match = PARAM.fullmatch(member) if isinstance(member, str) else None
            if not match or not _IDENTIFIER.fullmatch(match.group(1)):
                raise self._fail(
                    f"parameter {member!r} is not 'name:type', 'name:type[count]' or "
                    "'name:type=default' with type uint, int or float"
                )
            name, kind, count, default = match.groups()
            if keyword.iskeyword(name) or name in _TAKEN_PARAMS:
                raise self._fail(
                    f"parameter '{name}' is a keyword of Python or a member of its class"
                )
            if name in {param.name for param in self.params}:
                raise self._fail(f"parameter '{name}' is declared twice")
            if count is not None and (int(count) == 0 or default is not None):
                raise self._fail(f"parameter {member!r}: arrays have a length and no default")
            try:
                value = None if default is None else (float if kind == "float" else int)(default)
            except ValueError:
                raise self._fail(f"parameter {member!r}: bad default") from None
            param = Param(name, kind, int(count) if count else None, offset, value)
            self.params.append(param)
            offset += param.bytes
        if offset > MAX_PUSH_CONSTANT_BYTES:
            raise self._fail(
                f"the parameters take {offset} bytes; every device has only "
                f"{MAX_PUSH_CONSTANT_BYTES} for push constants",
                "pass large tables as a tensor_in of u32",
            )
        self.params_line = self.where()
        lines = ["layout(push_constant, std430) uniform P", "{"]
        for param in self.params:
            array = f"[{param.count}]" if param.count else ""
            lines.append(f"    {param.type} {param.name}{array};")
        return "\n".join([*lines, "} pc;"])

    def do_spec(self, name: object, type: str = "uint", default: Any = 0) -> str:
        """Declare the next specialization constant."""
        name = self._name(name, "specialization constant")
        default = self.defaults.get(name, default)
        number = isinstance(default, int) and not isinstance(default, bool)
        fits = {
            "uint": number and default >= 0,
            "int": number,
            "float": number or isinstance(default, float),
            "bool": isinstance(default, bool),
        }
        if type not in fits:
            raise self._fail(f"spec '{name}': type must be one of {', '.join(fits)}")
        if not fits[type]:
            raise self._fail(
                f"spec '{name}': default {default!r} is not a {type}",
                "macro.json sets it" if name in self.defaults else None,
            )
        value = float(default) if type == "float" else default
        spec = Spec(name, FIRST_SPEC_ID + len(self.specs), type, value)
        self.specs.append(spec)
        text = {"uint": f"{value}u", "bool": str(value).lower()}.get(type, repr(value))
        return f"layout(constant_id = {spec.id}) const {type} {name} = {text};"

    def do_extension(self, name: object) -> str:
        """Request a GLSL extension; the directive goes to the head of the shader."""
        if not isinstance(name, str) or not re.fullmatch(r"GL_\w+", name):
            raise self._fail(f"extension {name!r} does not look like GL_…")
        self.extensions.setdefault(name, self.where())
        return ""

    def do_enum(self, name: object, *members: object) -> str:
        """Declare numbers shared with Python: member i gets value i in both languages."""
        name = self._name(name, "enum")
        names = tuple(self._member(member) for member in members)
        if len(set(names)) != len(names) or not names:
            raise self._fail(f"enum '{name}' is empty or lists a member twice")
        self.enums[name] = names
        return "\n".join(
            f"#define {name.upper()}_{member} {value}u" for value, member in enumerate(names)
        )

    def _member(self, member: object) -> str:
        if not isinstance(member, str) or not re.fullmatch(r"[A-Z][A-Z0-9_]*", member):
            raise self._fail(f"enum member {member!r} is not an upper-case identifier")
        return member

    def do_vec(self, dtype: object, lanes: int) -> str:
        """Return the element type of `lanes` components of `dtype`: vec("f16", 4) → "f16vec4"."""
        plain = _NARROW_WEIGHTS.get(str(dtype), (str(dtype),))[0]
        name = plain if lanes == 1 else f"{_VECTORS.get(plain, '?')}{lanes}"
        if name not in ELEMENTS:
            raise self._fail(f"vec({dtype!r}, {lanes!r}): there is no such element type")
        return name

    def do_weights(self, dtype: object) -> str:
        """Return the element type of four weights where floats are `dtype`; "w8" has bytes."""
        narrow = _NARROW_WEIGHTS.get(str(dtype))
        return narrow[1] if narrow else self.do_vec(dtype, 4)

    def do_compute_type(self, element: object) -> str:
        """Return the GLSL type that the accessors of an element type work with."""
        if element not in ELEMENTS:
            raise self._fail(f"compute_type: unknown element type {element!r}")
        return ELEMENTS[str(element)].computed

    def do_is_float(self, element: object) -> bool:
        """Return whether elements are floats, however they are stored."""
        return element in FLOATS

    def do_is_narrow(self, element: object) -> bool:
        """Return whether elements are floats narrower than float32."""
        return element in NARROW

    def do_shared_tile(self, tile: object) -> SharedTile:
        """Return the sizes of a tile in shared memory."""
        return self._tile(SharedTile.parse, tile)

    def do_dot_tile(self, tile: object) -> DotTile:
        """Return the sizes of a tile of integer dot products."""
        return self._tile(DotTile.parse, tile)

    def do_coop_tile(self, tile: object, step: int, element_bytes: int) -> CoopTileSize:
        """Return the sizes of a tile of cooperative matrices."""
        return self._tile(lambda text: parse_coop(text, step, element_bytes), tile)

    def do_halo_tile(self, tile: object) -> HaloTileSize:
        """Return the sizes of a tile of cooperative matrices with a halo of pixels."""
        return self._tile(parse_halo, tile)

    def _tile(self, parse: Callable[[str], _T], tile: object) -> _T:
        try:
            return parse(str(tile))
        except (TypeError, ValueError):
            raise self._fail(f"{tile!r} names no tile of this kind") from None

    def do_words(self, lanes: object, element: object) -> str:
        """Return the type that moves elements of one size: 32 bits move as integers."""
        return self.do_vec("i32" if element == "f32" else element, int(str(lanes)))

    def do_fail(self, message: object) -> str:
        """Stop: this combination of axis values must not be built."""
        raise self._fail(str(message), "exclude the combination in macro.json")

    @property
    def needs(self) -> frozenset[str]:
        """The features that follow from the declarations; macro.json need not list them."""
        subgroups = {"subgroup_size_control", "full_subgroups"} if self.subgroup_size else set()
        tensors = (*self.bindings, *self.views)
        return frozenset(subgroups).union(*(binding.needs for binding in tensors))

    @property
    def push_constant_size(self) -> int:
        """Bytes of the parameter block."""
        return sum(param.bytes for param in self.params)


def _buffer(binding: Binding, kind: Element, qualifier: str) -> list[str]:
    name = binding.name
    lines = [
        f"layout(set = 0, binding = {binding.index}, std430) {qualifier}buffer {name}_Buffer",
        "{",
        f"    {kind.stored} {name}_data[];",
        "};",
    ]
    converts = kind.stored != kind.computed
    if "r" in binding.access:
        load = f"{name}_data[i]"
        if kind.decode:
            load = kind.decode.format(load)
        elif converts:
            load = f"{kind.computed}({load})"
        lines.append(f"#define {name}_load(i) {load}")
    if "w" in binding.access:
        # In two steps: glslang turns int8_t(1.5) into invalid SPIR-V.
        value = f"{kind.stored}({kind.computed}(v))" if converts else "(v)"
        if kind.encode:
            value = f"{kind.stored}({kind.encode.format('v')})"
        lines.append(f"#define {name}_store(i, v) {name}_data[i] = {value}")
    return lines


def _texel(binding: Binding, kind: Element, qualifier: str) -> list[str]:
    name = binding.name
    lines = [
        (
            f"layout(set = 0, binding = {binding.index}, {kind.texel}) uniform {qualifier}"
            f"{kind.image} {name}_image;"
        )
    ]
    swizzle = {1: ".x", 2: ".xy", 4: ""}[kind.lanes]
    four = {"f": "vec4", "i": "ivec4", "u": "uvec4"}["u" if kind.encode else _KIND[kind.computed]]
    if "r" in binding.access:
        load = f"imageLoad({name}_image, int(i)){swizzle}"
        lines.append(f"#define {name}_load(i) {kind.decode.format(load) if kind.decode else load}")
    if "w" in binding.access:
        v = kind.encode.format("v") if kind.encode else "v"
        value = {1: f"{four}({v})", 2: f"{four}({v}, 0, 0)", 4: v}[kind.lanes]
        lines.append(f"#define {name}_store(i, v) imageStore({name}_image, int(i), {value})")
    return lines


def _image(binding: Binding, kind: Element, qualifier: str) -> list[str]:
    """Return the accessors of texels: `x_at(x, y)` and `x_put(x, y, v)`.

    `x_load(i)` and `x_store(i, v)` count the texels row by row.
    """
    name = binding.name
    place = f"layout(set = 0, binding = {binding.index}"
    fold = "ivec2(int(uint(i) % uint({0}.x)), int(uint(i) / uint({0}.x)))"
    if binding.access == "r":
        at = fold.format(f"textureSize({name}_image, 0)")
        return [
            f"{place}) uniform texture2D {name}_image;",
            f"#define {name}_at(x, y) texelFetch({name}_image, ivec2(x, y), 0)",
            f"#define {name}_load(i) texelFetch({name}_image, {at}, 0)",
        ]
    at = fold.format(f"imageSize({name}_image)")
    return [
        f"{place}, {kind.texel}) uniform {qualifier}image2D {name}_image;",
        f"#define {name}_put(x, y, v) imageStore({name}_image, ivec2(x, y), v)",
        f"#define {name}_store(i, v) imageStore({name}_image, {at}, v)",
    ]
