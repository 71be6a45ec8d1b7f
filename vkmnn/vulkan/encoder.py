"""Collects the dispatches of a plan; what they read and write decides memory and barriers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import numpy as np

from vkmnn.core.tensor import Tensor, Usage
from vkmnn.errors import ShaderError
from vkmnn.ir import Array, DType, Op, TensorInfo
from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.runtime.encoder import linear_groups
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.checks import (
    INDEX_HINT,
    OVERFLOW_HINT,
    WIDE_INTEGERS,
    Check,
    IndexRange,
)
from vkmnn.vulkan.choice import BY_RULE, Choice, Chooser
from vkmnn.vulkan.storage import VECTOR_BYTES, storage_bytes

T = TypeVar("T")

Spec = Mapping[str, int | float | bool]

# Shorter texel buffers do not hold ordinary tensors: Vulkan asks for 65,536 texels only.
MIN_TEXELS = 1 << 26
TEXEL_LOADS = frozenset({"texel_r32f", "texel_r32i", "texel_rgba32f", "texel_rgba32i"})


class Params(Protocol):
    """A generated parameter block."""

    def pack(self) -> bytes:
        """Return the push-constant bytes."""


@dataclass(frozen=True, slots=True)
class PackedConstant:
    """A constant in the form that a kernel wants, packed once and shared by plans."""

    source: Array
    key: str
    pack: Callable[[Array], Array]


@dataclass(slots=True)
class Dispatch:
    """One recorded dispatch: tensors in binding order, push constants, workgroup counts."""

    shader: Shader
    tensors: tuple[Tensor, ...]
    params: bytes
    groups: tuple[int, int, int]
    spec: Spec
    label: str


@dataclass(slots=True)
class VulkanEncoder:
    """What executions record into; nothing reaches the device before the whole plan is known.

    `packed` maps constant tensors to their packed form; `aliases` maps a tensor to the one in
    whose storage it lies, and to the byte where it begins there. `written` holds the tensors that
    dispatches write. `ranges` are what the host checks of index tensors that it provides;
    `checks` are made on the device, which reports failures in `status`. `counters` are zero before
    every run. `chooser` decides between kernels that do the same, and `choices` holds what it
    decided where there was a choice.
    """

    info: DeviceInfo
    chooser: Chooser = BY_RULE
    dispatches: list[Dispatch] = field(default_factory=list)
    packed: dict[Tensor, PackedConstant] = field(default_factory=dict)
    aliases: dict[Tensor, tuple[Tensor, int]] = field(default_factory=dict)
    written: set[Tensor] = field(default_factory=set)
    ranges: dict[Tensor, list[IndexRange]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    status: Tensor | None = None
    counters: list[Tensor] = field(default_factory=list)
    label: str = ""
    _scratch: int = 0

    def choose(self, what: str, problem: Hashable, candidates: Sequence[T]) -> T:
        """Return the one of `candidates` to use; the likely fastest comes first (see `Chooser`)."""
        taken = self.chooser(what, problem, candidates)
        if len(candidates) > 1:
            self.choices.append(Choice(self.label, what, problem, tuple(candidates), taken))
        return taken

    @property
    def prefers_texel_loads(self) -> bool:
        """True where kernels load through texel buffers: several times faster on CPU devices."""
        return self.load_storage == "texel"

    @property
    def load_storage(self) -> Literal["ssbo", "texel"]:
        """The value of kernels' storage axis for this device."""
        return self.choose("storage", (), load_storages(self.info))

    def check(self, op: Op, message: str, hint: str) -> tuple[Tensor, int]:
        """Add a check that a kernel of `op` makes.

        Args:
            op: the op, to be named when the check fails.
            message: what is wrong then.
            hint: what to do then.

        Returns:
            The plan's status tensor, for the kernel's binding `status`, and the check's number, for
            its parameter `check`.
        """
        self.checks.append(Check(op.type, op.source or op.name, message, hint))
        return self._status(), len(self.checks)

    def unchecked(self) -> tuple[Tensor, int]:
        """Return what a kernel binds that could check but has nothing to."""
        return self._status(), 0

    def check_overflow(self, op: Op, output: Tensor) -> tuple[Tensor, int]:
        """Check results whose type is wider than the int32 that the device computes them with.

        Narrower integers wrap by definition.
        """
        if output.dtype not in WIDE_INTEGERS:
            return self.unchecked()
        message = f"{output.dtype.value} result '{output.name}' does not fit the 32-bit integers "
        return self.check(op, message + "that the device computes with", OVERFLOW_HINT)

    def check_range(self, tensor: Tensor, low: int, high: int, op: Op) -> tuple[Tensor, int]:
        """Check that indices lie in `low` to `high`: on the host where it has them.

        Raises:
            InvalidInputError: `tensor` is constant and holds an index outside.
        """
        root = self.root(tensor)
        allowed = IndexRange(low, high, op.type, op.source or op.name)
        if root.value is not None:
            allowed.check(root.value, root.name)
            return self.unchecked()
        if storage_bytes(root) == storage_bytes(tensor):
            self.ranges.setdefault(root, []).append(allowed)
            if root.usage is Usage.INPUT:
                return self.unchecked()
        message = f"'{tensor.name}' holds an index outside {low} to {high}"
        return self.check(op, message, INDEX_HINT)

    def check_indices(self, op: Op, tensor: Tensor) -> tuple[Tensor, int]:
        """Check tuples of indices on the device, wherever they come from."""
        return self.check(op, f"'{tensor.name}' holds an index outside its axis", INDEX_HINT)

    def _status(self) -> Tensor:
        if self.status is None:
            self.status = Tensor(TensorInfo("status", DType.INT32, (1,)))
        return self.status

    def dispatch(
        self,
        shader: Shader,
        tensors: Sequence[Tensor],
        params: Params | None = None,
        groups: tuple[int, int, int] = (1, 1, 1),
        spec: Spec | None = None,
    ) -> None:
        """Record one dispatch.

        Args:
            shader: a variant from `vkmnn.shaders.kernels`.
            tensors: one per binding, in binding order; which are read and written, the shader says.
            params: the parameter block declared by the shader's template.
            groups: workgroup counts; a zero makes the dispatch vanish.
            spec: values of specialization constants by name.

        Raises:
            ShaderError: the number of tensors is not the number of bindings.
        """
        if len(tensors) != len(shader.bindings):
            raise ShaderError(
                f"{shader.name} has {len(shader.bindings)} bindings, got {len(tensors)} tensors"
            )
        if 0 in groups:
            return
        for tensor, binding in zip(tensors, shader.bindings, strict=True):
            if "w" in binding.access:
                self.written.add(self.root(tensor))
        data = params.pack() if params is not None else b""
        self.dispatches.append(
            Dispatch(shader, tuple(tensors), data, groups, spec or {}, self.label)
        )

    def dispatch_linear(
        self,
        shader: Shader,
        tensors: Sequence[Tensor],
        params: Params,
        count: int,
        spec: Spec | None = None,
    ) -> None:
        """Record a dispatch of at least `count` invocations numbered by `global_index()`."""
        local = int((spec or {}).get("local_size_x", shader.local_size[0]))
        groups = linear_groups(count, local, self.info.limits)
        self.dispatch(shader, tensors, params, groups, spec)

    def constant(self, source: Tensor, key: str, pack: Callable[[Array], Array]) -> Tensor:
        """Return a tensor that holds `pack(source.value)`, packed and uploaded once per session.

        Args:
            source: a tensor with a constant value.
            key: names the packing; the same key on the same constant shares one upload.
            pack: makes a float32 or int32 array of any shape.
        """
        assert source.value is not None
        return self._constant(source.name, PackedConstant(source.value, key, pack))

    def literal(self, name: str, array: Array) -> Tensor:
        """Return a constant tensor that holds `array` (float32 or int32) as it is."""
        return self._constant(name, PackedConstant(array, "literal", lambda value: value))

    def _constant(self, name: str, packed: PackedConstant) -> Tensor:
        info = TensorInfo(f"{name}:{packed.key}", DType.from_numpy(packed.source.dtype), ())
        tensor = Tensor(info, Usage.CONSTANT, value=packed.source)
        self.packed[tensor] = packed
        return tensor

    def scratch(self, elements: int, dtype: DType = DType.FLOAT32) -> Tensor:
        """Return a temporary that lives from its first to its last dispatch."""
        self._scratch += 1
        return Tensor(TensorInfo(f"{self.label}:scratch{self._scratch}", dtype, (elements,)))

    def counter(self, count: int) -> Tensor:
        """Return `count` words that are zero before the first run; kernels must leave them so.

        They keep their content between runs, so no other tensor takes their place.
        """
        name = f"{self.label}:counter{len(self.counters)}"
        self.counters.append(Tensor(TensorInfo(name, DType.INT32, (count,))))
        return self.counters[-1]

    def alias(self, tensor: Tensor, storage: Tensor, offset: int = 0) -> None:
        """Let `tensor` lie in the storage of another: a view costs no dispatch.

        Args:
            tensor: a result that is the other's content, or a part of what the other will hold.
            storage: the other.
            offset: where `tensor` begins, in bytes: a multiple of `part_alignment`.
        """
        self.aliases[tensor] = (storage, offset)

    def placement(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Return the tensor that owns the storage of `tensor`, and the byte where that begins."""
        offset = 0
        while tensor in self.aliases:
            tensor, step = self.aliases[tensor]
            offset += step
        return tensor, offset

    def root(self, tensor: Tensor) -> Tensor:
        """Return the tensor that owns the storage of `tensor`."""
        return self.placement(tensor)[0]

    @property
    def part_alignment(self) -> int | None:
        """Bytes that the offset of a part is a multiple of; None where parts cannot be bound."""
        limits = self.info.limits
        if limits.whole_buffers:
            return None
        return max(VECTOR_BYTES, limits.storage_offset_alignment, limits.texel_offset_alignment)


def load_storages(info: DeviceInfo) -> tuple[Literal["ssbo", "texel"], ...]:
    """Return how kernels can load on this device, the faster way first."""
    if not info.features >= TEXEL_LOADS or info.limits.max_texel_buffer_elements < MIN_TEXELS:
        return ("ssbo",)
    return ("texel", "ssbo") if info.type is DeviceType.CPU else ("ssbo", "texel")


def ceil_div(value: int, divisor: int) -> int:
    """Return value / divisor, rounded up."""
    return -(-value // divisor)


def as_int32(array: Array) -> Array:
    """Return the array as int32."""
    return array.astype(np.int32, copy=False)
