"""Constant folding: computes values that are known before the network runs.

A `Folder` is used four times: by the pass that folds constants of a model; by a session when it
opens, for all its plans; by a plan, once its shapes are known; and by the plan again after
lowering. They differ in what they know and in how they treat an op whose result would be too large.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np

from vkmnn.base.budget import Meter, unlimited
from vkmnn.errors import unexpected_error
from vkmnn.ir import Array, Op, TensorInfo
from vkmnn.shape.sizes import cost_of, info_bytes, new_bytes


class Evaluator(Protocol):
    """Runs one op on arrays: numpy's `run_op`. Raster needs the infos of its outputs."""

    def __call__(
        self,
        op: Op[Any],
        inputs: Sequence[Array | None],
        outputs: Sequence[TensorInfo] | None = None,
    ) -> list[Array]:
        """Return the op's outputs."""


def operands(op: Op[Any], value_of: Callable[[str], Array | None]) -> list[Array | None] | None:
    """Return the values of an op's inputs (None = absent), or None if one is unknown."""
    found: list[Array | None] = []
    for name in op.inputs:
        value = value_of(name) if name else None
        if name and value is None:
            return None
        found.append(value)
    return found


def keep(op: Op[Any], arrays: Sequence[Array], values: MutableMapping[str, Array]) -> None:
    """File an op's results under their names."""
    values.update((name, one) for name, one in zip(op.outputs, arrays, strict=True) if name)


class Folder:
    """Computes ops whose operands are known, within a budget.

    Args:
        evaluate: computes an op.
        meter: the budget; None has no limits.
    """

    def __init__(self, evaluate: Evaluator, meter: Meter | None = None) -> None:
        self._evaluate = evaluate
        self._meter = meter or unlimited()

    def compute(self, op: Op[Any], inputs: Sequence[Array | None]) -> list[Array]:
        """Compute an op that must be constant; its results are charged to the budget first.

        Raises:
            BudgetError: they would take more memory or time than allowed.
            VkmnnError: it cannot be computed.
        """
        cost = cost_of(op, inputs)
        node = op.source or op.name
        if op.type == "ConstantOfShape":
            self._meter.charge_fill(cost.nbytes, op.type, node)
            return self._filled(op, inputs)
        self._meter.charge(cost.nbytes, op.type, node, cost.working)
        self._meter.check_time(op.type, node, cost.seconds)
        try:
            arrays = self._evaluate(op, inputs)
        except Exception as error:
            raise unexpected_error(
                error, "computing it from constants", op=op.type, node=node
            ) from error
        self._meter.refund(cost.nbytes - new_bytes(arrays, inputs))
        return arrays

    def compute_if_small(
        self,
        op: Op[Any],
        inputs: Sequence[Array | None],
        limit: int,
        outputs: Sequence[TensorInfo] | None = None,
    ) -> list[Array] | None:
        """Compute an op that may also run later; nothing is charged.

        Args:
            op: the op to compute.
            inputs: its operands.
            limit: maximum bytes of the results.
            outputs: their descriptions, if known.

        Returns:
            None where they would take more, or more memory or time than is left of the budget.
        """
        cost = cost_of(op, inputs, outputs)
        nbytes = cost.nbytes if outputs is None else info_bytes(outputs)
        if nbytes > limit or not self._meter.fits(cost.working):
            return None
        if not self._meter.has_time(cost.seconds):
            return None
        with np.errstate(all="ignore"):
            if outputs is None:
                return self._evaluate(op, inputs)
            return self._evaluate(op, inputs, outputs)

    def _filled(self, op: Op[Any], inputs: Sequence[Array | None]) -> list[Array]:
        """Compute one element of a fill, and broadcast it without allocating."""
        (dims,) = inputs
        assert dims is not None
        (one,) = self._evaluate(op, [np.ones_like(dims)])
        return [np.broadcast_to(one, tuple(dims.tolist()))]
