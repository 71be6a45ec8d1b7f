"""Collects the dispatches of a plan; what they read and write decides memory and barriers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from vkmnn.core.tensor import Tensor, Usage
from vkmnn.errors import InvalidInputError, ShaderError
from vkmnn.ir import Array, DType, Op, TensorInfo
from vkmnn.runtime.device_info import DeviceInfo, DeviceType
from vkmnn.runtime.encoder import linear_groups
from vkmnn.runtime.shader import Shader

Spec = Mapping[str, int | float | bool]

MIN_TEXELS = 1 << 26


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


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The values that an op allows in an index tensor, both ends included."""

    low: int
    high: int
    op: str
    node: str

    def check(self, array: Array, name: str) -> None:
        """Refuse indices outside the range.

        Raises:
            InvalidInputError: names the op, the value and the range.
        """
        if array.size and not self.low <= array.min() <= array.max() <= self.high:
            bad = array.max() if array.max() > self.high else array.min()
            raise InvalidInputError(
                f"input '{name}' holds the index {bad}, outside {self.low} to {self.high}",
                op=self.op,
                node=self.node,
                hint="check the indices (token ids, for example) against the table's size",
            )


@dataclass(slots=True)
class VulkanEncoder:
    """What executions record into; nothing reaches the device before the whole plan is known.

    `packed` maps constant tensors to their packed form; `aliases` maps a tensor to the one whose
    storage it shares.
    """

    info: DeviceInfo
    dispatches: list[Dispatch] = field(default_factory=list)
    packed: dict[Tensor, PackedConstant] = field(default_factory=dict)
    aliases: dict[Tensor, Tensor] = field(default_factory=dict)
    ranges: dict[Tensor, IndexRange] = field(default_factory=dict)
    label: str = ""
    _scratch: int = 0

    @property
    def prefers_texel_loads(self) -> bool:
        """True on CPU devices, where loads through texel buffers are several times faster.

        False where texel buffers are too short for ordinary tensors: Vulkan asks for 65,536 texels.
        """
        large = self.info.limits.max_texel_buffer_elements >= MIN_TEXELS
        return self.info.type is DeviceType.CPU and large

    @property
    def load_storage(self) -> Literal["ssbo", "texel"]:
        """The value of kernels' storage axis for this device."""
        return "texel" if self.prefers_texel_loads else "ssbo"

    def require_range(self, tensor: Tensor, low: int, high: int, op: Op) -> None:
        """Have the indices in `tensor` checked when the host provides them; kernels only clamp."""
        self.ranges[self.root(tensor)] = IndexRange(low, high, op.type, op.source or op.name)

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

    def alias(self, output: Tensor, source: Tensor) -> None:
        """Let `output` share the storage of `source`: a view costs no dispatch."""
        self.aliases[output] = source

    def root(self, tensor: Tensor) -> Tensor:
        """Return the tensor that owns the storage of `tensor`."""
        while tensor in self.aliases:
            tensor = self.aliases[tensor]
        return tensor


def ceil_div(value: int, divisor: int) -> int:
    """Return value / divisor, rounded up."""
    return -(-value // divisor)


def as_int32(array: Array) -> Array:
    """Return the array as int32."""
    return array.astype(np.int32, copy=False)
