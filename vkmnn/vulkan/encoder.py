"""Collects the dispatches of a plan; memory and barriers follow from their accesses."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from vkmnn.base.elements import FLOATS, Arithmetic, FloatElement, FloatStorage
from vkmnn.base.memo import Memo
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.errors import ShaderError
from vkmnn.ir import Array, DType, Op, TensorInfo
from vkmnn.ir.alike import MAX_ALIKE
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.recorder import linear_groups
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.checks import (
    INDEX_HINT,
    OVERFLOW_HINT,
    WIDE_INTEGERS,
    Check,
    IndexRange,
)
from vkmnn.vulkan.choice import BY_RULE, Choice, Chooser, Preferences
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.device_rules import divides_exactly, is_gpu
from vkmnn.vulkan.recording import (
    Dispatch,
    PackedConstant,
    Recording,
    Spec,
    specialized,
)
from vkmnn.vulkan.storage import (
    VECTOR_BYTES,
    Element,
    kernel_dtype,
    storage_bytes,
)

T = TypeVar("T")

# Texel buffers below this limit cannot hold ordinary tensors; Vulkan guarantees 65,536 texels.
MIN_TEXELS = 1 << 26
# Below this, an index can be divided exactly by a floating-point multiplication.
EXACT_QUOTIENTS = 1 << 20
_WORD_TEXELS = frozenset({"texel_r32f", "texel_r32i", "texel_rgba32f", "texel_rgba32i"})


def _texel_loads(stored: FloatStorage) -> frozenset[str] | None:
    if not stored.texels:
        return None
    one, _, four = stored.texels
    needed = _WORD_TEXELS | {f"texel_{one}", f"texel_{four}"}
    return needed if needed == _WORD_TEXELS else needed | {"storage_formats"}


TEXEL_LOADS = {name: _texel_loads(stored) for name, stored in FLOATS.items()}
"""Features by which kernels load an element through texel buffers; None: it has no format."""

MAX_SHARED_BYTES = 4096
"""Literals up to this size are compared with those of other plans."""

_literals: weakref.WeakValueDictionary[tuple[str, tuple[int, ...], bytes], Array] = (
    weakref.WeakValueDictionary()
)

Load = Literal["buffer", "texel"]
"""How kernels load: the template axis `load`."""


class Params(Protocol):
    """A generated parameter block."""

    def pack(self) -> bytes:
        """Return the push-constant bytes."""


ShaderCall = tuple[Shader, Callable[..., Params]]
"""A dispatch's shader and the type of its parameters."""


class VulkanEncoder:
    """The interface through which executions record their dispatches.

    It describes the device and the current op to them, and collects their dispatches in
    `recording`, which the planner reads.

    Args:
        info: the device.
        chooser: decides between kernels that compute the same result.
        element: how the current op's floats are stored; see `begin`.
        weight_bytes: approximate device memory of all constants of the plan.
        known: results of `once` for earlier plans on the same device.
        spacious: kernels may take several times the memory if that makes them faster.
        arithmetic: in which products may be computed: of narrow floats, or with limbs, of float32.

    Attributes:
        info: the device.
        element: how the current op's floats are stored: the template axis `element`.
        weight_bytes, spacious: as above.
        recording: everything recorded so far.
    """

    __slots__ = (
        *("_arithmetic", "_chooser", "_divides_exactly", "_label", "_known", "_load", "_loads"),
        *("_scratch", "element", "info", "recording", "spacious", "weight_bytes"),
    )

    def __init__(
        self,
        info: DeviceInfo,
        chooser: Chooser = BY_RULE,
        *,
        element: FloatElement = "f32",
        weight_bytes: int = 0,
        known: Memo[Hashable, Any] | None = None,
        spacious: bool = False,
        arithmetic: Arithmetic = "f32",
    ) -> None:
        self._arithmetic = arithmetic
        self.info = info
        self.spacious = spacious
        self.weight_bytes = weight_bytes
        self.recording = Recording()
        self._chooser = chooser
        self._known: Memo[Hashable, Any] = Memo(MAX_ALIKE) if known is None else known
        self.element: FloatElement = element
        self._label = ""
        self._load: dict[FloatElement, Load] = {}
        self._loads: dict[FloatElement, tuple[Load, ...]] = {}
        self._divides_exactly = divides_exactly(info)
        self._scratch = 0

    def begin(self, op: str, tensors: Sequence[Tensor | None]) -> None:
        """Start an op; everything recorded from now on belongs to it.

        Args:
            op: its name.
            tensors: the tensors it reads and writes; if any is narrow, the op's `element` is.
        """
        self._label = op
        self.element = "f32"
        for tensor in tensors:
            if tensor is not None and tensor.element != "f32":
                self.element = tensor.element
                break

    @property
    def label(self) -> str:
        """The name of the current op."""
        return self._label

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic in which products of the current op may be computed."""
        if self._arithmetic == "limbs":
            return "limbs" if self.element == "f32" else "f32"
        return "f32" if self.element == "f32" else self._arithmetic

    def choose(self, what: str, problem: Hashable, candidates: Sequence[T], beside: str = "") -> T:
        """Return the candidate to use; list the likely fastest first (see `Chooser`).

        `beside` names another op whose dispatches depend on the choice, if there is one.
        """
        if self.element != "f32":
            problem = (FLOATS[self.element].label, problem)
        taken = self._chooser(what, problem, candidates)
        if len(candidates) > 1:
            self.recording.choices.append(
                Choice(self.label, what, problem, tuple(candidates), taken, beside)
            )
        return taken

    @property
    def offers_all(self) -> bool:
        """Whether to list kernels that rules and measurements never choose: only for tests."""
        return not isinstance(self._chooser, Preferences)

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return the result of `find`, which is called once per session for each key.

        Args:
            key: everything that the result depends on, except the device; its first item names the
                result.
            find: computes it; the result must not be changed.
        """
        found: T = self._known.once(key, find)
        return found

    @property
    def load(self) -> Load:
        """How kernels load: through texel buffers on CPU devices, where that is much faster.

        The chooser is asked once, and the tuner never: this is a property of the device.
        """
        taken = self._load.get(self.element)
        if taken is None:
            taken = self._load[self.element] = self._chooser("load", (), self.loads)
        return taken

    @property
    def loads(self) -> tuple[Load, ...]:
        """The ways in which kernels can load the data of the current op, fastest first."""
        found = self._loads.get(self.element)
        if found is None:
            found = self._loads[self.element] = loads_of(self.info, self.element)
        return found

    def element_of(self, tensor: Tensor) -> Element:
        """Return how elements of the tensor's type are stored for the current op."""
        return "i32" if kernel_dtype(tensor.dtype) == "i32" else self.element

    @contextmanager
    def in_full(self) -> Iterator[None]:
        """Record part of an op with floats kept in 32 bits."""
        before, self.element = self.element, "f32"
        try:
            yield
        finally:
            self.element = before

    def check(self, op: Op, message: str, hint: str) -> tuple[Tensor, int]:
        """Add a check by a kernel of `op`.

        Args:
            op: the op to name when the check fails.
            message: the error message.
            hint: advice for the user.

        Returns:
            The plan's status tensor, for the kernel's binding `status`, and the check's number, for
            its parameter `check`.
        """
        self.recording.checks.append(Check(op.type, op.source or op.name, message, hint))
        return self._status(), len(self.recording.checks)

    def unchecked(self) -> tuple[Tensor, int]:
        """Return the bindings for a kernel with a check that is not needed.

        The tensor is the dispatch's own, so that it waits for no other dispatch with a check.
        """
        return self.scratch(1, DType.INT32), 0

    def check_overflow(self, op: Op, output: Tensor) -> tuple[Tensor, int]:
        """Check results of a type wider than int32, which the device uses for them.

        Narrower integers wrap by definition.
        """
        if output.dtype not in WIDE_INTEGERS:
            return self.unchecked()
        message = f"{output.dtype.value} result '{output.name}' does not fit the 32-bit integers "
        return self.check(op, message + "that the device computes with", OVERFLOW_HINT)

    def check_range(self, tensor: Tensor, low: int, high: int, op: Op) -> tuple[Tensor, int]:
        """Check that indices are in the range `low` to `high`, on the host if it has them.

        Raises:
            InvalidInputError: `tensor` is constant and holds an index out of range.
        """
        root = self.root(tensor)
        allowed = IndexRange(low, high, op.type, op.source or op.name)
        if root.value is not None:
            allowed.check(root.value, root.name)
            return self.unchecked()
        if storage_bytes(root) == storage_bytes(tensor):
            self.recording.ranges.setdefault(root, []).append(allowed)
            if root.usage is Usage.INPUT:
                return self.unchecked()
        message = f"'{tensor.name}' holds an index outside {low} to {high}"
        return self.check(op, message, INDEX_HINT)

    def check_indices(self, op: Op, tensor: Tensor) -> tuple[Tensor, int]:
        """Check tuples of indices on the device, regardless of their origin."""
        return self.check(op, f"'{tensor.name}' holds an index outside its axis", INDEX_HINT)

    def _status(self) -> Tensor:
        if self.recording.status is None:
            self.recording.status = Tensor(TensorInfo("status", DType.INT32, (1,)))
        return self.recording.status

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
            tensors: one per binding, in order; the shader declares which are read and written.
            params: the parameter block declared by the shader's template.
            groups: workgroup counts; if one is zero, nothing is recorded.
            spec: values of specialization constants by name.

        Raises:
            ShaderError: the number of tensors differs from the number of bindings.
        """
        if len(tensors) != len(shader.bindings):
            raise ShaderError(
                f"{shader.name} has {len(shader.bindings)} bindings, got {len(tensors)} tensors"
            )
        if 0 in groups:
            return
        recording = self.recording
        for number in shader.written:
            recording.written.add(recording.root(tensors[number]))
        spec = {**(spec or {}), **self._division_spec(shader)}
        recording.dispatches.append(
            Dispatch(
                shader,
                tuple(tensors),
                params.pack() if params is not None else b"",
                groups,
                spec,
                self._label,
                len(recording.dispatches),
                specialized(shader, spec),
            )
        )

    def _division_spec(self, shader: Shader) -> dict[str, bool]:
        """Return the constants for quotients in a shader (see include/quotient.glsl.j2)."""
        told = self._divides_exactly and "DIVIDES_EXACTLY" in shader.constant_names
        return {"DIVIDES_EXACTLY": True} if told else {}

    def expect(self, predict: Callable[[], Expected | None]) -> None:
        """Record the cost prediction of the last dispatch; only few plans request it."""
        if self.recording.dispatches:
            self.recording.dispatches[-1].predict = predict

    def dispatch_linear(
        self,
        shader: Shader,
        tensors: Sequence[Tensor],
        params: Params,
        count: int,
        spec: Spec | None = None,
        *,
        reach: int = 0,
    ) -> None:
        """Record a dispatch of at least `count` invocations numbered by `global_index()`.

        The kernel divides no index greater than the larger of `count` and `reach`.
        """
        spec = {**(spec or {}), **index_spec(shader, max(count, reach))}
        local = int(spec.get("local_size_x", shader.local_size[0]))
        groups = linear_groups(count, local, self.info.limits)
        self.dispatch(shader, tensors, params, groups, spec)

    def constant(
        self,
        source: Tensor,
        key: str,
        pack: Callable[[Array], Array],
        *,
        full: bool = False,
        words: int = 0,
        others: tuple[Array, ...] = (),
    ) -> Tensor:
        """Return a tensor that holds `pack(source.value)`, packed and uploaded once per session.

        Args:
            source: a tensor with a constant value.
            key: names the packing; the same key on the same constant shares one upload.
            pack: returns a float32 or int32 array of any shape.
            words: number of elements of the packed form, so that model files may keep it under
                `key`, which then must change with the packing; 0 keeps it out of files.
            full: the result is 32-bit words, whatever the current op's floats are: either floats
                to be kept exact, or integers with floats packed into them.
            others: further constants that `pack` reads.
        """
        assert source.value is not None
        element = "f32" if full else self._narrow(source.dtype)
        packed = PackedConstant(source.value, key, pack, element, words=words, others=others)
        return self._constant(source.name, packed)

    def constant_like(self, source: Tensor, packed: PackedConstant) -> Tensor:
        """Return a constant packed as another op's was."""
        assert source.value is not None
        return self._constant(source.name, packed.of(source.value))

    def image_constant(self, source: Tensor, key: str, pack: Callable[[Array], Array]) -> Tensor:
        """Return a tensor like that of `constant`, in an image.

        Args:
            source: a tensor with a constant value.
            key: names the packing.
            pack: creates an array [height, width, 4] of floats, within the device's limits.
        """
        assert source.value is not None
        packed = PackedConstant(source.value, f"image:{key}", pack, self.element, image=True)
        return self._constant(source.name, packed)

    def literal(self, name: str, array: Array) -> Tensor:
        """Return a constant tensor that holds `array` (float32 or int32) unchanged."""
        return self._literal(name, _shared(array))

    def zeros(self, count: int) -> Tensor:
        """Return a constant tensor of floats."""
        return self._literal(f"zeros:{count}", _zeros(count))

    def _literal(self, name: str, array: Array) -> Tensor:
        element = self.element if array.dtype.kind == "f" else "f32"
        return self._constant(name, PackedConstant(array, "literal", lambda value: value, element))

    def _constant(self, name: str, packed: PackedConstant) -> Tensor:
        info = TensorInfo(f"{name}:{packed.key}", DType.from_numpy(packed.source.dtype), ())
        tensor = Tensor(info, Usage.CONSTANT, value=packed.source, element=packed.element)
        self.recording.packed[tensor] = packed
        return tensor

    def scratch(self, elements: int, dtype: DType = DType.FLOAT32, *, full: bool = False) -> Tensor:
        """Return a temporary that is live from its first dispatch to its last.

        Its floats are stored like those of the current op, or in 32 bits if `full`.
        """
        element = "f32" if full else self._narrow(dtype)
        return self._new_scratch(dtype, (elements,), element)

    def scratch_like(self, tensor: Tensor) -> Tensor:
        """Return a temporary like the one that another op had."""
        return self._new_scratch(tensor.dtype, tensor.shape, tensor.element)

    def _narrow(self, dtype: DType) -> FloatElement:
        """Return how floats of a type are stored for the current op; others are words."""
        return self.element if kernel_dtype(dtype) == "f32" else "f32"

    def _new_scratch(self, dtype: DType, shape: tuple[int, ...], element: FloatElement) -> Tensor:
        self._scratch += 1
        info = TensorInfo(f"{self.label}:scratch{self._scratch}", dtype, shape)
        return Tensor(info, element=element)

    def counter(self, count: int) -> Tensor:
        """Return `count` words that are zero before the first run; kernels must reset them.

        They keep their content between runs, so no other tensor shares their memory.
        """
        name = f"{self.label}:counter{len(self.recording.counters)}"
        self.recording.counters.append(Tensor(TensorInfo(name, DType.INT32, (count,))))
        return self.recording.counters[-1]

    def alias(self, tensor: Tensor, storage: Tensor, offset: int = 0) -> None:
        """Place `tensor` in the storage of another: a view costs no dispatch.

        Args:
            tensor: a result whose content is the other's, or a part of the other's future content.
            storage: the other tensor.
            offset: start of `tensor` in bytes; a multiple of `part_alignment`.
        """
        self.recording.aliases[tensor] = (storage, offset)

    def placement(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Return the tensor that owns the storage of `tensor`, and the byte offset into it."""
        return self.recording.placement(tensor)

    def root(self, tensor: Tensor) -> Tensor:
        """Return the tensor that owns the storage of `tensor`."""
        return self.recording.root(tensor)

    def is_written(self, tensor: Tensor) -> bool:
        """Return whether a dispatch writes the tensor, as opposed to the host."""
        return tensor in self.recording.written

    def writes(self, tensor: Tensor) -> None:
        """Mark a tensor as written by recorded dispatches, namely those into its parts."""
        self.recording.written.add(tensor)

    @property
    def part_alignment(self) -> int | None:
        """Required alignment of a part's offset in bytes; None if parts cannot be bound."""
        return part_alignment(self.info)


def part_alignment(info: DeviceInfo) -> int | None:
    """Return the alignment of parts of a buffer in bytes; None if parts cannot be bound."""
    limits = info.limits
    if limits.whole_buffers:
        return None
    return max(VECTOR_BYTES, limits.storage_offset_alignment, limits.texel_offset_alignment)


def _shared(array: Array) -> Array:
    """Return one array for all small equal ones, so that the device stores it once."""
    if array.nbytes > MAX_SHARED_BYTES:
        return array
    return _literals.setdefault((array.dtype.str, array.shape, array.tobytes()), array)


@lru_cache(maxsize=64)
def _zeros(count: int) -> Array:
    """Return the same zeros for all plans, so that the device recognises them."""
    return _shared(np.zeros(count, np.float32))


def loads_of(info: DeviceInfo, element: FloatElement = "f32") -> tuple[Load, ...]:
    """Return the ways in which kernels can load on this device, fastest first.

    Args:
        info: the device.
        element: how the floats are stored that are loaded.
    """
    needed = TEXEL_LOADS[element]
    texels = info.limits.max_texel_buffer_elements
    if needed is None or not info.features >= needed or texels < MIN_TEXELS:
        return ("buffer",)
    return ("buffer", "texel") if is_gpu(info) else ("texel", "buffer")


def index_spec(shader: Shader, count: int) -> dict[str, bool]:
    """Return how a shader may divide indices below `count` (see include/divide.glsl.j2)."""
    return {"LARGE": count >= EXACT_QUOTIENTS} if "LARGE" in shader.constant_names else {}


def ceil_div(value: int, divisor: int) -> int:
    """Return value / divisor, rounded up."""
    return -(-value // divisor)
