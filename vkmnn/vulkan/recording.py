"""Recorded dispatches of a plan, for scheduling, placement and the plan itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

from vkmnn.base.elements import FloatElement
from vkmnn.base.lazy_array import whole
from vkmnn.base.records import dataclass
from vkmnn.core.float_range import to_element
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Array
from vkmnn.runtime.shader import Shader
from vkmnn.vulkan.checks import Check, IndexRange
from vkmnn.vulkan.choice import Choice
from vkmnn.vulkan.cost.terms import Expected
from vkmnn.vulkan.storage import FLOAT_BYTES, to_storage

Spec = Mapping[str, int | float | bool]

SpecializedShader = tuple[str, str, tuple[tuple[str, int | float | bool], ...]]
"""Identity of a pipeline on a device: a shader, and its constants in the order of their names."""


def specialized(shader: Shader, spec: Spec) -> SpecializedShader:
    """Return the identity of a shader's pipeline with some constants set."""
    return shader.name, shader.digest, tuple(sorted(spec.items()))


@dataclass(slots=True)  # not frozen, which takes twice as long: plans make hundreds
class PackedConstant:
    """A constant in a kernel's form, packed once and shared by plans.

    With `image`, its rows [height, width, 4] are the texels of an image. `words` is the number of
    elements of the packed form, 0 if only `pack` knows: a form from a file must have as many, as
    kernels read them all. `others` are further constants that `pack` reads.
    """

    source: Array
    key: str
    pack: Callable[[Array], Array]
    element: FloatElement = "f32"
    image: bool = False
    words: int = 0
    others: tuple[Array, ...] = ()

    @property
    def form(self) -> str:
        """The name of the form in files."""
        return self.key if self.element == "f32" else f"{self.key}:{self.element}"

    @property
    def nbytes(self) -> int:
        """Bytes on the device; if only `pack` knows, without padding, and bytes stay bytes."""
        if self.words:
            return self.words * FLOAT_BYTES[self.element]
        itemsize = self.source.dtype.itemsize
        return self.source.size * (itemsize if itemsize == 1 else FLOAT_BYTES[self.element])

    def of(self, source: Array) -> PackedConstant:
        """Return the same form of another constant."""
        return replace(self, source=source)

    def array(self, name: str) -> Array:
        """Return the words to upload; `name` is for the error of an integer beyond int32."""
        packed = self.pack(whole(self.source))
        if self.element != "f32":
            return to_element(packed, self.element)
        return to_storage(packed, name)


@dataclass(slots=True)
class Dispatch:
    """A recorded dispatch: tensors in binding order, push constants, workgroup counts.

    Dispatches of one `step` may run at once: their tensors share no memory. `pipeline` identifies
    shader and constants. `predict` asks the kernel for its time, if known. `repeated`: the dispatch
    was copied from that of an equal op.
    """

    shader: Shader
    tensors: tuple[Tensor, ...]
    params: bytes
    groups: tuple[int, int, int]
    spec: Spec
    label: str
    step: int
    pipeline: SpecializedShader
    predict: Callable[[], Expected | None] | None = None
    repeated: bool = False

    @property
    def expected(self) -> Expected | None:
        """Predicted time of its kernel, None without one."""
        return self.predict() if self.predict else None


@dataclass(slots=True)
class Recording:
    """The output of a `VulkanEncoder`; nothing reaches the device before the plan is complete.

    Executions do not see it: they use the encoder. The scheduler reorders `dispatches`; all others
    only read.

    Attributes:
        dispatches: the dispatches in running order.
        packed: constant tensors in their packed form.
        aliases: the tensor whose storage another shares, and the byte offset in it.
        written: the tensors that dispatches write.
        ranges: checks by the host of index tensors that it provides.
        checks: checks by the device, which reports failures in `status`.
        choices: decisions between kernels.
        status: reports of failed checks; None without checks.
        counters: words that are zero before every run.
    """

    dispatches: list[Dispatch] = field(default_factory=list)
    packed: dict[Tensor, PackedConstant] = field(default_factory=dict)
    aliases: dict[Tensor, tuple[Tensor, int]] = field(default_factory=dict)
    written: set[Tensor] = field(default_factory=set)
    ranges: dict[Tensor, list[IndexRange]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    status: Tensor | None = None
    counters: list[Tensor] = field(default_factory=list)

    def placement(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Return the owner of a tensor's storage, and its byte offset there."""
        offset = 0
        while tensor in self.aliases:
            tensor, step = self.aliases[tensor]
            offset += step
        return tensor, offset

    def root(self, tensor: Tensor) -> Tensor:
        """Return the tensor that owns the storage of `tensor`."""
        return self.placement(tensor)[0] if tensor in self.aliases else tensor
