"""An Execution runs one op on one backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.errors import ModelError
from vkmnn.ir import AttrsT, Layout, Op
from vkmnn.shape import flops

Layouts = tuple[list[Layout], list[Layout]]
"""The layout of each input and of each output."""


class Rejection(Exception):  # noqa: N818 - the outcome of an offer, not a failure
    """The reason why a backend does not run an op, as shown by `session.placement()`.

    Executions raise it while they are constructed; `Backend.on_create` returns it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Execution(Generic[AttrsT]):
    """An op bound to a backend and to its tensors.

    Shapes, element types and contents of constants are final at construction. Layouts and widths
    are not: the backend negotiates them, and then calls `bind` with the resulting tensors.

    Args:
        op: the op to run.
        inputs: its operands, None for absent ones.
        outputs: the results that are needed.

    Attributes:
        provider: the plug-in that registered the kernel, or vkmnn.
        passed_over: why preceding kernels rejected the op.

    Raises:
        Rejection: the op cannot run here.
    """

    provider: str = "vkmnn"
    passed_over: tuple[str, ...] = ()

    def __init__(
        self, op: Op[AttrsT], inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> None:
        self.op = op
        self.inputs = list(inputs)
        self.outputs = list(outputs)

    def bind(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Set the tensors in their final forms; shapes and contents stay the same."""
        self.inputs = list(inputs)
        self.outputs = list(outputs)

    @property
    def attrs(self) -> AttrsT:
        """The attributes of the op."""
        return self.op.attrs

    def operand(self, index: int) -> Tensor:
        """Return input `index`.

        Raises:
            ModelError: it is absent.
        """
        tensor = self.inputs[index] if index < len(self.inputs) else None
        if tensor is None:
            raise ModelError(
                f"input {index} is required but absent", op=self.op.type, node=self.op.name
            )
        return tensor

    def optional(self, index: int) -> Tensor | None:
        """Return input `index`, or None when it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def operands(self) -> list[Tensor]:
        """The inputs that are present."""
        return [tensor for tensor in self.inputs if tensor is not None]

    @property
    def output(self) -> Tensor:
        """The first output that is needed."""
        return self.outputs[0]

    def result(self, index: int) -> Tensor | None:
        """Return output `index`, in the op's numbering, or None if nothing needs it."""
        names = self.op.outputs
        if index >= len(names) or not names[index]:
            return None
        return self.outputs[sum(map(bool, names[:index]))]

    def layouts(self) -> Layouts:
        """Return the layout required for each input and produced for each output."""
        return [Layout.NCHW] * len(self.inputs), [Layout.NCHW] * len(self.outputs)


@dataclass(slots=True)
class Command:
    """An op of the plan with its tensors, its execution, its backend and the reason for it.

    `owner` names the network op that a backend added this one for; "" otherwise.
    """

    op: Op
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    execution: Execution
    backend: str
    reason: str = ""
    owner: str = ""

    @property
    def flops(self) -> int:
        """The floating-point operations of a run."""
        inputs = [None if tensor is None else tensor.info for tensor in self.inputs]
        return flops(self.op, inputs, [tensor.info for tensor in self.outputs])
