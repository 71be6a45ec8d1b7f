"""The registry of numpy executions, and the one entry to them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vkmnn.base.lazy_array import whole
from vkmnn.base.registry import Registry
from vkmnn.cpu_fallback.narrow_floats import computes_fp16
from vkmnn.cpu_fallback.results import checked_results, is_foreign
from vkmnn.errors import InvalidInputError, ModelError, VkmnnError, unexpected_error
from vkmnn.ir import Array, Op, TensorInfo, check_attrs

AnyArray = npt.NDArray[Any]
Inputs = Sequence[AnyArray | None]
CpuExecution = Callable[[Op[Any], Inputs], list[AnyArray]]
PlacedExecution = Callable[[Op[Any], Inputs, Sequence[TensorInfo]], list[AnyArray]]

Entry = Callable[[Op, Inputs, Sequence[TensorInfo] | None], list[AnyArray]]

EXECUTIONS: Registry[str, Entry] = Registry("numpy execution of")


def cpu_execution(op_type: str) -> Callable[[CpuExecution], CpuExecution]:
    """Register a function as the numpy execution of `op_type`.

    The function gets the op and its input arrays (None = absent) and returns all outputs; it may
    return views of its inputs and must not change them. It runs with numpy's floating-point
    warnings off. It may raise a VkmnnError without op and node, which `run_op` fills in.

    Raises:
        PluginError: `op_type` has an execution already.
    """

    def register(function: CpuExecution) -> CpuExecution:
        foreign = is_foreign(function)

        @functools.wraps(function)
        def entry(op: Op, inputs: Inputs, outputs: Sequence[TensorInfo] | None) -> list[AnyArray]:
            results = function(op, inputs)
            return checked_results(op, results, inputs, outputs) if foreign else results

        EXECUTIONS.register(op_type)(entry)
        return function

    return register


def placed_execution(op_type: str) -> Callable[[PlacedExecution], PlacedExecution]:
    """Register an execution that also needs the infos of its outputs (Raster).

    Raises:
        PluginError: `op_type` has an execution already.
    """

    def register(function: PlacedExecution) -> PlacedExecution:
        @functools.wraps(function)
        def entry(op: Op, inputs: Inputs, outputs: Sequence[TensorInfo] | None) -> list[AnyArray]:
            if outputs is None:
                raise InvalidInputError(f"{op.type} needs the infos of its outputs")
            return function(op, inputs, outputs)

        EXECUTIONS.register(op_type)(entry)
        return function

    return register


def has_execution(op_type: str) -> bool:
    """True when `op_type` has a numpy execution."""
    return op_type in EXECUTIONS


def run_op(
    op: Op,
    inputs: Sequence[Array | None],
    outputs: Sequence[TensorInfo] | None = None,
    kernel: Entry | None = None,
) -> list[Array]:
    """Compute the outputs of `op` with numpy, one per `op.outputs`.

    Args:
        op: the operator.
        inputs: one array per `op.inputs`; None where the input is absent.
        outputs: infos of the outputs; only Raster needs them, as its attributes hold no shape.
        kernel: computes them instead of the execution that is registered.

    Returns:
        Arrays, which may be views of the inputs.

    Raises:
        ModelError: no execution is registered for the op type, or the op names too many outputs.
        InvalidInputError: shapes or values of the inputs are impossible (an index out of range).
        ShapeError: the inputs' shapes do not fit together.
    """
    check_attrs(op)
    try:
        with np.errstate(all="ignore"):
            results = (kernel or _execution(op))(op, [whole(one) for one in inputs], outputs)
    except VkmnnError as error:
        if error.op is None:
            error.op, error.node = op.type, op.name
        raise
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        given = ", ".join(
            "absent" if item is None else f"{item.dtype}{list(item.shape)}" for item in inputs
        )
        raise InvalidInputError(
            f"numpy cannot compute this: {error}; inputs: {given or 'none'}",
            op=op.type,
            node=op.name,
            hint="check the shapes and values that reach this node",
        ) from error
    except Exception as error:
        raise unexpected_error(
            error, "computing it with numpy", op=op.type, node=op.source or op.name
        ) from error
    if len(results) < len(op.outputs):
        raise ModelError(
            f"the node names {len(op.outputs)} outputs, but the op has {len(results)}",
            op=op.type,
            node=op.name,
        )
    return [np.asarray(item) for item in results[: len(op.outputs)]]


def _execution(op: Op) -> Entry:
    execution = EXECUTIONS.get(op.type)
    if execution is None:
        raise ModelError(
            f"op type '{op.type}' has no numpy execution",
            hint="register one with @cpu_execution",
        )
    return execution


def required(inputs: Inputs, index: int) -> AnyArray:
    """Return input `index`; InvalidInputError when it is absent."""
    value = optional(inputs, index)
    if value is None:
        raise InvalidInputError(f"input {index} is required but absent")
    return value


def optional(inputs: Inputs, index: int) -> AnyArray | None:
    """Return input `index`, or None when it is absent."""
    return inputs[index] if index < len(inputs) else None


def widen(x: AnyArray) -> AnyArray:
    """Return float16 as float32 unless float16 is computed natively; everything else unchanged."""
    return x.astype(np.float32) if x.dtype == np.float16 and not computes_fp16() else x


def sum_dtype(*arrays: AnyArray) -> np.dtype[Any]:
    """Return the dtype in which sums of products of these arrays are accumulated.

    Floats are summed in float64: a float32 BLAS rounds equal rows differently, depending on their
    position in the matrix.
    """
    dtype = np.result_type(*arrays)
    return np.dtype(np.float64) if dtype.kind == "f" else dtype
