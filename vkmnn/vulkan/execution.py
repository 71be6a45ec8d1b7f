"""Base class of the Vulkan executions, and their registry."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from vkmnn.base.elements import FloatElement
from vkmnn.base.registry import Registry
from vkmnn.core.execution import Execution
from vkmnn.core.tensor import Tensor
from vkmnn.errors import PluginError
from vkmnn.ir import AttrsT, Layout, Op
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.float_rules import FloatOperands, FloatRule, apply_float_rule


class Prepared:
    """What the executions of equal ops share; compared and hashed by identity.

    Args:
        kind: the class of the executions.
        kept: attributes that construction computed, except the op and its tensors.
    """

    __slots__ = ("_kept", "_kind")

    def __init__(self, kind: type[VulkanExecution[Any]], kept: Mapping[str, Any]) -> None:
        self._kind = kind
        self._kept = kept

    def execution(
        self, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> VulkanExecution[Any]:
        """Return the execution of an op, as construction would."""
        made = self._kind.__new__(self._kind)
        made.__dict__.update(self._kept)
        made.op, made.inputs, made.outputs = op, list(inputs), list(outputs)
        return made


class VulkanExecution(Execution[AttrsT]):
    """One op on the device.

    A subclass rejects unsupported ops in `prepare`, states its memory orders in `layouts`, and
    records its dispatches in `on_encode`. It never allocates, and never writes a barrier.
    `float_rule` applies to sessions that store floats narrower than float32.

    Args:
        op: the op.
        inputs: its operands, None for absent ones.
        outputs: its results, as far as they are read.
        info: the device.

    Raises:
        Rejection: the op cannot run on this device.
    """

    float_rule: ClassVar[FloatRule] = FloatRule.FULL
    code_layout: ClassVar[Layout] = Layout.NC4HW4
    """The order in which the op reads and writes 8-bit quantised values."""
    repeatable: ClassVar[bool] = False
    """Whether what `prepare` keeps, `layouts` says and `on_encode` records follows from attributes,
    and from the shapes, types and forms of the tensors: neither from a constant's content, which
    goes through `VulkanEncoder.constant`, nor from names. Equal ops are planned once."""
    prepared: Prepared | None = None
    """The same object for equal ops, as their tensors are before they get their forms;
    None if the execution is not repeatable."""

    def __init__(
        self,
        op: Op[AttrsT],
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        info: DeviceInfo,
    ) -> None:
        super().__init__(op, inputs, outputs)
        self.prepare(info)

    def as_prepared(self) -> Prepared:
        """Store attributes that construction computed, for equal ops."""
        own = ("op", "inputs", "outputs")
        kept = {name: value for name, value in vars(self).items() if name not in own}
        prepared = kept["prepared"] = self.prepared = Prepared(type(self), kept)
        return prepared

    def prepare(self, info: DeviceInfo) -> None:
        """Plan everything that is independent of layouts, or raise Rejection; ends construction.

        Element types that the device cannot store are rejected before.
        """

    def float_operands(self, element: FloatElement) -> FloatOperands:
        """Return which inputs the op reads, and which outputs it writes, in a narrow element.

        Its answers for integers are ignored.

        Args:
            element: how the session stores floats; only called if that is not float32.
        """
        return self.by_rule(self.float_rule, element)

    def by_rule(
        self, rule: FloatRule, element: FloatElement, *, wide: int = -1, clamped: bool = False
    ) -> FloatOperands:
        """Apply a rule to the op's tensors; see `apply_float_rule`."""
        return apply_float_rule(
            rule, self.inputs, self.outputs, element, wide=wide, clamped=clamped
        )

    def code_inputs(self) -> dict[int, int | None]:
        """Return the inputs that the op can read as 8-bit quantised values, in its `code_layout`.

        Each has its known shift (`byte_codes.code_shift`), if any. Called on bound and unbound
        executions alike, so layouts must not matter.
        """
        return {}

    def begins_codes(self) -> bool:
        """Return whether the op may quantise float inputs: only then are readers examined."""
        return False

    def keeps_codes(self) -> bool:
        """Return whether its quantised outputs are a selection of its quantised inputs."""
        return False

    def needs_codes(self) -> bool:
        """Return whether it reads quantised values only if it also writes some."""
        return False

    def made_codes(self, wish: int | None = None) -> int | None:
        """Return the shift with which the only output can be quantised; None for floats.

        Asked of a bound execution, whose inputs have their final forms.

        Args:
            wish: the shift that the readers of the output prefer, if any.
        """
        return None

    def plain_end_us(self, end: int, encoder: VulkanEncoder) -> float | None:
        """Return the additional time with plain float32 at one end; None if it is not supported.

        Asked of a bound execution, whose tensors have their final forms.

        Args:
            end: 0: the first operand is plain, 1: the result is plain.
            encoder: has begun the op.
        """
        return None

    @abstractmethod
    def on_encode(self, encoder: VulkanEncoder) -> None:
        """Record the op's dispatches; tensors have their final layouts here."""


_E = TypeVar("_E", bound=VulkanExecution[Any])

EXECUTIONS: Registry[str, type[VulkanExecution[Any]]] = Registry("Vulkan execution of")


def vulkan_execution(*op_types: str) -> Callable[[type[_E]], type[_E]]:
    """Register a class as the Vulkan execution of each of `op_types`.

    Raises:
        PluginError: an op type has an execution already, or the class is not a VulkanExecution with
            an `on_encode`.
    """
    register = EXECUTIONS.register(*op_types)

    def add(execution: type[_E]) -> type[_E]:
        base = VulkanExecution
        if base not in getattr(execution, "__mro__", ()) or execution.on_encode is base.on_encode:
            raise PluginError(
                f"{execution!r} cannot execute on a device",
                op=op_types[0],
                hint="derive a class from VulkanExecution and write its on_encode",
            )
        register(execution)
        return execution

    return add
