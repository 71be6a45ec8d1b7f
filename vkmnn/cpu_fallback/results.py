"""Checks of the results of a plug-in's numpy code against its op's declaration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vkmnn.errors import PluginError, ShapeError
from vkmnn.ir import Array, DType, Op, TensorInfo
from vkmnn.shape.registry import COMPUTERS, compute_shapes


def is_foreign(function: object) -> bool:
    """Whether a function belongs to a plug-in."""
    return str(getattr(function, "__module__", "")).partition(".")[0] != "vkmnn"


def checked_results(
    op: Op,
    results: Any,
    inputs: Sequence[Array | None],
    outputs: Sequence[TensorInfo] | None,
) -> list[Array]:
    """Return the results of a plug-in's code as arrays.

    Args:
        op: the computed op.
        results: the results of the code.
        inputs: its inputs.
        outputs: the plan's infos of the outputs that have a name; None to compute them.

    Raises:
        PluginError: not a list of arrays, another number of them, or another type or shape than
            the op's size computer has declared.
    """
    if not isinstance(results, list | tuple):
        found = "an array" if isinstance(results, np.ndarray) else type(results).__name__
        raise _wrong(op, f"returned {found}, not a list of arrays", "return [y], one per output")
    declared = list(outputs) if outputs is not None else _declared(op, inputs)
    named = [number for number, name in enumerate(op.outputs) if name]
    if len(results) != len(op.outputs):
        count = _count(op, inputs)
        if len(results) != count:
            noun = "result" if len(results) == 1 else "results"
            raise _wrong(
                op,
                f"returned {len(results)} {noun}, the op declares {count}",
                "return a list with an array for each output, requested or not",
            )
    for number, item in enumerate(results):
        if not isinstance(item, np.ndarray | np.generic):
            raise _wrong(
                op, f"returned {type(item).__name__} for output {number}", "return numpy's arrays"
            )
    if len(declared) == len(named):
        for number, info in zip(named, declared, strict=True):
            _check(op, number, results[number], info)
    return [np.asarray(item) for item in results]


def _check(op: Op, number: int, item: Any, info: TensorInfo) -> None:
    wanted = (info.dtype.numpy, info.dims)
    if (item.dtype, item.shape) == wanted:
        return
    hint = "the size computer declares what the numpy code has to return"
    if item.shape == info.dims:
        hint = f"return it with .astype(numpy.{info.dtype.value}), or declare {item.dtype}"
    raise _wrong(
        op,
        f"returned {item.dtype} {list(item.shape)} for output {number} ('{op.outputs[number]}'), "
        f"declared {info.dtype.value} {list(info.dims)}",
        hint,
    )


def _declared(op: Op, inputs: Sequence[Array | None]) -> list[TensorInfo]:
    return [info for info in _sizes(op, inputs) if info.name]


def _count(op: Op, inputs: Sequence[Array | None]) -> int:
    """Return the number of the op's outputs, used or not."""
    infos = _infos(op, inputs)
    computer = COMPUTERS.get(op.type)
    try:
        return len(computer(op, infos, list(inputs))) if computer else len(op.outputs)
    except (ShapeError, LookupError, TypeError, ValueError):  # its claims were checked before
        return len(op.outputs)


def _sizes(op: Op, inputs: Sequence[Array | None]) -> list[TensorInfo]:
    if op.type not in COMPUTERS:
        return []
    return compute_shapes(op, _infos(op, inputs), list(inputs))


def _infos(op: Op, inputs: Sequence[Array | None]) -> list[TensorInfo | None]:
    return [
        None if array is None else TensorInfo(name, DType.from_numpy(array.dtype), array.shape)
        for name, array in zip(op.inputs, inputs, strict=False)
    ]


def _wrong(op: Op, text: str, hint: str) -> PluginError:
    return PluginError(
        f"the numpy code of a plug-in {text}", op=op.kernel, node=op.source or op.name, hint=hint
    )
