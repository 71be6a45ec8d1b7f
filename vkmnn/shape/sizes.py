"""Memory and time of an op's results on known arrays, before they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.ir import Array, DType, Op, TensorInfo
from vkmnn.shape.registry import compute_shapes
from vkmnn.shape.working import working_bytes, working_seconds


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one op on the numpy backend.

    Attributes:
        nbytes: size of the results.
        working: the most bytes that are held while they are computed, they themselves included.
        seconds: approximate duration.
    """

    nbytes: int
    working: int
    seconds: float


def info_bytes(infos: Sequence[TensorInfo]) -> int:
    """Return the bytes of tensors with static shapes."""
    return sum(prod(info.dims) * info.dtype.numpy.itemsize for info in infos)


def cost_of(
    op: Op, inputs: Sequence[Array | None], outputs: Sequence[TensorInfo] | None = None
) -> Cost:
    """Return the cost of an op on these arrays.

    Args:
        op: the operator.
        inputs: one array per `op.inputs`; None where it is absent.
        outputs: infos of the outputs; None to compute them, which raises as `compute_shapes`.
    """
    infos = [
        None if array is None else TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        for name, array in zip(op.inputs, inputs, strict=True)
    ]
    results = compute_shapes(op, infos, inputs) if outputs is None else outputs
    return Cost(
        info_bytes(results),
        working_bytes(op, infos, results),
        working_seconds(op, infos, results),
    )


def new_bytes(results: Sequence[Array], inputs: Sequence[Array | None]) -> int:
    """Return the bytes of the results that do not share memory with an input."""
    given = [array for array in inputs if array is not None]
    return sum(
        result.nbytes
        for result in results
        if not any(np.may_share_memory(result, array) for array in given)
    )
