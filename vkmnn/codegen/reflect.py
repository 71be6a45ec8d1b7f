"""A reader for the external interface of a SPIR-V shader.

Only the module's head is read: everything before the first function (SPIR-V spec 2.4, "Logical
Layout of a Module"). Opcodes and enumerants: SPIR-V spec section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from vkmnn.errors import ShaderError

MAGIC = 0x07230203

_OP_NAME, _OP_MEMBER_NAME = 5, 6
_OP_ENTRY_POINT, _OP_EXECUTION_MODE, _OP_CAPABILITY = 15, 16, 17
_OP_TYPE_BOOL, _OP_TYPE_INT, _OP_TYPE_FLOAT, _OP_TYPE_VECTOR = 20, 21, 22, 23
_OP_TYPE_IMAGE, _OP_TYPE_ARRAY, _OP_TYPE_RUNTIME_ARRAY = 25, 28, 29
_OP_TYPE_STRUCT, _OP_TYPE_POINTER = 30, 32
_OP_CONSTANT = 43
_OP_SPEC_TRUE, _OP_SPEC_FALSE, _OP_SPEC, _OP_SPEC_COMPOSITE = 48, 49, 50, 51
_OP_FUNCTION, _OP_VARIABLE = 54, 59
_OP_DECORATE, _OP_MEMBER_DECORATE = 71, 72
_OP_EXECUTION_MODE_ID = 331

_DEC_SPEC_ID, _DEC_ARRAY_STRIDE, _DEC_BUILTIN = 1, 6, 11
_DEC_NON_WRITABLE, _DEC_NON_READABLE = 24, 25
_DEC_BINDING, _DEC_SET, _DEC_OFFSET = 33, 34, 35
_BUILTIN_WORKGROUP_SIZE = 25
_MODE_LOCAL_SIZE, _MODE_LOCAL_SIZE_ID = 17, 38
_UNIFORM_CONSTANT, _UNIFORM, _PUSH_CONSTANT, _STORAGE_BUFFER = 0, 2, 9, 12
_DIM_2D, _DIM_BUFFER = 1, 5
_FP_ENCODING_BFLOAT16 = 0

_CAPABILITIES = {
    0: "Matrix", 1: "Shader", 9: "Float16", 10: "Float64", 11: "Int64", 12: "Int64Atomics",
    22: "Int16", 39: "Int8", 46: "SampledBuffer", 47: "ImageBuffer",
    49: "StorageImageExtendedFormats", 50: "ImageQuery", 55: "StorageImageReadWithoutFormat",
    56: "StorageImageWriteWithoutFormat",
    61: "GroupNonUniform", 62: "GroupNonUniformVote", 63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot", 65: "GroupNonUniformShuffle",
    66: "GroupNonUniformShuffleRelative", 67: "GroupNonUniformClustered", 68: "GroupNonUniformQuad",
    4428: "WorkgroupMemoryExplicitLayoutKHR", 4429: "WorkgroupMemoryExplicitLayout8BitAccessKHR",
    4430: "WorkgroupMemoryExplicitLayout16BitAccessKHR", 6026: "GroupNonUniformRotateKHR",
    4433: "StorageBuffer16BitAccess", 4434: "UniformAndStorageBuffer16BitAccess",
    4435: "StoragePushConstant16", 4448: "StorageBuffer8BitAccess",
    4449: "UniformAndStorageBuffer8BitAccess", 4450: "StoragePushConstant8",
    5116: "BFloat16TypeKHR", 5117: "BFloat16DotProductKHR", 5118: "BFloat16CooperativeMatrixKHR",
    5345: "VulkanMemoryModel", 5346: "VulkanMemoryModelDeviceScope",
    5347: "PhysicalStorageBufferAddresses", 6016: "DotProductInputAll",
    6017: "DotProductInput4x8Bit", 6018: "DotProductInput4x8BitPacked", 6019: "DotProduct",
    6022: "CooperativeMatrixKHR", 6033: "AtomicFloat32AddEXT",
}  # fmt: skip

_IMAGE_FORMATS = {
    0: "unknown", 1: "rgba32f", 2: "rgba16f", 3: "r32f", 4: "rgba8", 5: "rgba8_snorm", 6: "rg32f",
    7: "rg16f", 9: "r16f", 21: "rgba32i", 22: "rgba16i", 23: "rgba8i", 24: "r32i", 25: "rg32i",
    26: "rg16i", 28: "r16i", 29: "r8i", 30: "rgba32ui", 31: "rgba16ui", 32: "rgba8ui",
    33: "r32ui", 35: "rg32ui", 36: "rg16ui", 38: "r16ui", 39: "r8ui",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReflectedBinding:
    """A descriptor: `type` is "storage", "texel", "image" or a description of any other type."""

    set: int
    index: int
    name: str
    type: str
    access: str
    format: str | None
    element: str | None
    stride: int | None


@dataclass(frozen=True, slots=True)
class ReflectedMember:
    """A member of the push-constant block."""

    name: str
    type: str
    count: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class ReflectedSpec:
    """A specialization constant."""

    id: int
    name: str
    type: str
    default: int | float | bool


@dataclass(frozen=True, slots=True)
class Reflection:
    """A shader's external interface."""

    version: tuple[int, int]
    entry_points: tuple[str, ...]
    bindings: tuple[ReflectedBinding, ...]
    push_constants: tuple[ReflectedMember, ...]
    spec_constants: tuple[ReflectedSpec, ...]
    local_size: tuple[int, int, int]
    capabilities: tuple[str, ...]


@dataclass(slots=True)
class _Module:
    version: tuple[int, int] = (0, 0)
    names: dict[int, str] = field(default_factory=dict)
    member_names: dict[tuple[int, int], str] = field(default_factory=dict)
    decorations: dict[int, dict[int, int]] = field(default_factory=dict)
    member_decorations: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    types: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    constants: dict[int, tuple[int, int, tuple[int, ...]]] = field(default_factory=dict)
    variables: list[tuple[int, int, int]] = field(default_factory=list)
    capabilities: set[str] = field(default_factory=set)
    entry_points: list[str] = field(default_factory=list)
    local_size: tuple[int, int, int] = (1, 1, 1)
    local_size_ids: tuple[int, ...] = ()

    def scalar(self, type_id: int) -> str:
        """The GLSL name of a scalar or vector type."""
        op, args = self.types[type_id]
        if op == _OP_TYPE_VECTOR:
            base = self.scalar(args[0])
            prefix = {
                "float": "vec", "int": "ivec", "uint": "uvec", "float16_t": "f16vec",
                "int16_t": "i16vec", "uint16_t": "u16vec", "int8_t": "i8vec", "uint8_t": "u8vec",
            }.get(base, base + "vec")  # fmt: skip
            return f"{prefix}{args[1]}"
        if op == _OP_TYPE_FLOAT:
            if len(args) > 1 and args[1] == _FP_ENCODING_BFLOAT16:
                return "bfloat16_t"
            return {16: "float16_t", 32: "float", 64: "double"}[args[0]]
        if op == _OP_TYPE_INT:
            name = {8: "int8_t", 16: "int16_t", 32: "int", 64: "int64_t"}[args[0]]
            return name if args[1] else "u" + name
        return {_OP_TYPE_BOOL: "bool", _OP_TYPE_STRUCT: "struct"}.get(op, f"op{op}")

    def literal(self, type_id: int, words: tuple[int, ...]) -> int | float:
        name = self.scalar(type_id)
        code = {"float": "<f", "int": "<i", "uint": "<I"}.get(name)
        if code is None:
            return int.from_bytes(struct.pack(f"<{len(words)}I", *words), "little")
        value: int | float = struct.unpack(code, struct.pack("<I", words[0]))[0]
        return value


def _string(words: tuple[int, ...]) -> tuple[str, int]:
    """Decode a literal string; return it and the number of words that it takes."""
    raw = struct.pack(f"<{len(words)}I", *words)
    end = raw.index(0)
    return raw[:end].decode("utf-8", "replace"), end // 4 + 1


def _instructions(spirv: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv[: len(spirv) // 4 * 4])
    position = 5
    while position < len(words):
        count, op = words[position] >> 16, words[position] & 0xFFFF
        if count == 0 or position + count > len(words):
            raise ShaderError("truncated SPIR-V")
        if op == _OP_FUNCTION:
            return
        yield op, words[position + 1 : position + count]
        position += count


def _read(spirv: bytes) -> _Module:
    if len(spirv) < 20 or struct.unpack_from("<I", spirv)[0] != MAGIC:
        raise ShaderError("not a SPIR-V module (wrong magic number)")
    version = struct.unpack_from("<I", spirv, 4)[0]
    module = _Module(version=(version >> 16 & 0xFF, version >> 8 & 0xFF))
    for op, args in _instructions(spirv):
        if op == _OP_NAME:
            module.names[args[0]] = _string(args[1:])[0]
        elif op == _OP_MEMBER_NAME:
            module.member_names[args[0], args[1]] = _string(args[2:])[0]
        elif op == _OP_DECORATE:
            value = args[2] if len(args) > 2 else 1
            module.decorations.setdefault(args[0], {})[args[1]] = value
        elif op == _OP_MEMBER_DECORATE:
            value = args[3] if len(args) > 3 else 1
            module.member_decorations.setdefault((args[0], args[1]), {})[args[2]] = value
        elif op == _OP_CAPABILITY:
            module.capabilities.add(_CAPABILITIES.get(args[0], f"Capability{args[0]}"))
        elif op == _OP_ENTRY_POINT:
            module.entry_points.append(_string(args[2:])[0])
        elif op == _OP_EXECUTION_MODE and args[1] == _MODE_LOCAL_SIZE:
            module.local_size = (args[2], args[3], args[4])
        elif op == _OP_EXECUTION_MODE_ID and args[1] == _MODE_LOCAL_SIZE_ID:
            module.local_size_ids = args[2:5]
        elif _OP_TYPE_BOOL <= op <= _OP_TYPE_POINTER:
            module.types[args[0]] = (op, args[1:])
        elif _OP_CONSTANT <= op <= _OP_SPEC_COMPOSITE:
            module.constants[args[1]] = (op, args[0], args[2:])
        elif op == _OP_VARIABLE:
            module.variables.append((args[1], args[0], args[2]))
    return module


def _binding(module: _Module, variable: int, type_id: int, storage: int) -> ReflectedBinding:
    decorations = module.decorations.get(variable, {})
    op, args = module.types[type_id]
    name = module.names.get(variable, "")
    texel_format = element = stride = None
    flags = set(decorations)
    if storage == _STORAGE_BUFFER and op == _OP_TYPE_STRUCT:
        kind = "storage"
        per_member = [
            set(module.member_decorations.get((type_id, i), {})) for i in range(len(args))
        ]
        flags |= set.intersection(*per_member) if per_member else set()
        inner_op, inner = module.types[args[-1]]
        if inner_op == _OP_TYPE_RUNTIME_ARRAY and len(args) == 1:
            element = module.scalar(inner[0])
            stride = module.decorations.get(args[-1], {}).get(_DEC_ARRAY_STRIDE)
        name = module.member_names.get((type_id, 0), name).removesuffix("_data")
    elif storage == _UNIFORM_CONSTANT and op == _OP_TYPE_IMAGE and args[1] == _DIM_BUFFER:
        kind = "texel" if args[5] == 2 else "uniform texel buffer"
        texel_format = _IMAGE_FORMATS.get(args[6], f"format{args[6]}")
        name = name.removesuffix("_image")
    elif storage == _UNIFORM_CONSTANT and op == _OP_TYPE_IMAGE and args[1] == _DIM_2D:
        kind = "image"
        if args[5] == 1:  # sampled: it is not written, and may have any format
            flags.add(_DEC_NON_WRITABLE)
        else:
            texel_format = _IMAGE_FORMATS.get(args[6], f"format{args[6]}")
        name = name.removesuffix("_image")
    else:
        kind = "uniform buffer" if storage == _UNIFORM else f"descriptor of type op{op}"
    readable = _DEC_NON_READABLE not in flags
    writable = _DEC_NON_WRITABLE not in flags
    return ReflectedBinding(
        set=decorations.get(_DEC_SET, 0),
        index=decorations.get(_DEC_BINDING, -1),
        name=name,
        type=kind,
        access=("r" if readable else "") + ("w" if writable else ""),
        format=texel_format,
        element=element,
        stride=stride,
    )


def _members(module: _Module, type_id: int) -> list[ReflectedMember]:
    members = []
    for i, member in enumerate(module.types[type_id][1]):
        op, args = module.types[member]
        count = None
        if op == _OP_TYPE_ARRAY:
            count = module.constants[args[1]][2][0]
            member = args[0]
        members.append(
            ReflectedMember(
                name=module.member_names.get((type_id, i), ""),
                type=module.scalar(member),
                count=count,
                offset=module.member_decorations.get((type_id, i), {}).get(_DEC_OFFSET, -1),
            )
        )
    return members


def _specs(module: _Module) -> list[ReflectedSpec]:
    specs = []
    for constant, (op, type_id, words) in module.constants.items():
        spec_id = module.decorations.get(constant, {}).get(_DEC_SPEC_ID)
        if spec_id is None:
            continue
        default: int | float | bool
        if op in (_OP_SPEC_TRUE, _OP_SPEC_FALSE):
            default = op == _OP_SPEC_TRUE
        else:
            default = module.literal(type_id, words)
        name = module.names.get(constant, "")
        specs.append(ReflectedSpec(spec_id, name, module.scalar(type_id), default))
    # glslang repeats the local sizes when a SPIR-V 1.6 module also reads gl_WorkGroupSize.
    return sorted(dict.fromkeys(specs), key=lambda spec: spec.id)


def _local_size(module: _Module) -> tuple[int, int, int]:
    """WorkgroupSize overrides LocalSize (SPIR-V spec, "BuiltIn"); from 1.6 on it is LocalSizeId."""
    ids = module.local_size_ids
    for constant, decorations in module.decorations.items():
        if decorations.get(_DEC_BUILTIN) == _BUILTIN_WORKGROUP_SIZE:
            ids = module.constants[constant][2]
    if not ids:
        return module.local_size
    x, y, z = (module.constants[part][2][0] for part in ids)
    return (x, y, z)


def reflect(spirv: bytes) -> Reflection:
    """Return bindings, push constants, specialization constants, local size and capabilities.

    Raises `ShaderError` for something that is not SPIR-V.
    """
    module = _read(spirv)
    bindings = []
    push_constants: list[ReflectedMember] = []
    for variable, pointer, storage in module.variables:
        if storage not in (_UNIFORM_CONSTANT, _UNIFORM, _PUSH_CONSTANT, _STORAGE_BUFFER):
            continue
        pointee = module.types[pointer][1][1]
        if storage == _PUSH_CONSTANT:
            push_constants = _members(module, pointee)
        else:
            bindings.append(_binding(module, variable, pointee, storage))
    return Reflection(
        version=module.version,
        entry_points=tuple(module.entry_points),
        bindings=tuple(sorted(bindings, key=lambda b: (b.set, b.index))),
        push_constants=tuple(push_constants),
        spec_constants=tuple(_specs(module)),
        local_size=_local_size(module),
        capabilities=tuple(sorted(module.capabilities)),
    )
