"""A backend for vkmnn: every op in float64, rounded once at the end of each op.

It shows how far float32 results are from better ones: `device="f64"` beside any other device.
`device="f64:MatMul,BinaryOp"` computes only these op types so; numpy does the rest as usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vkmnn.plugin import (
    Backend,
    Command,
    Execution,
    Op,
    Rejection,
    Segment,
    Tensor,
    backend,
    create_execution,
    run_op,
)

Array = np.ndarray[Any, Any]


def widened(array: Array | None) -> Array | None:
    """Return float32 and float16 as float64."""
    return array.astype(np.float64) if array is not None and array.dtype.kind == "f" else array


class F64Execution(Execution):
    """One op, computed by numpy on float64."""

    def run(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Return the op's outputs in the element types that they have in the network."""
        infos = [tensor.info for tensor in self.outputs]
        results = run_op(self.op, [widened(array) for array in inputs], infos)
        wanted = iter(self.outputs)
        return [
            array.astype(next(wanted).dtype.numpy) if name else array
            for name, array in zip(self.op.outputs, results, strict=True)
        ]


class F64Segment(Segment):
    """Ops in a row."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = commands

    def run(self, host: dict[str, Any]) -> None:
        """Read inputs from `host`, and put results there."""
        for command in self._commands:
            execution = command.execution
            assert isinstance(execution, F64Execution)
            inputs = [
                None if one is None else host[one.name] if one.value is None else one.value
                for one in command.inputs
            ]
            results = execution.run(inputs)
            names = command.op.outputs
            host.update((n, r) for n, r in zip(names, results, strict=True) if n)


@backend("F64")
class F64Backend(Backend):
    """Takes the op types that its option lists, or all; data movement is left to numpy."""

    type = "F64"
    uses_geometry = False

    def __init__(self, option: str = "") -> None:
        self._option = option
        self._only = frozenset(name for name in option.split(",") if name)

    def on_create(
        self, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Execution | Rejection:
        """Take an op that has floats; kernels registered for this backend come first."""
        if self._only and op.type not in self._only:
            return Rejection(f"{op.type} is not among {self._option}")
        if not any(one.dtype.numpy.kind == "f" for one in outputs):
            return Rejection("there are no floats to compute")
        made = create_execution(self.type, F64Execution, op, inputs, outputs)
        return made or Rejection(f"no kernel for {op.type}")

    def on_resize_begin(self, commands: Sequence[Command]) -> list[Command]:
        """Leave the plan as it is: arrays have one form only."""
        return list(commands)

    def on_resize_end(
        self,
        segments: Sequence[Sequence[Command]],
        kept: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
    ) -> list[Segment]:
        """Return one segment for each list of commands."""
        return [F64Segment(list(commands)) for commands in segments]

    def timed(self) -> F64Backend:
        """Return the backend itself: it keeps no times."""
        return self
