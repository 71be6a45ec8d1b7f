"""Memory and time of ops on the numpy backend, before they run."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vkmnn.ir import OP_TYPES, Op, TensorInfo
from vkmnn.shape.common import Infos
from vkmnn.shape.counting import flops

_WIDE = 8
"""Bytes of a float64, and of an index."""

_STEP_S = 5e-6
"""Seconds of one numpy call."""

_ELEMENT_S = 5e-9
"""Seconds to read or write one element."""

_INTEGER_FACTOR = 10
"""Slowdown of integer products, which BLAS does not compute."""

_SORT_S = 2e-7
"""Seconds to sort one element."""


def is_view(op: Op) -> bool:
    """Return whether numpy returns a view for an op."""
    return OP_TYPES[op.type].host.view


def working_bytes(op: Op, inputs: Infos, outputs: Sequence[TensorInfo]) -> int:
    """Return the maximum bytes that an op holds on numpy in addition to its inputs.

    Args:
        op: the operator.
        inputs: its inputs with static shapes; None = absent.
        outputs: its outputs, as from `compute_shapes`.
    """
    results = sum(prod(info.dims) * info.dtype.numpy.itemsize for info in outputs)
    ins = [None if info is None else info.dims for info in inputs]
    outs = [info.dims for info in outputs]
    return results + _WIDE * OP_TYPES[op.type].host.numbers(op.attrs, ins, outs)


def working_seconds(op: Op, inputs: Infos, outputs: Sequence[TensorInfo]) -> float:
    """Return the approximate seconds of an op on numpy; arguments as of `working_bytes`."""
    work = OP_TYPES[op.type].host
    if work.view:
        return 0.0
    present = [info for info in inputs if info is not None]
    ins = [None if info is None else info.dims for info in inputs]
    outs = [info.dims for info in outputs]
    moved = sum(prod(info.dims) for info in [*present, *outputs])
    integers = bool(present) and present[0].dtype.numpy.kind != "f"
    rate = work.flop_s * (_INTEGER_FACTOR if work.blas and integers else 1)
    seconds = flops(op, inputs, list(outputs)) * rate + _ELEMENT_S * moved
    if work.sorts:
        seconds += _SORT_S * prod(present[0].dims)
    return seconds + _STEP_S * work.steps(op.attrs, ins, outs)
