"""An Execution runs one op on one backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkmnn.core.tensor import Tensor
from vkmnn.ir import Layout, Op


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a backend does not run an op; it is shown by `session.placement()`."""

    reason: str


class Execution:
    """One op bound to a backend.

    The constructor takes parameters and constants; what depends on shapes happens later, in the
    backend's own hook (`on_encode` on Vulkan, `on_execute` on the CPU).
    """

    def __init__(self, op: Op) -> None:
        self.op = op

    def layouts(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> tuple[list[Layout], list[Layout]]:
        """Return the layout wanted for each input and the one made for each output."""
        return [Layout.NCHW] * len(inputs), [Layout.NCHW] * len(outputs)


@dataclass(slots=True)
class Command:
    """An op of the plan with its tensors, the execution that runs it, and where and why there.

    `owner` names the op of the network for whose sake a backend added this one; "" otherwise.
    """

    op: Op
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    execution: Execution
    backend: str
    reason: str = ""
    owner: str = ""
